/**
 * Activations for integer weights: int8, in blocks of 32 with one scale each. Kernels whose output feeds a matrix product
 * (norm, gate) quantize it themselves; `quantize` is for the rest.
 *
 *   codes   per block: 8 words of four values
 *   stats   per block: the scale (f32), and the sums of the codes of both halves (two i16), for minima and zero points
 */

import { type Activation, CLAMP, CLAMPED_SLOPE, GELU_CUBIC, GELU_LINEAR } from '../../device.ts';
import { type Kernel, readBuffer, u32, writeBuffer } from '../kernel.ts';
import { BLOCK } from '../weights.ts';
import { each } from './snippets.ts';

const SIZE = 256;
/** Invocations per block, with four values each. */
const LANES_PER_BLOCK = BLOCK / 4;

export const int8Buffers = [writeBuffer('codes', 'u32'), writeBuffer('stats', 'vec2u')];

/** `int8_word(four, max_abs)` quantizes four values of a block; `int8_stats(max_abs, a, b)` makes its stats. */
export const int8Block = /* wgsl */ `
fn int8_word(four: vec4f, max_abs: f32) -> u32 {
  return pack4xI8(vec4i(round(four * select(0.0, 127.0 / max_abs, max_abs > 0))));
}
fn sum_of_codes(words: vec4u) -> i32 {
  return ${each(4, k => `dot4I8Packed(words[${k}], 0x01010101u)`, ' + ')};
}
fn int8_stats(max_abs: f32, a: vec4u, b: vec4u) -> vec2u {
  let sums = vec2u(bitcast<u32>(sum_of_codes(a)), bitcast<u32>(sum_of_codes(b)));
  return vec2u(bitcast<u32>(max_abs / 127.0), (sums.x & 0xffffu) | (sums.y << 16));
}`;

/**
 * `to_int8(four, at, lane, live)` quantizes values 4 at to 4 at + 3 together with the seven neighbouring invocations. All
 * invocations of a workgroup call it; only those with `live` write.
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
  let first = lane - lane % ${LANES_PER_BLOCK};
  var max_abs = 0.0;
  for (var i = 0u; i < ${LANES_PER_BLOCK}; i++) { max_abs = max(max_abs, peaks[first + i]); }
  let word = int8_word(four, max_abs);
  words[lane / 4][lane % 4] = word;
  workgroupBarrier();
  if (!live) { return; }
  codes[at] = word;
  if (lane == first) { stats[at / ${LANES_PER_BLOCK}] = int8_stats(max_abs, words[lane / 4], words[lane / 4 + 1]); }
}`;

/** Rows are whole blocks. */
export const quantize: Kernel = {
  name: 'quantize',
  summary: 'Quantizes activations to int8, in blocks of 32.',
  params: u32('fours'),
  buffers: [readBuffer('x', 'vec4f'), ...int8Buffers],
  size: SIZE,
  body: /* wgsl */ `
${toInt8(SIZE)}
fn main(group: vec3u, lane: u32) {
  let at = (group.y * 65535 + group.x) * ${SIZE} + lane;
  to_int8(x[min(at, p.fours - 1)], at, lane, at < p.fours);
}`,
};

const logit: Record<Activation, string> = {
  silu: 'x',
  gelu: `x * (${GELU_LINEAR} + ${GELU_CUBIC} * x * x)`,
  clamped: `x * ${CLAMPED_SLOPE}`,
};

/** `gated(gate, up)`: x sigmoid(logit(x)) * y. exp overflows past 80, where the quotient is 0 anyway. */
export const gated = (activation: Activation) => /* wgsl */ `
fn gated(gate: f32, up: f32) -> f32 {
  let x = ${activation === 'clamped' ? `min(gate, ${CLAMP}.0)` : 'gate'};
  let y = ${activation === 'clamped' ? `clamp(up, -${CLAMP}.0, ${CLAMP}.0) + 1.0` : 'up'};
  return x / (1.0 + exp(min(-(${logit[activation]}), 80.0))) * y;
}`;

/** gate = activation(gate) * up. `int8`: quantized too. */
export const gate = (activation: Activation, int8: boolean): Kernel => ({
  name: `gate ${activation}${int8 ? ' int8' : ''}`,
  summary: `The gate of a feed-forward network: ${activation}(gate) * up.`,
  params: u32('fours'),
  buffers: [readBuffer('up', 'vec4f'), writeBuffer('gate', 'vec4f'), ...(int8 ? int8Buffers : [])],
  size: SIZE,
  body: /* wgsl */ `
${gated(activation)}
${int8 ? toInt8(SIZE) : ''}
fn main(group: vec3u, lane: u32) {
  let at = (group.y * 65535 + group.x) * ${SIZE} + lane;
  let live = at < p.fours;
  let g = gate[min(at, p.fours - 1)];
  let u = up[min(at, p.fours - 1)];
  let y = vec4f(gated(g.x, u.x), gated(g.y, u.y), gated(g.z, u.z), gated(g.w, u.w));
  if (live) { gate[at] = y; }
  ${int8 ? 'to_int8(y, at, lane, live);' : ''}
}`,
});

/** Workgroups for kernels with four values per invocation. */
export function vec4Workgroups(values: number): [number, number] {
  const groups = Math.ceil(values / 4 / SIZE);
  return [Math.min(groups, 65535), Math.ceil(groups / 65535)];
}
