/**
 * Adding int8 products in 32 bits by one instruction gives the same bits as adding them in 16 bits, and so do tiles for
 * vectors of 256 bits: in projections by every weight type, and in attention on integer codes.
 */
import { setFlagsFromString } from 'node:v8';
import { describe, expect, it } from 'vitest';
import { createRandom, normals } from '../../src/codec/parts/random.ts';
import { wasmSupport } from '../../src/kernel/wasm/support.ts';
import { isQuantized } from '../../src/kernel/weights/split.ts';
import { weightTypes } from '../../src/kernel/weights/types.ts';
import { runAttention } from '../support/attention.ts';
import { hashOf } from '../support/hash.ts';
import { matrix } from '../support/matrix.ts';
import { randomWeights } from '../support/quantize.ts';
import { seeded } from '../support/random.ts';
import { shareWasm } from '../wasm/shared-devices.ts';

const wasm = shareWasm();

// Where the engine composes the instruction of several, only the optimizing compiler is known to do it right.
if (!wasmSupport().dotAdd) setFlagsFromString('--no-liftoff');

const PLAIN = { dotAdd: false, wide: false };
const VARIANTS = [{ dotAdd: true }, { wide: true }, { dotAdd: true, wide: true }];

/** With zeros, and blocks of equal values: the largest sums of either sign. */
function activations(rows: number, cols: number): Float32Array {
  const x = normals(createRandom(5), rows * cols);
  return x.map((value, i) => (i % cols < 32 ? 1 : i % cols < 64 ? -1 : i % 7 === 0 ? 0 : value));
}

describe.each(weightTypes.filter(isQuantized))('%s', type => {
  // One row, parts of a tile of activations, several panels of weights, several strips of activations.
  it.each([
    [1, 37, 512],
    [2, 37, 512],
    [7, 6, 256],
    [25, 6, 2560],
    [259, 6, 256],
    [5, 1, 256],
    [6, 19, 256],
  ])('%i rows times %i x %i weights', async (batch, rows, cols) => {
    const bytes = randomWeights(type, rows * cols, 0.1, seeded(3));
    const x = activations(batch, cols);
    const [expected, ...actual] = await Promise.all(
      [{}, ...VARIANTS].map(async variant => {
        const device = await wasm({ ...PLAIN, ...variant });
        const weights = await device.loadWeights(type, rows, cols, async into => into.set(bytes));
        const [input, out] = [device.createTensor(batch, cols), device.createTensor(batch, rows)];
        device.writeRows(input, 0, x);
        device.project(input, batch, [{ weights, out }]);
        return device.readRows(out, 0, batch);
      }),
    );
    for (const variant of actual) expect(variant.findIndex((value, i) => !Object.is(value, expected[i]))).toBe(-1);
  });
});

it.each(
  matrix(
    [
      'tq4 128',
      'tq4 64',
      'tq3 64',
      'tq4-raw 32',
      'tq4/tq2 64',
      'tq3/tq1 64',
      'tq4u 64',
      'tq2u 64',
      'kivi2g32 64',
      'mead2 64',
      'f16 64',
      'fp8 40',
    ],
    {
      'tq4 128': 'levels from tables; two parts per row',
      'tq4/tq2 64': 'values in pairs of dims',
      'tq2u 64': 'plain codes',
      'f16 64': 'tiles of floats',
    },
  ),
)('attention on %s dims', async setting => {
  const [spec, dims] = setting.split(' ');
  const shape = { headDim: Number(dims), heads: 6 };
  const [expected, ...actual] = await Promise.all(
    [{}, ...VARIANTS].map(async variant => {
      const device = await wasm({ ...PLAIN, ...variant, ...shape });
      // Tiles of rows in passes, rows that are left over, and few rows.
      return hashOf(await runAttention(device, { spec, ...shape }, [279, 22, 9, 1]));
    }),
  );
  for (const hash of actual) expect(hash).toEqual(expected);
});
