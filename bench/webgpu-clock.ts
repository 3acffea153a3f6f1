/**
 * A GPU lowers its clock for seconds at a time, to save power or to stay cool. How long a fixed chain of additions takes tells at
 * which clock something was timed.
 */
import type { Gpu, Kernel } from '../src/kernel/webgpu/gpu.ts';

const TURNS = 20_000;
const TRIES = 5;

/** Each turn waits for the one before, so it takes the same number of clocks everywhere. */
const chain: Kernel = {
  name: 'chain',
  params: ['turns'],
  buffers: ['write sum: array<f32>'],
  size: 32,
  body: /* wgsl */ `
fn main(group: vec3u, lane: u32) {
  var x = f32(lane);
  for (var turn = 0u; turn < p.turns; turn++) { x = fma(x, 0.999, 0.5); }
  sum[lane] = x;
}`,
};

/** The shortest time of this process, whichever device it was. */
let fastest = Number.POSITIVE_INFINITY;

/** How many times as slow the clock is now as it has been seen: 1 at its fastest. */
export async function slowness(gpu: Gpu): Promise<number> {
  const sum = gpu.buffer(4 * chain.size, 'a chain');
  const run = () => gpu.run(chain, [TURNS], [sum], [1]);
  let best = Number.POSITIVE_INFINITY;
  for (let i = 0; i < TRIES; i++) best = Math.min(best, await gpu.time(run));
  gpu.destroy(sum);
  fastest = Math.min(fastest, best);
  return best / fastest;
}
