/** Copy bandwidth of a GPU: the reference for the speed of memory-bound kernels. */

import { openAdapter } from './adapter.ts';
import { Gpu } from './gpu.ts';
import { type Kernel, readBuffer, u32, writeBuffer } from './kernel.ts';

const SIZE = 256;

const copy: Kernel = {
  name: 'copy',
  summary: 'Copies a buffer.',
  params: u32('length'),
  buffers: [readBuffer('source', 'vec4u'), writeBuffer('copied', 'vec4u')],
  size: SIZE,
  body: /* wgsl */ `
fn main(group: vec3u, lane: u32) {
  let i = (group.y * 65535 + group.x) * ${SIZE} + lane;
  if (i < p.length) { copied[i] = source[i]; }
}`,
};

/** Bytes per second, reads plus writes: the best of several runs of 0.2 s. */
export async function measureCopy(): Promise<number> {
  const { device, info } = await openAdapter();
  const gpu = new Gpu(device);
  try {
    const bytes = Math.min(info.limits.binding, info.software ? 16 << 20 : 512 << 20);
    const [source, target] = [gpu.createBuffer(bytes, 'source'), gpu.createBuffer(bytes, 'target')];
    const groups = Math.ceil(bytes / 16 / SIZE);
    const time = async (times: number) => {
      const start = performance.now();
      for (let i = 0; i < times; i++)
        gpu.run(copy, [bytes / 16], [source, target], [Math.min(groups, 65535), Math.ceil(groups / 65535)]);
      gpu.submit();
      await device.queue.onSubmittedWorkDone();
      gpu.throwIfFailed();
      return (performance.now() - start) / times;
    };
    let best = await time(1);
    for (let i = 0; i < 3; i++) best = Math.min(best, await time(Math.max(1, Math.round(200 / best))));
    return (2 * bytes) / (best / 1000);
  } finally {
    gpu.dispose();
  }
}
