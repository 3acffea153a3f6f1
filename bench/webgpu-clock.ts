/** GPUs lower their clock to save power or to stay cool. The time of a fixed chain of additions shows the current clock. */

import type { Gpu } from '../src/kernel/webgpu/gpu.ts';
import { type Kernel, u32, writeBuffer } from '../src/kernel/webgpu/kernel.ts';

const ITERATIONS = 20_000;
const TRIES = 5;

/** Each iteration depends on the one before, so it always takes the same number of clock cycles. */
const chain: Kernel = {
  name: 'chain',
  summary: 'A chain of dependent additions.',
  params: u32('iterations'),
  buffers: [writeBuffer('sum', 'f32')],
  size: 32,
  body: /* wgsl */ `
fn main(group: vec3u, lane: u32) {
  var x = f32(lane);
  for (var i = 0u; i < p.iterations; i++) { x = fma(x, 0.999, 0.5); }
  sum[lane] = x;
}`,
};

/** The shortest time in this process. */
let fastest = Number.POSITIVE_INFINITY;

/** The slowdown of the clock against the fastest seen: 1 at full speed. */
export async function slowness(gpu: Gpu): Promise<number> {
  const sum = gpu.createBuffer(4 * chain.size, 'chain');
  const run = () => gpu.run(chain, [ITERATIONS], [sum], [1]);
  let best = Number.POSITIVE_INFINITY;
  for (let i = 0; i < TRIES; i++) best = Math.min(best, await gpu.time(run));
  gpu.destroy(sum);
  fastest = Math.min(fastest, best);
  return best / fastest;
}
