/** The wasm device against the js device and plain sums, on random data: every weight type, odd sizes, small operations. */
import { beforeAll, describe, expect, it } from 'vitest';
import { createRandom, normals } from '../../src/codec/parts/random.ts';
import type { Device } from '../../src/kernel/device.ts';
import { createJsDevice } from '../../src/kernel/js/device.ts';
import { dequantize } from '../../src/kernel/weights/dequantize.ts';
import { isQuantized } from '../../src/kernel/weights/split.ts';
import { weightTypes } from '../../src/kernel/weights/types.ts';
import { relativeError, runSmallOperations } from '../support/attention.ts';
import { matrix } from '../support/matrix.ts';
import { randomWeights } from '../support/quantize.ts';
import { seeded } from '../support/random.ts';
import { shareWasm } from './shared-devices.ts';

const wasm = shareWasm();

/** Maximum relative error. */
const INT8_MATMUL = 0.012;
/** K-quants round products of scales to f16. */
const PRECISE_MATMUL = 5e-4;
const FLOAT = 2e-5;

/** Activations of the largest batch. */
const longRows = normals(createRandom(9), 263 * 2560);

describe.each([
  ['relaxed SIMD', { relaxed: true }, INT8_MATMUL],
  ['plain SIMD', { relaxed: false }, INT8_MATMUL],
  ['precise', { precise: true }, PRECISE_MATMUL],
])('%s', (_, options, tolerance) => {
  let device: Device;
  beforeAll(async () => {
    device = await wasm(options);
  });

  it.each(weightTypes)('multiplies %s weights', async type => {
    const random = seeded(3);
    const [rows, cols, batch] = [37, 512, 6];
    const bytes = randomWeights(type, rows * cols, 0.1, random);
    const weights = await device.loadWeights(type, rows, cols, async into => into.set(bytes));
    const exact = new Float32Array(rows * cols);
    dequantize(type, bytes, exact);
    const x = normals(createRandom(5), batch * cols);
    const bias = normals(createRandom(6), rows);
    const [input, biasTensor, out] = [
      device.createTensor(batch, cols),
      device.createTensor(1, rows),
      device.createTensor(batch, rows),
    ];
    device.writeRows(input, 0, x);
    device.writeRows(biasTensor, 0, bias);
    device.project(input, batch, [{ weights, out, bias: biasTensor }]);
    device.project(input, batch, [{ weights, out, accumulate: true }]);
    for (let r = 0; r < batch; r++) {
      const expected = Float32Array.from({ length: rows }, (_, o) => {
        let sum = 0;
        for (let i = 0; i < cols; i++) sum += x[r * cols + i] * exact[o * cols + i];
        return 2 * sum + bias[o];
      });
      expect(relativeError(await device.readRows(out, r), expected)).toBeLessThan(
        isQuantized(type) ? tolerance : FLOAT,
      );
    }
    // A row has the same bits alone and in a batch.
    const [alone, single] = [device.createTensor(1, cols), device.createTensor(1, rows)];
    device.copyRows(input, 5, alone, 0, 1);
    device.project(alone, 1, [{ weights, out: single, bias: biasTensor }]);
    device.project(alone, 1, [{ weights, out: single, accumulate: true }]);
    expect(await device.readRows(single, 0)).toEqual(await device.readRows(out, 5));
  });

  it.each(['Q4_1', 'Q2_K', 'Q6_K', 'Q8_0'] as const)('multiplies a large batch by long rows of %s', async type => {
    // More than a strip of activations and several panels of weights; rows of both ends of a strip and of a tile.
    const [rows, cols, batch] = [38, 2560, 263];
    const bytes = randomWeights(type, rows * cols, 0.1, seeded(8));
    const weights = await device.loadWeights(type, rows, cols, async into => into.set(bytes));
    const exact = new Float32Array(rows * cols);
    dequantize(type, bytes, exact);
    const x = longRows.subarray(0, batch * cols);
    const [input, out, alone, single] = [
      [batch, cols],
      [batch, rows],
      [1, cols],
      [1, rows],
    ].map(([r, c]) => device.createTensor(r, c));
    device.writeRows(input, 0, x);
    device.project(input, batch, [{ weights, out }]);
    for (const r of [0, 3, 255, 256, 259, 262]) {
      const expected = Float32Array.from({ length: rows }, (_, o) => {
        let sum = 0;
        for (let i = 0; i < cols; i++) sum += x[r * cols + i] * exact[o * cols + i];
        return sum;
      });
      expect(relativeError(await device.readRows(out, r), expected)).toBeLessThan(tolerance);
      device.copyRows(input, r, alone, 0, 1);
      device.project(alone, 1, [{ weights, out: single }]);
      expect(await device.readRows(single, 0)).toEqual(await device.readRows(out, r));
    }
  });

  it('reads rows of an embedding', async () => {
    const bytes = randomWeights('Q8_0', 50 * 64, 1, seeded(4));
    const table = await device.loadWeights('Q8_0', 50, 64, async into => into.set(bytes));
    const exact = new Float32Array(50 * 64);
    dequantize('Q8_0', bytes, exact);
    const out = device.createTensor(2, 64);
    device.embed(table, [49, 3], out);
    expect(await device.readRows(out, 0)).toEqual(exact.slice(49 * 64));
    expect(await device.readRows(out, 1)).toEqual(exact.slice(3 * 64, 4 * 64));
  });

  it('RMS norm, RoPE, gates and copies: like js', async () => {
    expect(relativeError(await runSmallOperations(device), await runSmallOperations(createJsDevice()))).toBeLessThan(
      FLOAT,
    );
  });
});

const manyWeights = randomWeights('Q8_0', 1024 * 1024 + 8 * 32, 0.1, seeded(1));

it.each(matrix([1, 2], { 2: 'threads share the memories' }))(
  'weights larger than one memory continue in others, on %i threads',
  async threads => {
    // 4 MiB a memory, a quarter of it kept for the cache; each matrix takes 1.1 MB.
    const small = await wasm({ maxPages: 64, threads });
    const large = await wasm({ threads });
    const [rows, cols] = [1024, 1024];
    const x = normals(createRandom(7), 3 * cols);
    for (let n = 0; n < 8; n++) {
      // The same blocks, n places on: 34 bytes for 32 values.
      const bytes = manyWeights.subarray(34 * n, 34 * n + (34 / 32) * rows * cols);
      const outputs: Float32Array[] = [];
      for (const device of [small, large]) {
        const weights = await device.loadWeights('Q8_0', rows, cols, async into => into.set(bytes));
        const [input, bias, out] = [
          device.createTensor(3, cols),
          device.createTensor(1, rows),
          device.createTensor(3, rows),
        ];
        device.writeRows(input, 0, x);
        device.writeRows(bias, 0, x.slice(0, rows));
        device.project(input, 3, [{ weights, out, bias }]);
        device.project(input, 3, [{ weights, out, accumulate: true }]);
        device.embed(weights, [5], input);
        outputs.push(await device.readRows(out, 2), await device.readRows(input, 0));
        for (const tensor of [input, bias, out]) device.free(tensor);
      }
      expect(outputs[0]).toEqual(outputs[2]);
      expect(outputs[1]).toEqual(outputs[3]);
    }
    expect(small.allocatedBytes).toBeGreaterThan(64 * 65536);
  },
);
