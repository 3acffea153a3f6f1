/**
 * How fast are matrix products on the GPU, by shape and number of rows, for decoded rows (with and without
 * `batchInvariant`) and for prompt rows? In GPU time. Validates first: a row must have the same bits alone and in any
 * batch, and nearly the same values as a prompt row, or without `batchInvariant`.
 */
import { formatTable } from '../src/cli/table.ts';
import type { Tensor, Weights } from '../src/kernel/device.ts';
import { createWebGpuDevice, type WebGpuDevice } from '../src/kernel/webgpu/device.ts';
import { InputError } from '../src/util/errors.ts';

interface Options {
  /** Rows per product, a list. */
  rows: string;
  json: boolean;
}

const TRIES = 10;
const TYPE = 'Q4_K';
/**
 * Largest relative error of a row by subgroup matrices against the same row in int8. The random weights have a mean, so
 * the error is relative to less where the values of a row sum to about 0.
 */
const TOLERANCE = 0.04;
/** Weight rows x columns of Llama 8B: attention output, gate, down projection. */
const shapes: readonly (readonly [number, number])[] = [
  [4096, 4096],
  [14336, 4096],
  [4096, 14336],
];

/** Which rows are multiplied, and how. */
type Mode = 'decoded' | 'prompt' | 'decoded, not batch invariant';

interface Result {
  shape: string;
  rows: number;
  mode: Mode;
  us: number;
  gbs: number;
  tops: number;
}

export async function benchWebGpuMatmul({ rows, json }: Options): Promise<void> {
  const counts = rows.split(',').map(Number);
  const results: Result[] = [];
  let adapter = '';
  for (const batchInvariant of [true, false]) {
    const device = await createWebGpuDevice({ headDim: 128, heads: 32, kvHeads: 8, pageTokens: 128, batchInvariant });
    adapter = device.info.name;
    // Without subgroup matrices there is one mode.
    const other: readonly Mode[] = device.info.matrices ? ['prompt'] : [];
    const modes: readonly Mode[] = batchInvariant
      ? ['decoded', ...other]
      : other.map(() => 'decoded, not batch invariant');
    for (const [outs, cols] of modes.length > 0 ? shapes : []) {
      await validate(device, outs, cols, counts, batchInvariant);
      for (const mode of modes) {
        for (const rows of counts) {
          const us = await measure(device, outs, cols, rows, mode);
          // Nibbles, and two f16 per 32 of them.
          const gbs = (outs * cols * 0.625) / us / 1e3;
          results.push({ shape: `${outs} x ${cols}`, rows, mode, us, gbs, tops: (2 * rows * outs * cols) / us / 1e6 });
        }
      }
    }
    await device.dispose();
  }
  if (json) console.log(JSON.stringify({ adapter, results }, null, 1));
  else {
    const lines = results.map(({ shape, rows, mode, us, gbs, tops }) => [
      shape,
      String(rows),
      mode,
      us.toFixed(1),
      gbs.toFixed(0),
      tops.toFixed(2),
    ]);
    console.log(`Products of ${TYPE} weights on ${adapter}. Best of ${TRIES}.`);
    console.log(formatTable(['weights', 'rows', 'mode', 'us', 'GB/s of weights', 'TOPS'], lines));
  }
}

function random(device: WebGpuDevice, rows: number, cols: number) {
  const tensor = device.createTensor(rows, cols);
  device.writeRows(
    tensor,
    0,
    Float32Array.from({ length: rows * cols }, () => 2 * Math.random() - 1),
  );
  return tensor;
}

async function validate(
  device: WebGpuDevice,
  outs: number,
  cols: number,
  counts: readonly number[],
  batchInvariant: boolean,
): Promise<void> {
  const weights = device.randomWeights(TYPE, outs, cols);
  const maxRows = Math.max(...counts);
  const x = random(device, maxRows, cols);
  const [one, row] = [device.createTensor(1, outs), device.createTensor(1, cols)];
  for (const rows of counts) {
    const out = device.createTensor(rows, outs);
    device.project(x, rows, [{ weights, out }]);
    for (const r of [0, rows - 1]) {
      device.copyRows(x, r, row, 0, 1);
      device.project(row, 1, [{ weights, out: one }]);
      const [alone, together] = await Promise.all([device.readRows(one, 0), device.readRows(out, r)]);
      const error = relativeError(together, alone);
      if (!(batchInvariant ? error === 0 : error < TOLERANCE))
        throw new InputError(`row ${r} of ${rows}, ${outs} x ${cols}: relative error ${error} against the row alone.`);
    }
    if (batchInvariant) await validatePrompts(device, x, rows, weights, out);
    device.free(out);
  }
  for (const tensor of [x, one, row]) device.free(tensor);
}

/** Compares prompt rows with decoded rows (in `out`), and the last of them with itself alone. */
async function validatePrompts(device: WebGpuDevice, x: Tensor, rows: number, weights: Weights, out: Tensor) {
  const prompt = device.createTensor(rows, out.cols);
  const [row, one] = [device.createTensor(1, x.cols), device.createTensor(1, out.cols)];
  device.project(x, rows, [{ weights, out: prompt }], rows);
  device.copyRows(x, rows - 1, row, 0, 1);
  device.project(row, 1, [{ weights, out: one }], 1);
  const reads = [device.readRows(prompt, rows - 1), device.readRows(one, 0), device.readRows(out, rows - 1)];
  const [last, alone, written] = await Promise.all(reads);
  const error = relativeError(last, written);
  if (relativeError(last, alone) !== 0 || !(error < TOLERANCE))
    throw new InputError(
      `a prompt of ${rows} rows, ${out.cols} x ${x.cols}: relative error ${error} against int8, or different from the row alone.`,
    );
  for (const tensor of [prompt, row, one]) device.free(tensor);
}

const length = (x: Float32Array) => Math.hypot(...x);
/** NaN if there is nothing to compare with. */
const relativeError = (x: Float32Array, exact: Float32Array) =>
  length(x.map((value, i) => value - exact[i])) / length(exact);

/** Several matrices in turn, so that none stays in the GPU's cache. */
async function measure(device: WebGpuDevice, outs: number, cols: number, rows: number, mode: Mode): Promise<number> {
  const matrices = Array.from({ length: Math.ceil((256 << 20) / (outs * cols * 0.625)) }, () =>
    device.randomWeights(TYPE, outs, cols),
  );
  const x = random(device, rows, cols);
  const out = device.createTensor(rows, outs);
  const run = () => {
    for (const weights of matrices) device.project(x, rows, [{ weights, out }], mode === 'prompt' ? rows : 0);
  };
  run();
  await device.readRows(out, 0);
  let best = Number.POSITIVE_INFINITY;
  for (let i = 0; i < TRIES; i++) best = Math.min(best, await device.gpu.time(run));
  for (const tensor of [x, out]) device.free(tensor);
  return best / 1000 / matrices.length;
}
