/** Mixtures of experts on the wasm device, against the js device. */
import { describe, expect, it } from 'vitest';
import { createJsDevice } from '../../src/kernel/js/device.ts';
import { weightTypes } from '../../src/kernel/weights/types.ts';
import { relativeError } from '../support/attention.ts';
import { type ExpertShape, loadExperts } from '../support/experts.ts';
import { shareWasm } from './shared-devices.ts';

const wasm = shareWasm();
const SHAPE: ExpertShape = { type: 'Q4_0', count: 7, used: 3, width: 256, inner: 256, bias: true };
const ROWS = 23;

/** The result of all rows at once, and the largest error of a row. */
async function compare(shape: ExpertShape, options: Parameters<typeof wasm>[0]) {
  const run = await loadExperts(await wasm(options), shape);
  const [rows, expected] = [await run(0, ROWS), await (await loadExperts(createJsDevice(), shape))(0, ROWS)];
  const error = Math.max(...rows.map((row, r) => relativeError(row, expected[r])));
  return { run, rows, error };
}

describe('experts', () => {
  it.each(weightTypes)('with %s weights: like js, and the same bits alone and in a batch', async type => {
    const { run, rows, error } = await compare({ ...SHAPE, type }, { precise: false });
    expect(error).toBeLessThan(/^[FB]/.test(type) ? 2e-5 : 0.02);
    expect(await run(5, 6)).toEqual([rows[5]]);
    expect(await run(20, 23)).toEqual(rows.slice(20));
  });

  it.each<[string, Partial<ExpertShape>]>([
    ['weights that do not add up to 1', { rule: { normalized: false } }],
    ['weights of their own', { rule: { scores: 'sigmoid', normalized: false } }],
    ['sigmoids of biased choices', { rule: { scores: 'sigmoid', scale: 2.5 }, selectionBias: true }],
    ['the best groups', { count: 12, rule: { scores: 'sigmoid', groups: { count: 4, used: 2 } }, selectionBias: true }],
    ['one expert per row', { used: 1 }],
    ['all experts', { used: 7 }],
    ['a single expert', { count: 1, used: 1 }],
    ['odd sizes', { type: 'F32', width: 36, inner: 20, count: 5, used: 2 }],
    ['no biases', { bias: false }],
  ])('%s', async (_, shape) => {
    const { error } = await compare({ ...SHAPE, ...shape }, { precise: true });
    expect(error).toBeLessThan(5e-4);
  });

  it('in other memories than the main one', async () => {
    // 4 MiB per memory, of which a quarter is for other data.
    const shape: ExpertShape = { ...SHAPE, count: 32, type: 'Q8_0' };
    const [small, large] = [await compare(shape, { maxPages: 64 }), await compare(shape, {})];
    expect((await wasm({ maxPages: 64 })).allocatedBytes).toBeGreaterThan(64 * 65536);
    expect(small.rows).toEqual(large.rows);
  });
});
