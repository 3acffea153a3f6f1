/** Facts asked of Mimir: each question on its own, the same on both devices, and counted where it belongs. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type Engine, loadEngine, openModelFile, planShape } from '../../engine/engine.ts';
import type { DeviceName } from '../../kernel/open.ts';
import { type Plan, planOf } from '../../plan/plan.ts';
import { type Answer, isRight, makeTask, matchOf, openAsker, type Task } from './ask.ts';
import { mimirPath } from './demo.ts';
import { evenDepths, readGrammar } from './document.ts';
import { measureNeedle, type NeedleOptions } from './run.ts';

const grammar = await readGrammar();

async function open(device: DeviceName, specs: readonly string[]): Promise<{ engine: Engine; plans: Plan[] }> {
  const file = await openModelFile(mimirPath);
  const plans = specs.map(spec => planOf(spec, planShape(file)));
  return { engine: await loadEngine(file, { plan: plans[0]!, context: 1024 }, { device, precise: true }), plans };
}

async function askAll(engine: Engine, plan: Plan, task: Task, order = task.questions): Promise<Answer[]> {
  const asker = openAsker(engine, plan, task);
  const answers: Answer[] = [];
  await asker.read({});
  for (const question of order) answers.push((await asker.ask(question))!);
  asker.dispose();
  return answers;
}

describe('what counts as right', () => {
  it('is the words alone for Mimir, and the words somewhere for others', () => {
    expect([matchOf('Mimir'), matchOf('SmolLM2 135M Instruct')]).toEqual(['exact', 'contains']);
    const said = (text: string, finish: 'stop' | 'length' = 'stop') => ({ text, finish });
    expect(isRight('exact', said(' 4817'), '4817')).toBe(true);
    expect(isRight('exact', said(' 4817', 'length'), '4817')).toBe(false);
    expect(isRight('exact', said(' 4817.'), '4817')).toBe(false);
    expect(isRight('contains', said('It belongs to **Ada**.', 'length'), 'Ada')).toBe(true);
    expect(isRight('contains', said('The code is 48172.'), '4817')).toBe(false);
  });
});

describe('asking on wasm', () => {
  let engine: Engine;
  let plans: Plan[];
  beforeAll(async () => {
    ({ engine, plans } = await open('wasm', ['f16', 'tq2', 'tq4+recent100']));
  });
  afterAll(() => engine.dispose());

  it('leaves the last page room for question and answer, whatever the window', () => {
    for (let seed = 1; seed <= 8; seed++) {
      const { shared, context, questions } = makeTask(engine, grammar, { seed, tokens: 400, depths: [0.5] }, plans);
      for (const { pageTokens, window } of plans)
        expect(((shared - 1 - window.recent) % pageTokens) + context - shared).toBeLessThan(pageTokens);
      expect(questions[0]!.prompt.length).toBeLessThan(context);
    }
  });

  it('gives every answer as if it were the only one', async () => {
    const task = makeTask(engine, grammar, { seed: 3, tokens: 300, depths: evenDepths(4) }, plans);
    for (const plan of plans.slice(1)) {
      const forth = await askAll(engine, plan, task);
      const back = await askAll(engine, plan, task, task.questions.toReversed());
      const said = (answers: Answer[]) => answers.map(({ said }) => said);
      expect(said(back.toReversed())).toEqual(said(forth));
    }
  });

  it('counts by length and depth, as far as it came', async () => {
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
    const some = await measure(50, ({ done }) => {
      // In the middle of the second document, read through the first cache.
      if (done > 400) stop.abort();
    });
    expect(some[0]!.asked).toBeLessThan(4);
  });

  it('refuses documents beyond the model', async () => {
    const tooLong = { plans, lengths: [9000], depths: 1, documents: 1, seed: 1 };
    await expect(measureNeedle(engine, tooLong)).rejects.toThrow('made for 8,192');
  });

  it('says the same on js', async () => {
    const js = await open('js', ['tq4']);
    const task = makeTask(js.engine, grammar, { seed: 5, tokens: 150, depths: evenDepths(2) }, js.plans);
    const said = async (on: Engine) => (await askAll(on, js.plans[0]!, task)).map(({ said }) => said);
    expect(await said(engine)).toEqual(await said(js.engine));
    expect(task.shared).toBeGreaterThan(128);
    await js.engine.dispose();
  });
});
