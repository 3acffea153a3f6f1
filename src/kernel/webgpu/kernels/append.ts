/** Appends new rows to tails and sinks. */

import { tailBlockTokens } from '../../visibility.ts';
import { type Kernel, readBuffer, u32, writeBuffer } from '../kernel.ts';
import { ropeRotate, toF16 } from './snippets.ts';
import { TRANSFORM_WORKGROUP_SIZE } from './transform.ts';

/** Words per run of rows appended to tails and sinks: row, count, position, list of the tail's slots, slot of the sinks. */
export const APPEND_WORDS = 5;

interface Append {
  headDim: number;
  kvHeads: number;
  pageTokens: number;
  sinks: boolean;
  /** Query heads, where they and the keys are rotated by RoPE on the way (both are written back). */
  ropeHeads?: number;
}

export function append({ headDim, kvHeads, pageTokens, sinks, ropeHeads }: Append): Kernel {
  const blockTokens = tailBlockTokens(pageTokens);
  const pairs = headDim / 2;
  const stored = 2 * kvHeads * pairs;
  const rotateText = /* wgsl */ `
${ropeRotate}
fn rotate_row(x: vec2f, row: u32, pair: u32) -> vec2f {
  if (pair >= p.pairs) { return x; }
  return rope_rotate(x, angles[row * p.pairs + pair]);
}`;
  return {
    name: `append ${headDim} ${kvHeads} ${sinks ? 'sinks' : `tail ${blockTokens}`}${ropeHeads ? ` rope ${ropeHeads}` : ''}`,
    summary: 'Stores new keys and values as f16 in the tail or the sinks; optionally rotates keys and queries by RoPE.',
    params: u32('runs', 'stride', 'tokens', ...(ropeHeads ? ['pairs'] : [])),
    buffers: [
      readBuffer('data', 'u32'),
      ropeHeads ? writeBuffer('k', 'vec2f') : readBuffer('k', 'vec2f'),
      readBuffer('v', 'vec2f'),
      writeBuffer('pool', 'u32'),
      ...(ropeHeads ? [readBuffer('angles', 'vec2f'), writeBuffer('q', 'vec2f')] : []),
    ],
    size: TRANSFORM_WORKGROUP_SIZE,
    body: /* wgsl */ `
${toF16}
${ropeHeads ? rotateText : ''}
fn main(group: vec3u, lane: u32) {
  let run = p.runs + ${APPEND_WORDS} * group.z;
  let n = group.x * ${TRANSFORM_WORKGROUP_SIZE} + lane;
  let position = data[run + 2] + group.y;
  if (group.y >= data[run + 1]${sinks ? ' || position >= p.tokens' : ''}) { return; }
  let row = data[run] + group.y;
  let pair = n % ${pairs};
  ${
    ropeHeads
      ? `if (n >= ${stored}) {
    let at = row * ${ropeHeads * pairs} + n - ${stored};
    if (n < ${stored + ropeHeads * pairs}) { q[at] = rotate_row(q[at], row, pair); }
    return;
  }`
      : `if (n >= ${stored}) { return; }`
  }
  let side = n / ${kvHeads * pairs};
  let head = n / ${pairs} % ${kvHeads};
  let origin = row * ${kvHeads * pairs} + head * ${pairs} + pair;
  var x: vec2f;
  if (side == 1) { x = v[origin]; } else {
    x = ${ropeHeads ? 'rotate_row(k[origin], row, pair)' : 'k[origin]'};
    ${ropeHeads ? 'k[origin] = x;' : ''}
  }
  ${
    sinks
      ? `let slot = data[run + 4];
  let place = (side * ${kvHeads} + head) * p.tokens + position;`
      : `let index = position % p.tokens;
  let slot = data[p.runs + data[run + 3] + index / ${blockTokens}];
  let place = (side * ${kvHeads} + head) * ${blockTokens} + index % ${blockTokens};`
  }
  pool[slot * p.stride / 4 + place * ${pairs} + pair] = to_f16(x.x) | (to_f16(x.y) << 16);
}`,
  };
}
