/** Attention within windows, and with capped scores: js against its definition, wasm against js. */
import { describe, expect, it } from 'vitest';
import { createJsDevice } from '../../src/kernel/js/device.ts';
import { relativeError, runAttention } from '../support/attention.ts';
import { matrix } from '../support/matrix.ts';
import { CAPPED, expectSameBits, expectWindowsLikeJs, SHAPE } from '../support/windows.ts';
import { shareWasm } from './shared-devices.ts';

const wasm = shareWasm();

/** Plain attention of one head on exact keys and values. */
function plainAttention(
  { queries, keys, values }: Awaited<ReturnType<typeof runAttention>>,
  row: number,
  head: number,
  window: number,
): Float32Array {
  const { headDim, heads, kvHeads } = SHAPE;
  const vector = (x: Float32Array, count: number, token: number, head: number) =>
    x.subarray((token * count + head) * headDim, (token * count + head + 1) * headDim);
  const kvHead = Math.floor((head * kvHeads) / heads);
  const query = vector(queries, heads, row, head);
  const tokens = Array.from({ length: row + 1 }, (_, n) => n).filter(n => n > row - window);
  const weights = tokens.map(n => {
    const score = vector(keys, kvHeads, n, kvHead).reduce((sum, x, i) => sum + x * query[i], 0);
    const scaled = (CAPPED.scale * score) / Math.sqrt(headDim);
    return Math.exp(CAPPED.softcap * Math.tanh(scaled / CAPPED.softcap));
  });
  const total = weights.reduce((a, b) => a + b);
  return Float32Array.from({ length: headDim }, (_, i) =>
    tokens.reduce((sum, n, t) => sum + (weights[t] / total) * vector(values, kvHeads, n, kvHead)[i], 0),
  );
}

describe('js', () => {
  it.each(['f16', 'f16/f16+sink7'])('is attention to the last tokens: %s', async spec => {
    const window = 45;
    const result = await runAttention(createJsDevice(), { ...SHAPE, spec }, [30, 100, 1], { ...CAPPED, window });
    for (const row of [0, 44, 45, 96, 130])
      for (const head of [0, 5]) {
        const { headDim } = SHAPE;
        const found = result.outputs[row].subarray(head * headDim, (head + 1) * headDim);
        expect(relativeError(found, plainAttention(result, row, head, window))).toBeLessThan(2e-3);
      }
  });
});

it('js includes sink logits in the softmax', async () => {
  const sinkLogits = [-1e9, 0, 1, 2, 3, 30];
  const run = (options: Parameters<typeof runAttention>[3]) =>
    runAttention(createJsDevice(), { ...SHAPE, spec: 'f16' }, [3], options);
  const [{ outputs, queries, keys }, { outputs: without }] = [await run({ sinkLogits }), await run({})];
  const { headDim } = SHAPE;
  // The first row sees one token, whose weight is 1 without sinks.
  sinkLogits.forEach((logit, head) => {
    const [query, key] = [queries.subarray(head * headDim), keys.subarray(Math.floor(head / 3) * headDim)];
    const score = Array.from({ length: headDim }, (_, i) => query[i] * key[i]).reduce((a, b) => a + b);
    const weight = 1 / (1 + Math.exp(logit - score / Math.sqrt(headDim)));
    const [found, full] = [outputs[0], without[0]].map(row => row.subarray(head * headDim, (head + 1) * headDim));
    for (let i = 0; i < headDim; i++) expect(found[i]).toBeCloseTo(weight * full[i], 3);
  });
});

describe('wasm', () => {
  const CASES = [
    ['f16', 1e-3],
    ['tq4', 3e-2],
    ['tq4+sink9+recent20', 3e-2],
    ['kivi2g32', 3e-2],
    ['mead2u', 4e-2],
  ] as const;
  const reasons = { f16: 'rows of f16', 'tq4+sink9+recent20': 'codes, sinks, a tail', mead2u: 'page-relative keys' };
  it.each(matrix(CASES, reasons, ([spec]) => spec))('is like js: %s', async (spec, tolerance) => {
    await expectWindowsLikeJs(await wasm(SHAPE), { spec }, tolerance);
  });

  it('is like js with precise arithmetic', async () => {
    await expectWindowsLikeJs(await wasm({ ...SHAPE, precise: true }), { spec: 'tq4' }, 1e-4);
  });

  it.each(matrix(['f16', 'tq4+sink9', 'mead2u'], { 'tq4+sink9': 'codes and sinks' }))(
    'does not depend on chunks: %s',
    async spec => {
      const device = await wasm(SHAPE);
      for (const window of [7, 33]) await expectSameBits(device, { spec }, { window });
      await expectSameBits(device, { spec }, { ...CAPPED, window: 50 });
    },
  );
});
