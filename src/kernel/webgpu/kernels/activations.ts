/**
 * Activations as integer weights meet them: int8, in blocks of 32 with a scale. Whoever makes rows that a matrix product
 * reads next (a norm, a gate) quantizes them in the same kernel; `quantize` is for the rest.
 *
 *   codes   a block: 8 words, four values a word
 *   stats   a block: the scale (f32), and the sums of both halves' codes (two i16), which minima and zeros multiply
 */
import type { Kernel } from '../gpu.ts';
import { BLOCK } from '../weights.ts';
import { each } from './text.ts';

const SIZE = 256;
/** Invocations of a block, with four values each. */
const SHARE = BLOCK / 4;

export const int8Buffers = ['write codes: array<u32>', 'write stats: array<vec2u>'];

/** `int8_word(four, most)` and `int8_stats(most, a, b)`: four values of a block whose largest is `most`, and its stats. */
export const int8Block = /* wgsl */ `
fn int8_word(four: vec4f, most: f32) -> u32 {
  return pack4xI8(vec4i(round(four * select(0.0, 127.0 / most, most > 0))));
}
fn sum_of_codes(words: vec4u) -> i32 {
  return ${each(4, k => `dot4I8Packed(words[${k}], 0x01010101u)`, ' + ')};
}
fn int8_stats(most: f32, a: vec4u, b: vec4u) -> vec2u {
  let sums = vec2u(bitcast<u32>(sum_of_codes(a)), bitcast<u32>(sum_of_codes(b)));
  return vec2u(bitcast<u32>(most / 127.0), (sums.x & 0xffffu) | (sums.y << 16));
}`;

/**
 * `to_int8(four, at, lane)`: values 4 at to 4 at + 3 of all rows, with the seven neighbours of the invocation at hand for
 * the rest of the block. All invocations of a workgroup call it; `live` says whose values count.
 */
export const toInt8 = (size: number) => /* wgsl */ `
${int8Block}
var<workgroup> peaks: array<f32, ${size}>;
var<workgroup> words: array<vec4u, ${size / 4}>;
fn to_int8(four: vec4f, at: u32, lane: u32, live: bool) {
  workgroupBarrier();
  let a = abs(four);
  peaks[lane] = max(max(a.x, a.y), max(a.z, a.w));
  workgroupBarrier();
  let first = lane - lane % ${SHARE};
  var most = 0.0;
  for (var i = 0u; i < ${SHARE}; i++) { most = max(most, peaks[first + i]); }
  let word = int8_word(four, most);
  words[lane / 4][lane % 4] = word;
  workgroupBarrier();
  if (!live) { return; }
  codes[at] = word;
  if (lane == first) { stats[at / ${SHARE}] = int8_stats(most, words[lane / 4], words[lane / 4 + 1]); }
}`;

/** Rows of a whole number of blocks. */
export const quantize: Kernel = {
  name: 'quantize',
  params: ['fours'],
  buffers: ['x: array<vec4f>', ...int8Buffers],
  size: SIZE,
  body: /* wgsl */ `
${toInt8(SIZE)}
fn main(group: vec3u, lane: u32) {
  let at = (group.y * 65535 + group.x) * ${SIZE} + lane;
  to_int8(x[min(at, p.fours - 1)], at, lane, at < p.fours);
}`,
};

/** Past 80 exp overflows, and the quotient is nothing anyway. */
export const silu = 'fn silu(x: f32) -> f32 { return x / (1.0 + exp(min(-x, 80.0))); }';

/** gate = silu(gate) up, which goes on into a matrix. */
export const swiglu = (int8: boolean): Kernel => ({
  name: `swiglu${int8 ? ' int8' : ''}`,
  params: ['fours'],
  buffers: ['up: array<vec4f>', 'write gate: array<vec4f>', ...(int8 ? int8Buffers : [])],
  size: SIZE,
  body: /* wgsl */ `
${silu}
${int8 ? toInt8(SIZE) : ''}
fn main(group: vec3u, lane: u32) {
  let at = (group.y * 65535 + group.x) * ${SIZE} + lane;
  let live = at < p.fours;
  let g = gate[min(at, p.fours - 1)];
  let y = vec4f(silu(g.x), silu(g.y), silu(g.z), silu(g.w)) * up[min(at, p.fours - 1)];
  if (live) { gate[at] = y; }
  ${int8 ? 'to_int8(y, at, lane, live);' : ''}
}`,
});

/** Workgroups for so many values, four an invocation. */
export function groupsOfFours(values: number): [number, number] {
  const groups = Math.ceil(values / 4 / SIZE);
  return [Math.min(groups, 65535), Math.ceil(groups / 65535)];
}
