import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { writeGguf } from '../../test/support/gguf-writer.ts';
import { SMALLEST, tinyModel } from '../../test/support/tiny-model.ts';
import { parseSpec } from '../codec/spec.ts';
import { type Engine, loadEngine, openModelFile, planShape } from '../engine/engine.ts';
import { type EvaluateOptions, type EvaluationWork, evaluate, evaluateNeedle } from '../eval.ts';
import { createPlan } from '../plan/plan.ts';
import { InputError, SpecError } from '../util/errors.ts';
import { measureDivergence } from './divergence.ts';
import { mimirPath } from './needle/demo.ts';

const model = new Blob([writeGguf(tinyModel(SMALLEST))]);
const text = 'The mead of poetry was brewed from honey and the blood of Kvasir, the wisest of all beings. '.repeat(20);
const options = {
  text,
  kv: ['tq2', 'tq4'],
  context: 160,
  from: 130,
  rows: 2,
  skipRows: 1,
  device: 'js',
} satisfies EvaluateOptions;

describe('evaluate', () => {
  let engine: Engine;
  beforeAll(async () => {
    const file = await openModelFile(model);
    engine = await loadEngine(
      file,
      { plan: createPlan(parseSpec('f16'), planShape(file)), context: 160 },
      { device: 'js' },
    );
  });
  afterAll(() => engine.dispose());

  it('measures what measureDivergence does, and reports the work, the progress and the breakdown', async () => {
    const work: EvaluationWork[] = [];
    const progress: number[] = [];
    const result = await evaluate(model, {
      ...options,
      breakdown: true,
      onStart: started => work.push(started),
      onProgress: ({ done, total }) => progress.push(done / total),
    });
    const plans = options.kv.map(spec => createPlan(parseSpec(spec), engine.config));
    const ids = engine.tokenizer.encode(text);
    const rows = await measureDivergence(engine, ids, { plans, context: 160, from: 130, rows: 2, skipRows: 1 });
    expect(result.rows).toEqual(rows);
    expect(result.rows.map(({ kv, tokens }) => [kv, tokens])).toEqual([
      ['f16', 58],
      ['tq2', 58],
      ['tq4', 58],
    ]);
    expect(result.rows[1].kld).toBeGreaterThan(result.rows[2].kld);
    expect(result).toMatchObject({ model: 'tiny llama', device: expect.stringMatching(/^js/), profile: undefined });
    expect(work).toEqual([{ rows: 2, availableRows: Math.floor(text.length / 160) - 1 }]);
    expect(progress.at(-1)).toBe(1);
    const { positions } = result.breakdowns!.get('tq2')!;
    expect(positions.reduce((sum, { kld, tokens }) => sum + kld * tokens, 0) / 58).toBeCloseTo(rows[1].kld, 9);
  });

  it('returns what was measured when the signal aborts it', async () => {
    const stop = new AbortController();
    const onProgress = ({ done, total }: { done: number; total: number }) => 2 * done > total && stop.abort();
    const { rows } = await evaluate(model, { ...options, signal: stop.signal, onProgress });
    expect(rows.map(({ tokens }) => tokens)).toEqual([29, 29, 29]);
  });

  it('counts the caches of all codecs before it begins', async () => {
    const short = evaluate(model, { ...options, kv: ['tq4', 'f16', 'tq2'], memoryLimit: 1000 });
    await expect(short).rejects.toThrow(/tokens of f16, tq4, tq2, scratch/);
  });

  it('rejects with the reason of a signal that aborts it while the model is loaded', async () => {
    const reason = new Error('stop here');
    await expect(evaluate(model, { ...options, signal: AbortSignal.abort(reason) })).rejects.toBe(reason);
  });

  it.each<[object, RegExp]>([
    [{ context: 1 }, /^context must be an integer, 2 or more; got the number 1/],
    [{ chunks: 2 }, /evaluate has no option chunks/],
    [{ rows: 'some' }, /^rows must be an integer, 1 or more/],
    [{ kv: [] }, /^kv must be an array of codec specs; got an empty array/],
    [{ text: undefined }, /^text must be a string; got undefined/],
    [{ rows: 50 }, /were requested\. Use a longer text/],
  ])('refuses %j', async (wrong, message) => {
    const invalid = { ...options, ...wrong } as EvaluateOptions;
    await expect(evaluate(model, invalid)).rejects.toThrow(InputError);
    await expect(evaluate(model, invalid)).rejects.toThrow(message);
  });

  it('compares the presets with f16, if no codecs are given', async () => {
    const { rows } = await evaluate(model, { ...options, kv: undefined, rows: 1 });
    // Heads of 16 dims are no whole block of q8_0, so that safe is f16 here.
    expect(rows.map(({ kv }) => kv)).toEqual(['f16', 'tq4', 'tq3']);
  });

  it('refuses an unknown codec', async () => {
    await expect(evaluate(model, { ...options, kv: ['tq9'] })).rejects.toThrow(SpecError);
  });
});

it('evaluateNeedle counts the facts that a model retrieves', async () => {
  const options = { kv: ['tq4'], lengths: [200], depths: 2, documents: 1, threads: 1 };
  const { rows, match, model } = await evaluateNeedle(mimirPath, { ...options, device: 'wasm' });
  expect([match, model]).toEqual(['exact', 'Mimir']);
  expect(rows).toMatchObject([{ kv: 'tq4', right: 2, asked: 2, cells: [{ depth: 0.25 }, { depth: 0.75 }] }]);
});
