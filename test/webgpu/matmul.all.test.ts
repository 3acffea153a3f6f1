/** Matrix products of the webgpu device against dequantized weights: every weight type, bias and accumulation, any batch. */
import { expect, it } from 'vitest';
import { createRandom, normals } from '../../src/codec/parts/random.ts';
import { dequantize } from '../../src/kernel/weights/dequantize.ts';
import { isQuantized } from '../../src/kernel/weights/split.ts';
import { type WeightType, weightTypes } from '../../src/kernel/weights/types.ts';
import { relativeError } from '../support/attention.ts';
import { ALL_CASES, LONG_CASES, matrix } from '../support/matrix.ts';
import { randomWeights } from '../support/quantize.ts';
import { seeded } from '../support/random.ts';
import { describeGpu, openWebGpu } from './gpu.ts';

/** Maximum relative error of a row: int8 activations, f32 activations, and weights that are floats. */
const INT8_MATMUL = 0.012;
/** K-quants round products of scales to f16, and a minimum adds about as much as a scale. */
const PRECISE_MATMUL = 7e-4;
const FLOAT = 2e-5;

const isFloat = (type: WeightType) => !isQuantized(type);
/** Float weights have float activations in either mode. */
const CASES = weightTypes.flatMap(type => [
  [type, 'int8'] as const,
  ...(isFloat(type) && !LONG_CASES ? [] : [[type, 'precise'] as const]),
]);

/** engine.test.ts has weights that are floats. */
const REPRESENTATIVES = {
  'Q4_0, int8': 'nibbles, one scale per block',
  'Q4_K, precise': 'super-blocks with packed scales and minima',
};

describeGpu('matrix products', () => {
  it.each(matrix(CASES, REPRESENTATIVES, ([type, mode]) => `${type}, ${mode}`))(
    '%s weights, %s: like dequantized floats',
    async (type, mode) => {
      const precise = mode === 'precise';
      // `npm run test:all`: one type with the tiles of a real GPU, which SwiftShader compiles slowly.
      const device = await openWebGpu({ precise, unroll: ALL_CASES && type === 'Q4_1' && !precise ? 4 : undefined });
      const [rows, cols, batch] = [37, 256, 20];
      const bytes = randomWeights(type, rows * cols, 0.1, seeded(3));
      const weights = await device.loadWeights(type, rows, cols, async into => into.set(bytes));
      const exact = new Float32Array(rows * cols);
      dequantize(type, bytes, exact);
      const x = normals(createRandom(5), batch * cols);
      const bias = normals(createRandom(6), rows);
      const biasTensor = device.createTensor(1, rows);
      device.writeRows(biasTensor, 0, bias);
      /** The product of rows [first, first + count) as a batch. */
      const product = async (first: number, count: number) => {
        const [input, out] = [device.createTensor(count, cols), device.createTensor(count, rows)];
        device.writeRows(input, 0, x.slice(first * cols, (first + count) * cols));
        device.project(input, count, [{ weights, out, bias: biasTensor }]);
        device.project(input, count, [{ weights, out, accumulate: true }]);
        return Promise.all(Array.from({ length: count }, (_, r) => device.readRows(out, r)));
      };
      const all = await product(0, batch);
      const tolerance = isFloat(type) ? FLOAT : precise ? PRECISE_MATMUL : INT8_MATMUL;
      all.forEach((row, r) => {
        const expected = Float32Array.from({ length: rows }, (_, o) => {
          let sum = 0;
          for (let i = 0; i < cols; i++) sum += x[r * cols + i] * exact[o * cols + i];
          return 2 * sum + bias[o];
        });
        expect(relativeError(row, expected)).toBeLessThan(tolerance);
      });
      // A row's bits do not depend on the batch: GEMM tiles, a few rows together, one row alone.
      expect(await product(3, 6)).toEqual(all.slice(3, 9));
      expect(await product(7, 1)).toEqual(all.slice(7, 8));
    },
  );

  it('a matrix larger than the maximum binding is split over several buffers', async () => {
    const [rows, cols] = [40, 512];
    const bytes = randomWeights('Q8_0', rows * cols, 0.1, seeded(8));
    const results = await Promise.all(
      [{}, { limits: { binding: 32 * cols } }].map(async options => {
        const device = await openWebGpu(options);
        const weights = await device.loadWeights('Q8_0', rows, cols, async into => into.set(bytes));
        const [input, out] = [device.createTensor(3, cols), device.createTensor(3, rows)];
        device.embed(weights, [39, 0, 17], input);
        device.project(input, 3, [{ weights, out }]);
        return Promise.all([device.readRows(input, 0), device.readRows(input, 2), device.readRows(out, 1)]);
      }),
    );
    expect(results[1]).toEqual(results[0]);
    const exact = new Float32Array(rows * cols);
    dequantize('Q8_0', bytes, exact);
    expect(results[0][0]).toEqual(exact.slice(39 * cols));
    expect(results[0][1]).toEqual(exact.slice(17 * cols, 18 * cols));
  });
});
