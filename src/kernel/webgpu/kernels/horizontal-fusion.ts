/**
 * Horizontal fusion: two independent kernels in one dispatch. As two dispatches the second would wait for the first, even
 * if it reads nothing of it: WebGPU puts a barrier before a dispatch that writes to a buffer that was used before.
 */
import { assert } from '../../../util/errors.ts';
import { declarationsOf } from '../declarations.ts';
import { type Kernel, u32 } from '../kernel.ts';

/**
 * The first `split` workgroups in x are those of `a`, the others those of `b`. Parameters: split, then those of both.
 * Buffers: those of `a`, then those of `b` without `data`, which is the first of either.
 */
export function fuseHorizontally(a: Kernel, b: Kernel): Kernel {
  const [data] = a.buffers;
  assert(
    a.size === b.size && data.name === b.buffers[0].name,
    'fused kernels have workgroups of one size, and the same first buffer',
  );
  const [first, second] = [prefixed(a, 'a_'), prefixed(b, 'b_')];
  return {
    name: `${a.name} fused with ${b.name}`,
    summary: `Two kernels in one dispatch. a: ${a.summary} b: ${b.summary}`,
    params: [...u32('split'), ...first.params, ...second.params],
    buffers: [data, ...first.buffers, ...second.buffers],
    size: a.size,
    enable: [...new Set([...(a.enable ?? []), ...(b.enable ?? [])])],
    body: /* wgsl */ `
${first.body}
${second.body}
fn main(group: vec3u, lane: u32) {
  if (group.x < p.split) { a_main(group, lane); } else { b_main(vec3u(group.x - p.split, group.yz), lane); }
}`,
  };
}

/** A kernel, but for its first buffer, whose names at module scope begin with a prefix. */
function prefixed({ params, buffers: [, ...buffers], body }: Kernel, prefix: string) {
  const rename = <Named extends { name: string }>(all: readonly Named[]) =>
    all.map(one => ({ ...one, name: prefix + one.name }));
  const names = new Set([...declarationsOf(body), ...buffers].map(({ name }) => name));
  // A vector's components, `.x`, and the parameters, `p.x`, are no names of the module.
  const text = body.replace(/(\bp\.|\.)?\b([a-z_]\w*)/gi, (all, before = '', name) => {
    if (before === 'p.') return `p.${prefix}${name}`;
    const component = before === '.' && /^[xyzw]+$/.test(name);
    return names.has(name) && !component ? before + prefix + name : all;
  });
  return { params: rename(params), buffers: rename(buffers), body: text };
}
