/** How fast a GPU copies: what the speed of every other kernel is a share of. */
import { openAdapter } from './adapter.ts';
import { Gpu, type Kernel } from './gpu.ts';

const SIZE = 256;

const copy: Kernel = {
  name: 'copy',
  params: ['length'],
  buffers: ['source: array<vec4u>', 'write copied: array<vec4u>'],
  size: SIZE,
  body: /* wgsl */ `
fn main(group: vec3u, lane: u32) {
  let i = (group.y * 65535 + group.x) * ${SIZE} + lane;
  if (i < p.length) { copied[i] = source[i]; }
}`,
};

/** Bytes a second, read and written together: the best of some tries of a fifth of a second. */
export async function measureCopy(): Promise<number> {
  const { device, info } = await openAdapter();
  const gpu = new Gpu(device);
  try {
    const bytes = Math.min(info.limits.binding, info.software ? 16 << 20 : 512 << 20);
    const [source, target] = [gpu.buffer(bytes, 'source'), gpu.buffer(bytes, 'target')];
    const groups = Math.ceil(bytes / 16 / SIZE);
    const time = async (times: number) => {
      const start = performance.now();
      for (let i = 0; i < times; i++)
        gpu.run(copy, [bytes / 16], [source, target], [Math.min(groups, 65535), Math.ceil(groups / 65535)]);
      gpu.submit();
      await device.queue.onSubmittedWorkDone();
      gpu.check();
      return (performance.now() - start) / times;
    };
    let best = await time(1);
    for (let i = 0; i < 3; i++) best = Math.min(best, await time(Math.max(1, Math.round(200 / best))));
    return (2 * bytes) / (best / 1000);
  } finally {
    gpu.dispose();
  }
}
