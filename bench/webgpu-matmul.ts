/**
 * How fast are matrix products on the GPU, by shape and number of rows, as rows that are written and as rows of prompts? On
 * its own clock. Validates first: a row must get the same bits alone, with a few others and in tiles, and nearly the same
 * in a prompt.
 */
import { table } from '../src/cli/table.ts';
import { InputError } from '../src/errors.ts';
import type { Tensor, Weights } from '../src/kernel/device.ts';
import { createWebGpuDevice, type WebGpuDevice } from '../src/kernel/webgpu/device.ts';

interface Options {
  /** How many at once. */
  rows: string;
  json: boolean;
}

const TRIES = 10;
const TYPE = 'Q4_K';
/** How far a row of a prompt may be from the same row in int8, of its length. */
const PROMPT = 0.012;
/** Weight rows x columns of Llama 8B: attention's output, a gate, what comes after it. */
const shapes: readonly (readonly [number, number])[] = [
  [4096, 4096],
  [14336, 4096],
  [4096, 14336],
];

export async function benchWebGpuMatmul({ rows, json }: Options): Promise<void> {
  const device = await createWebGpuDevice({ headDim: 128, heads: 32, kvHeads: 8, pageTokens: 128 });
  const counts = rows.split(',').map(Number);
  const results: { rows: number; prompt: boolean; shape: string; us: number; gbs: number; tops: number }[] = [];
  for (const [outs, cols] of shapes) {
    await validate(device, outs, cols, counts);
    for (const prompt of device.info.matrices ? [false, true] : [false]) {
      for (const rows of counts) {
        const us = await measure(device, outs, cols, rows, prompt);
        // Nibbles, and two halves for every 32 of them.
        const gbs = (outs * cols * 0.625) / us / 1e3;
        results.push({ rows, prompt, shape: `${outs} x ${cols}`, us, gbs, tops: (2 * rows * outs * cols) / us / 1e6 });
      }
    }
  }
  if (json) console.log(JSON.stringify({ adapter: device.info.name, results }, null, 1));
  else {
    const lines = results.map(({ rows, prompt, shape, us, gbs, tops }) => [
      shape,
      `${rows}${prompt ? ' of a prompt' : ''}`,
      us.toFixed(1),
      gbs.toFixed(0),
      tops.toFixed(2),
    ]);
    console.log(`Products of ${TYPE} weights on ${device.info.name}. Best of ${TRIES}.`);
    console.log(table(['weights', 'rows', 'us', 'GB/s of weights', 'TOPS'], lines));
  }
  await device.dispose();
}

function random(device: WebGpuDevice, rows: number, cols: number) {
  const tensor = device.tensor(rows, cols);
  device.write(
    tensor,
    0,
    Float32Array.from({ length: rows * cols }, () => 2 * Math.random() - 1),
  );
  return tensor;
}

async function validate(device: WebGpuDevice, outs: number, cols: number, counts: readonly number[]): Promise<void> {
  const weights = device.randomWeights(TYPE, outs, cols);
  const most = Math.max(...counts);
  const x = random(device, most, cols);
  const [one, row] = [device.tensor(1, outs), device.tensor(1, cols)];
  for (const rows of counts) {
    const out = device.tensor(rows, outs);
    device.project(x, rows, [{ weights, out }]);
    for (const r of [0, rows - 1]) {
      device.copy(x, r, row, 0, 1);
      device.project(row, 1, [{ weights, out: one }]);
      const [alone, together] = await Promise.all([device.read(one, 0), device.read(out, r)]);
      const different = alone.findIndex((value, i) => value !== together[i]);
      if (different >= 0 || !alone.some(value => value !== 0))
        throw new InputError(
          `row ${r} of ${rows}, ${outs} x ${cols}, output ${different}: ${together[different]}, alone ${alone[different]}.`,
        );
    }
    await validatePrompts(device, x, rows, weights, out);
    device.free(out);
  }
  for (const tensor of [x, one, row]) device.free(tensor);
}

/** The rows as a prompt's, against what they are otherwise (in `out`) and against the last of them alone. */
async function validatePrompts(device: WebGpuDevice, x: Tensor, rows: number, weights: Weights, out: Tensor) {
  const prompt = device.tensor(rows, out.cols);
  const [row, one] = [device.tensor(1, x.cols), device.tensor(1, out.cols)];
  device.project(x, rows, [{ weights, out: prompt }], rows);
  device.copy(x, rows - 1, row, 0, 1);
  device.project(row, 1, [{ weights, out: one }], 1);
  const reads = [device.read(prompt, rows - 1), device.read(one, 0), device.read(out, rows - 1)];
  const [last, alone, written] = await Promise.all(reads);
  const off = length(last.map((value, i) => value - written[i])) / length(written);
  if (last.some((value, i) => value !== alone[i]) || !(off < PROMPT))
    throw new InputError(`a prompt of ${rows} rows, ${out.cols} x ${x.cols}: ${off} from int8, or not as a row alone.`);
  for (const tensor of [prompt, row, one]) device.free(tensor);
}

const length = (x: Float32Array) => Math.hypot(...x);

/** Several matrices in turn, so that none is found in the GPU's cache. */
async function measure(
  device: WebGpuDevice,
  outs: number,
  cols: number,
  rows: number,
  prompt: boolean,
): Promise<number> {
  const matrices = Array.from({ length: Math.ceil((256 << 20) / (outs * cols * 0.625)) }, () =>
    device.randomWeights(TYPE, outs, cols),
  );
  const x = random(device, rows, cols);
  const out = device.tensor(rows, outs);
  const run = () => {
    for (const weights of matrices) device.project(x, rows, [{ weights, out }], prompt ? rows : 0);
  };
  run();
  await device.read(out, 0);
  let best = Number.POSITIVE_INFINITY;
  for (let i = 0; i < TRIES; i++) best = Math.min(best, await device.gpu.time(run));
  for (const tensor of [x, out]) device.free(tensor);
  return best / 1000 / matrices.length;
}
