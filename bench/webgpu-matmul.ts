/**
 * How fast are matrix products on the GPU, by shape and number of rows? On its own clock. Validates first: a row must get
 * the same bits alone, with a few others and in tiles.
 */
import { table } from '../src/cli/table.ts';
import { InputError } from '../src/errors.ts';
import { createWebGpuDevice, type WebGpuDevice } from '../src/kernel/webgpu/device.ts';

interface Options {
  /** How many at once. */
  rows: string;
  json: boolean;
}

const TRIES = 10;
const TYPE = 'Q4_K';
/** Weight rows x columns of Llama 8B: attention's output, a gate, what comes after it. */
const shapes: readonly (readonly [number, number])[] = [
  [4096, 4096],
  [14336, 4096],
  [4096, 14336],
];

export async function benchWebGpuMatmul({ rows, json }: Options): Promise<void> {
  const device = await createWebGpuDevice({ headDim: 128, heads: 32, kvHeads: 8, pageTokens: 128 });
  const counts = rows.split(',').map(Number);
  const results: { rows: number; shape: string; us: number; gbs: number; tops: number }[] = [];
  for (const [outs, cols] of shapes) {
    await validate(device, outs, cols, counts);
    for (const rows of counts) {
      const us = await measure(device, outs, cols, rows);
      // Nibbles, and two halves for every 32 of them.
      const gbs = (outs * cols * 0.625) / us / 1e3;
      results.push({ rows, shape: `${outs} x ${cols}`, us, gbs, tops: (2 * rows * outs * cols) / us / 1e6 });
    }
  }
  if (json) console.log(JSON.stringify({ adapter: device.info.name, results }, null, 1));
  else {
    const lines = results.map(({ rows, shape, us, gbs, tops }) => [
      shape,
      String(rows),
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
    device.free(out);
  }
  for (const tensor of [x, one, row]) device.free(tensor);
}

/** Several matrices in turn, so that none is found in the GPU's cache. */
async function measure(device: WebGpuDevice, outs: number, cols: number, rows: number): Promise<number> {
  const matrices = Array.from({ length: Math.ceil((256 << 20) / (outs * cols * 0.625)) }, () =>
    device.randomWeights(TYPE, outs, cols),
  );
  const x = random(device, rows, cols);
  const out = device.tensor(rows, outs);
  const run = () => {
    for (const weights of matrices) device.project(x, rows, [{ weights, out }]);
  };
  run();
  await device.read(out, 0);
  let best = Number.POSITIVE_INFINITY;
  for (let i = 0; i < TRIES; i++) best = Math.min(best, await device.gpu.time(run));
  for (const tensor of [x, out]) device.free(tensor);
  return best / 1000 / matrices.length;
}
