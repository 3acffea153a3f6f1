/**
 * Matrix products by emulated subgroup matrices against dequantized weights: prompt rows, and decoded rows without
 * `batchInvariant`; split sums, several matrices in one dispatch, odd shapes.
 */
import { afterAll, expect, it } from 'vitest';
import { createRandom, normals } from '../../src/codec/parts/random.ts';
import type { WebGpuDevice } from '../../src/kernel/webgpu/device.ts';
import { dequantize } from '../../src/kernel/weights/dequantize.ts';
import type { WeightType } from '../../src/kernel/weights/types.ts';
import { relativeError } from '../support/attention.ts';
import { matrix } from '../support/matrix.ts';
import { randomWeights } from '../support/quantize.ts';
import { seeded } from '../support/random.ts';
import { openWithMatrices } from './emulated-matrices.ts';
import { describeGpu } from './gpu.ts';

/** Relative error of a row: weights and activations are rounded to f16. */
const TOLERANCE = 1e-3;

const TYPES: readonly WeightType[] = ['Q4_0', 'Q4_1', 'Q8_0', 'Q6_K', 'Q2_K'];

const devices = new Map<boolean, Promise<WebGpuDevice>>();
const open = (batchInvariant: boolean) => {
  const device = devices.get(batchInvariant) ?? openWithMatrices({ batchInvariant });
  devices.set(batchInvariant, device);
  return device;
};
afterAll(async () => {
  for (const device of devices.values()) await (await device).dispose();
});

/** The products of `rows` rows by random matrices of these sizes, as the device and as f64 compute them. */
async function products(
  device: WebGpuDevice,
  {
    type,
    cols,
    outs,
    rows,
    prompts = 0,
    bias = false,
    accumulate = false,
  }: {
    type: WeightType;
    cols: number;
    outs: number[];
    rows: number;
    prompts?: number;
    bias?: boolean;
    accumulate?: boolean;
  },
) {
  const x = normals(createRandom(5), rows * cols);
  const input = device.createTensor(rows, cols);
  device.writeRows(input, 0, x);
  const expected: Float32Array[][] = [];
  const projections = await Promise.all(
    outs.map(async (n, i) => {
      const bytes = randomWeights(type, n * cols, 0.1, seeded(3 + i));
      const exact = new Float32Array(n * cols);
      dequantize(type, bytes, exact);
      const biases = normals(createRandom(6), n);
      const [out, biasTensor] = [device.createTensor(rows, n), device.createTensor(1, n)];
      device.writeRows(biasTensor, 0, biases);
      const before = normals(createRandom(7), rows * n);
      device.writeRows(out, 0, before);
      expected[i] = Array.from({ length: rows }, (_, r) =>
        Float32Array.from({ length: n }, (_, o) => {
          let sum = (bias ? biases[o] : 0) + (accumulate ? before[r * n + o] : 0);
          for (let c = 0; c < cols; c++) sum += x[r * cols + c] * exact[o * cols + c];
          return sum;
        }),
      );
      const weights = await device.loadWeights(type, n, cols, async into => into.set(bytes));
      return { weights, out, accumulate, bias: bias ? biasTensor : undefined };
    }),
  );
  device.project(input, rows, projections, prompts);
  const found = await Promise.all(
    projections.map(({ out }) => Promise.all(Array.from({ length: rows }, (_, r) => device.readRows(out, r)))),
  );
  return { found, expected };
}

const expectNear = ({ found, expected }: Awaited<ReturnType<typeof products>>, rows: readonly number[]) => {
  found.forEach((product, i) => {
    for (const r of rows) expect(relativeError(product[r], expected[i][r])).toBeLessThan(TOLERANCE);
  });
};
const upTo = (n: number) => Array.from({ length: n }, (_, i) => i);

describeGpu('products by subgroup matrices (emulated)', () => {
  it.each(matrix(TYPES, { Q4_1: 'scales and minima' }))('%s: decoded rows, split and added', async type => {
    const device = await open(false);
    expectNear(
      await products(device, { type, cols: 1280, outs: [37], rows: 18, bias: true, accumulate: true }),
      upTo(18),
    );
  });

  const SHAPES: [string, { cols: number; outs: number[]; rows: number; prompts?: number }][] = [
    ['an odd number of blocks', { cols: 1056, outs: [130], rows: 17 }],
    ['too few blocks to split', { cols: 96, outs: [40], rows: 33 }],
    ['more rows than a tile', { cols: 512, outs: [33], rows: 70 }],
    ['three matrices', { cols: 544, outs: [160, 33, 129], rows: 50 }],
    ['decoded rows before a prompt', { cols: 512, outs: [64, 32], rows: 5, prompts: 3 }],
  ];
  const REPRESENTATIVES = {
    'decoded rows before a prompt': 'two matrices, and rows of two kinds',
  };
  it.each(matrix(SHAPES, REPRESENTATIVES, ([name]) => name))('decoded rows: %s', async (_, shape) => {
    const device = await open(false);
    expectNear(await products(device, { type: 'Q4_1', ...shape }), upTo(shape.rows));
  });

  it('prompt rows have the same bits in any batch', async () => {
    const shape = { type: 'Q4_1' as const, cols: 96, outs: [40, 33], rows: 21 };
    const device = await open(true);
    const all = await products(device, { ...shape, prompts: 21 });
    expectNear(all, upTo(21));
    const last = await products(device, { ...shape, prompts: 2 });
    expectNear(last, [19, 20]);
    for (const [i, product] of last.found.entries()) expect(product.slice(19)).toEqual(all.found[i].slice(19));
  });

  it('decoded rows use int8 by default, and with batchInvariant: false if they are few', async () => {
    const shape = { type: 'Q4_1' as const, cols: 512, outs: [40], rows: 18 };
    const [byInt8, byMatrices] = await Promise.all([true, false].map(async one => products(await open(one), shape)));
    expect(relativeError(byInt8.found[0][0], byInt8.expected[0][0])).toBeGreaterThan(TOLERANCE);
    expectNear(byMatrices, upTo(18));
    const few = { ...shape, rows: 2 };
    const [one, other] = await Promise.all([true, false].map(async mode => products(await open(mode), few)));
    expect(one.found).toEqual(other.found);
  });

  it('the arithmetic names it, since pages depend on it', async () => {
    const [invariant, other] = await Promise.all([open(true), open(false)]);
    expect(invariant.arithmetic).not.toContain('batchInvariant');
    expect(other.arithmetic).toContain('"batchInvariant":false');
  });
});
