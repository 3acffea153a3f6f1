/**
 * Two kernels in one dispatch that do not wait for each other. Of two dispatches the second waits for the first as soon as
 * it writes into a buffer that anybody has read before, even if nothing that it needs is in there.
 */
import { assert } from '../../../errors.ts';
import type { Kernel } from '../gpu.ts';

/** What a text declares for all of its functions. */
const declared = /\b(?:fn|struct|const|var<\w+>)\s+(\w+)/g;
const nameOf = (buffer: string) => /(\w+):/.exec(buffer)![1];

/** A text with names of its own; `.x` stays what it is. */
function renamed(text: string, names: readonly string[], prefix: string): string {
  const all = new RegExp(`(?<!\\w)(?<!\\.(?=[xyzw]+\\b))(?:${names.join('|')})(?!\\w)`, 'g');
  return text.replace(all, name => prefix + name).replace(/(?<![.\w])p\./g, `p.${prefix}`);
}

/**
 * The first `split` workgroups in x are those of `a`, the others those of `b`. Parameters: split, then those of both; buffers:
 * those of `a`, then those of `b` without `data`, which is the first of either.
 */
export function beside(a: Kernel, b: Kernel): Kernel {
  assert(
    a.size === b.size && a.buffers[0] === b.buffers[0],
    'kernels side by side have workgroups of one size, and data',
  );
  const [data] = a.buffers;
  const own = ({ params, buffers, body }: Kernel, prefix: string) => {
    const names = [...[...body.matchAll(declared)].map(([, name]) => name), ...buffers.slice(1).map(nameOf)];
    return {
      params: params.map(name => prefix + name),
      buffers: buffers.slice(1).map(text => text.replace(nameOf(text), prefix + nameOf(text))),
      body: renamed(body, [...new Set(names)], prefix),
    };
  };
  const [first, second] = [own(a, 'a_'), own(b, 'b_')];
  return {
    name: `${a.name} beside ${b.name}`,
    params: ['split', ...first.params, ...second.params],
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
