/** HellaSwag on SmolLM2, beside llama.cpp on the same tokens: the same choices, but for near-ties. */
import { spawnSync } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { expect, it } from 'vitest';
import { F16 } from '../src/codec/spec.ts';
import { loadEngine, openModelFile, planShape } from '../src/engine/engine.ts';
import { readHellaswag } from '../src/eval/tasks/readers/hellaswag.ts';
import { choiceTokens, encodeChoice, endingLogProbs } from '../src/eval/tasks/score-choices.ts';
import { createPlan } from '../src/plan/plan.ts';
import { LONG_CASES } from './support/matrix.ts';
import { describeWithFile, sharedFile, smolModel } from './support/shared.ts';

const ITEMS = LONG_CASES ? 100 : 10;
/** Nats per token. llama.cpp's log probabilities of an ending differ by up to .09 on the first ten items. */
const TIE = 0.05;
const MAX_DIFFERENCE = 0.15;

const mean = (values: readonly number[]) => values.reduce((a, b) => a + b) / values.length;
const best = (means: readonly number[]) => means.indexOf(Math.max(...means));

describeWithFile('data/tasks/hellaswag-dev.txt', 'HellaSwag', path => {
  it(`has llama.cpp's choices in ${ITEMS} items`, { timeout: 1_200_000 }, async () => {
    const modelPath = sharedFile(smolModel);
    const data = { path, text: await readFile(path, 'utf8') };
    const choices = readHellaswag({ data, chat: false, cutToFit: text => text }).slice(0, ITEMS);
    const file = await openModelFile(modelPath);
    const items = choices.map(choice => encodeChoice(file, choice));
    const script = fileURLToPath(new URL('./support/llama-choices.mjs', import.meta.url));
    const { stdout, stderr } = spawnSync(process.execPath, [script, modelPath], {
      input: JSON.stringify(items),
      encoding: 'utf8',
      maxBuffer: 2 ** 28,
    });
    expect(stdout, stderr).not.toBe('');
    const expected = (JSON.parse(stdout) as number[][][]).map(endings => endings.map(mean));

    const [plan, context] = [createPlan(F16, planShape(file)), Math.max(...items.map(choiceTokens))];
    const engine = await loadEngine(file, { plan, context, kvMemory: 'auto' }, { device: 'wasm', precise: true });
    const cache = engine.openCache(plan, { context, capacity: engine.kvMemory });
    for (const [i, item] of items.entries()) {
      const [endings] = (await endingLogProbs(engine, cache, [item]))!;
      const means = endings.map(mean);
      for (const [e, value] of means.entries()) expect(Math.abs(value - expected[i][e])).toBeLessThan(MAX_DIFFERENCE);
      const chosen = best(means);
      expect(Math.max(...expected[i]) - expected[i][chosen]).toBeLessThan(TIE);
    }
    cache.dispose();
    await engine.dispose();
  });
});
