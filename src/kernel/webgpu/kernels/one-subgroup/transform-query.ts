/**
 * Transforms queries for keys rotated by a signed Hadamard transform, or not rotated: one subgroup per query head, all
 * dims in registers. The butterfly pairs dims, and lanes, whose numbers differ in one bit. It can run fused with the
 * attention over tails, which does not need it.
 */

import { f32, type Kernel, readBuffer, u32, writeBuffer } from '../../kernel.ts';
import { maxOf4 } from '../snippets.ts';
import { type CodecTransform, int8Words, queryWords, ROW_WORDS, transformName } from '../transform.ts';
import { unroll } from '../unroll.ts';
import { LANES, subgroupFunctions } from './subgroup.ts';

/**
 * Register layout of `xR`: four dims per lane, and four more every 128 dims (R); below 128 dims, only the first lanes
 * are active.
 */
function layoutOf(D: number) {
  const rounds = Math.ceil(D / 4 / LANES);
  const active = Math.min(LANES, D / 4);
  return {
    rounds,
    active,
    /** Dim `$i` of a lane's four in round `$r`. */
    dim: `4 * min(lane, ${active - 1}u) + $(${4 * LANES} * r + i)`,
  };
}

/** Hadamard transform of these `xR`, unnormalized. */
export function hadamard(D: number) {
  const layout = layoutOf(D);
  const { rounds, active } = layout;
  const between = Array.from({ length: Math.log2(rounds) }, (_, k) => 2 ** k).map(
    by => `@unroll(k, ${rounds / 2 / by}) @unroll(n, ${by}) {{
    let a = x$(k * ${2 * by} + n);
    let b = x$(k * ${2 * by} + n + ${by});
    x$(k * ${2 * by} + n) = a + b;
    x$(k * ${2 * by} + n + ${by}) = a - b;
  }}`,
  );
  return {
    ...layout,
    text: `
  @unroll(r, ${rounds}) {
    x$r = vec4f(x$r.x + x$r.y, x$r.x - x$r.y, x$r.z + x$r.w, x$r.z - x$r.w);
    x$r = vec4f(x$r.xy + x$r.zw, x$r.xy - x$r.zw);
  }
  for (var by = 1u; by < ${active}; by *= 2) {
    @unroll(r, ${rounds}) {{
      let other = shuffle_xor(x$r, by);
      x$r = select(x$r + other, other - x$r, (lane & by) != 0);
    }}
  }
  ${between.join('\n')}`,
  };
}

/** Whether one subgroup can hold all dims of a head. */
export const fitsOneSubgroup = ({ headDim: D, codedDim, matrix, signs }: CodecTransform): boolean =>
  signs || (!matrix && codedDim === D && D % 4 === 0 && (D <= 4 * LANES || D % (4 * LANES) === 0));

/**
 * The output of `transformQuery` (../transform.ts): floats, or int8 words with their scale and sum.
 */
export function transformQueryOneSubgroup(d: CodecTransform, int8: boolean, hasSubgroups: boolean): Kernel {
  const { headDim: D, heads, kvHeads } = d;
  const G = heads / kvHeads;
  const words = queryWords(d, int8);
  const { rounds, active, dim } = layoutOf(D);
  const integers = `
  let max_abs = reduce_max(vec4f(select(0.0, ${Array.from({ length: rounds }, (_, r) => maxOf4(`abs(x${r})`)).reduce((a, b) => `max(${a}, ${b})`)}, live))).x;
  let unit = select(0.0, 127.0 / max_abs, max_abs > 0);
  var sum = 0;
  @unroll(r, ${rounds}) {{
    let word = pack4xI8(vec4i(round(x$r * unit)));
    if (live) { queries[to + lane + $(${LANES} * r)] = word; sum += dot4I8Packed(word, 0x01010101u); }
  }}
  let count = reduce_add(vec4f(f32(sum))).x;
  if (lane == 0) { queries[to + ${D / 4}] = bitcast<u32>(max_abs / 127.0); queries[to + ${D / 4 + 1}] = bitcast<u32>(count); }`;
  const floats = (first: number) =>
    `if (live) { @unroll(r, ${rounds}) @unroll(i, 4) queries[to + ${first} + ${dim}] = bitcast<u32>(x$r[$i]); }`;
  return {
    name: `transform query ${transformName(d)}${int8 ? ' int8' : ''} one subgroup${hasSubgroups ? ' subgroup ops' : ''}`,
    summary: 'Transforms queries into the domain of the packed keys, one subgroup per query.',
    params: [...u32('table', 'rows'), ...f32('scale')],
    buffers: [
      readBuffer('data', 'u32'),
      readBuffer('q', 'f32'),
      ...(d.signs ? [readBuffer('signs', 'f32')] : []),
      writeBuffer('queries', 'u32'),
    ],
    size: LANES,
    enable: hasSubgroups ? ['subgroups'] : [],
    body: unroll(/* wgsl */ `
var<private> lane: u32;
${subgroupFunctions(hasSubgroups)}
fn main(group: vec3u, local_index: u32) {
  lane = local_index;
  let live = lane < ${active};
  let row = data[p.table + p.rows + ${ROW_WORDS} * (group.x / ${G})];
  let head = row * ${heads} + group.y * ${G} + group.x % ${G};
  let at = head * ${D};
  let to = head * ${words};
  @unroll(r, ${rounds}) var x$r = vec4f(@list(i, 4, q[at + ${dim}])) * p.scale;
  ${
    d.signs
      ? `@unroll(r, ${rounds}) x$r *= vec4f(@list(i, 4, signs[${dim}]));
  ${hadamard(D).text}`
      : ''
  }
  ${int8 ? integers : floats(0)}
  ${int8 && d.centered ? floats(int8Words(D)) : ''}
}`),
  };
}
