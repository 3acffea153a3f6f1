/** Questions about planted facts: independent of each other, equal on all devices, counted by length and depth. */

import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { itAll } from '../../../test/support/matrix.ts';
import { parseSpec } from '../../codec/spec.ts';
import { type Engine, loadEngine, openModelFile, planShape } from '../../engine/engine.ts';
import type { DeviceName } from '../../kernel/open.ts';
import { createPlan, type Plan } from '../../plan/plan.ts';
import { mimirPath } from './demo.ts';
import { evenDepths, readGrammar } from './document.ts';
import { measureNeedle, type NeedleOptions } from './measure.ts';
import {
  createNeedleTask,
  isCorrect,
  matchFor,
  type NeedleTask,
  openDocumentSession,
  type QuestionAnswer,
} from './questions.ts';

const grammar = await readGrammar();

async function open(device: DeviceName, specs: readonly string[]): Promise<{ engine: Engine; plans: Plan[] }> {
  const file = await openModelFile(mimirPath);
  const plans = specs.map(spec => createPlan(parseSpec(spec), planShape(file)));
  return { engine: await loadEngine(file, { plan: plans[0]!, context: 1024 }, { device, precise: true }), plans };
}

async function askAll(engine: Engine, plan: Plan, task: NeedleTask, order = task.questions): Promise<QuestionAnswer[]> {
  const session = openDocumentSession(engine, plan, task);
  const answers: QuestionAnswer[] = [];
  await session.read({});
  for (const question of order) answers.push((await session.ask(question))!);
  session.dispose();
  return answers;
}

describe('a correct answer', () => {
  it('equals the expected words for Mimir, and contains them for other models', () => {
    expect([matchFor('Mimir'), matchFor('SmolLM2 135M Instruct')]).toEqual(['exact', 'contains']);
    const result = (text: string, finish: 'stop' | 'length' = 'stop') => ({ text, finish });
    expect(isCorrect('exact', result(' 4817'), '4817')).toBe(true);
    expect(isCorrect('exact', result(' 4817', 'length'), '4817')).toBe(false);
    expect(isCorrect('exact', result(' 4817.'), '4817')).toBe(false);
    expect(isCorrect('contains', result('It belongs to **Ada**.', 'length'), 'Ada')).toBe(true);
    expect(isCorrect('contains', result('The code is 48172.'), '4817')).toBe(false);
  });
});

describe('questions on wasm', () => {
  let engine: Engine;
  let plans: Plan[];
  beforeAll(async () => {
    ({ engine, plans } = await open('wasm', ['f16', 'tq2', 'tq4+recent100']));
  });
  afterAll(() => engine.dispose());

  it('the last page has room for question and answer, with any window', () => {
    for (let seed = 1; seed <= 8; seed++) {
      const { shared, context, questions } = createNeedleTask(
        engine,
        grammar,
        { seed, tokens: 400, depths: [0.5] },
        plans,
      );
      for (const { pageTokens, window } of plans)
        expect(((shared - 1 - window.recent) % pageTokens) + context - shared).toBeLessThan(pageTokens);
      expect(questions[0]!.prompt.length).toBeLessThan(context);
    }
  });

  it('the answers do not depend on the order of the questions', async () => {
    const task = createNeedleTask(engine, grammar, { seed: 3, tokens: 300, depths: evenDepths(4) }, plans);
    for (const plan of plans.slice(1)) {
      const inOrder = await askAll(engine, plan, task);
      const reversed = await askAll(engine, plan, task, task.questions.toReversed());
      const texts = (answers: QuestionAnswer[]) => answers.map(({ said }) => said);
      expect(texts(reversed.toReversed())).toEqual(texts(inOrder));
    }
  });

  it('answers are counted by length and depth, up to an abort', async () => {
    const stop = new AbortController();
    const measure = (documents: number, onProgress?: NeedleOptions['onProgress']) =>
      measureNeedle(engine, {
        plans: plans.slice(0, 2),
        lengths: [200, 300],
        depths: 2,
        documents,
        seed: 1,
        signal: stop.signal,
        onProgress,
      });
    const rows = await measure(1);
    expect(rows.map(({ kv, asked }) => [kv, asked])).toEqual([
      ['f16', 4],
      ['tq2', 4],
    ]);
    expect(rows[0]!.right).toBe(4);
    expect(rows[0]!.cells.map(({ length, depth, asked }) => [length, depth, asked])).toEqual([
      [200, 0.25, 1],
      [200, 0.75, 1],
      [300, 0.25, 1],
      [300, 0.75, 1],
    ]);
    const partial = await measure(50, ({ done }) => {
      // In the middle of the second document, read through the first cache.
      if (done > 400) stop.abort();
    });
    expect(partial[0]!.asked).toBeLessThan(4);
  });

  it('documents longer than the context are rejected', async () => {
    const tooLong = { plans, lengths: [9000], depths: 1, documents: 1, seed: 1 };
    await expect(measureNeedle(engine, tooLong)).rejects.toThrow('trained for 8,192');
  });

  itAll('the answers are the same on js', async () => {
    const js = await open('js', ['tq4']);
    const task = createNeedleTask(js.engine, grammar, { seed: 5, tokens: 150, depths: evenDepths(2) }, js.plans);
    const texts = async (on: Engine) => (await askAll(on, js.plans[0]!, task)).map(({ said }) => said);
    expect(await texts(engine)).toEqual(await texts(js.engine));
    expect(task.shared).toBeGreaterThan(128);
    await js.engine.dispose();
  });
});
