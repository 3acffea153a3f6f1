/** RMS norm, x / rms(x) * weight: as a kernel, and as the first step of a fused GEMV. */

import { f32, type Kernel, readBuffer, u32, writeBuffer } from '../kernel.ts';
import { BLOCK } from '../weights.ts';
import { int8Buffers, toInt8 } from './activations.ts';
import { each } from './snippets.ts';

/** Invocations that sum the squares of a row. */
const SIZE = 256;

/**
 * `inverse_rms(lane_sum, length, eps, lane)`: `lane_sum` is the sum of squares of each of 256 lanes. Two levels of 16
 * need only two barriers. Shared by all kernels, so that a row gets the same bits in each.
 */
const inverseRms = /* wgsl */ `
var<workgroup> squares: array<f32, ${SIZE}>;
var<workgroup> partial_sums: array<f32, 16>;
fn inverse_rms(lane_sum: f32, length: u32, eps: f32, lane: u32) -> f32 {
  if (lane < ${SIZE}) { squares[lane] = lane_sum; }
  workgroupBarrier();
  if (lane < 16) {
    var sum = squares[lane];
    ${each(SIZE / 16 - 1, n => `sum += squares[lane + ${16 * (n + 1)}];`, ' ')}
    partial_sums[lane] = sum;
  }
  workgroupBarrier();
  var sum = partial_sums[0];
  ${each(15, n => `sum += partial_sums[${n + 1}];`, ' ')}
  return 1.0 / sqrt(sum / f32(length) + eps);
}
fn square(v: vec4f, sum: f32) -> f32 { return fma(v.w, v.w, fma(v.z, v.z, fma(v.y, v.y, fma(v.x, v.x, sum)))); }`;

/**
 * One workgroup per part, which is a row or a head. `fours`: vec4 access, for parts of a multiple of four values. `int8`:
 * quantized too; parts are then rows of whole blocks. `accumulate`: added to the output.
 */
export const norm = (inPlace: boolean, fours: boolean, int8: boolean, accumulate = false): Kernel => {
  const type = fours ? 'vec4f' : 'f32';
  const to = inPlace ? 'x' : 'out';
  return {
    name: `norm${inPlace ? ' in place' : ''}${fours ? ' of fours' : ''}${int8 ? ' int8' : ''}${accumulate ? ' added' : ''}`,
    summary: 'RMS norm.',
    params: [...u32('length'), ...f32('eps'), ...u32('parts')],
    buffers: [
      readBuffer('weight', type),
      ...(inPlace ? [writeBuffer('x', type)] : [readBuffer('x', type), writeBuffer('out', type)]),
      ...(int8 ? int8Buffers : []),
    ],
    size: SIZE,
    body: /* wgsl */ `
${int8 ? toInt8(SIZE) : ''}
${inverseRms}
fn main(group: vec3u, lane: u32) {
  let part = group.y * 65535 + group.x;
  let length = p.length${fours ? ' / 4' : ''};
  let start = min(part, p.parts - 1) * length;
  var sum = 0.0;
  for (var i = lane; i < length; i += ${SIZE}) {
    let v = x[start + i];
    sum = ${fours ? 'square(v, sum)' : 'fma(v, v, sum)'};
  }
  let scale = inverse_rms(sum, p.length, p.eps, lane);
  for (var first = 0u; first < length; first += ${SIZE}) {
    let i = first + lane;
    let live = i < length && part < p.parts;
    let y = x[start + min(i, length - 1)] * scale * weight[min(i, length - 1)];
    ${int8 ? 'to_int8(y, start + i, lane, live);' : ''}
    if (live) { ${to}[start + i] ${accumulate ? '+=' : '='} y; }
  }
}`,
  };
};

/** Parameters and bindings of a GEMV that normalizes its row itself, in place of int8 activations. */
export const normParams = f32('eps');
export const normBuffers = [readBuffer('x', 'vec4f'), readBuffer('weight', 'vec4f'), writeBuffer('normed', 'vec4f')];

/** Whether a workgroup of this size can sum the squares with the same rounding as the kernel. */
export const canSumSquares = (size: number): boolean => size >= SIZE;

/**
 * `normalize(keep, lane)`: the normalized row as int8 in workgroup memory (`xq` and `xstats`, see activations.ts). With
 * `keep` it writes the floats as well. Requires `int8Block`.
 */
export const normalize = (size: number, blocks: number): string => {
  const fours = (blocks * BLOCK) / 4;
  const rounds = Math.ceil(fours / size);
  const eachFour = (text: (j: number) => string) =>
    each(rounds, j => (size * (j + 1) <= fours ? text(j) : `if (i${j} < ${fours}) { ${text(j)} }`));
  return /* wgsl */ `
var<workgroup> xq: array<vec4u, ${2 * blocks}>;
var<workgroup> xstats: array<vec2u, ${blocks}>;
var<workgroup> row_peaks: array<vec4f, ${2 * blocks}>;
${inverseRms}
fn peak(block: u32) -> f32 {
  let four = max(row_peaks[2 * block], row_peaks[2 * block + 1]);
  return max(max(four.x, four.y), max(four.z, four.w));
}
fn normalize(keep: bool, lane: u32) {
  var sum = 0.0;
  if (lane < ${SIZE}) { for (var i = lane; i < ${fours}; i += ${SIZE}) { sum = square(x[i], sum); } }
  ${each(rounds, j => `let i${j} = lane + ${size * j}; let v${j} = x[min(i${j}, ${fours - 1}u)]; let w${j} = weight[min(i${j}, ${fours - 1}u)];`)}
  let scale = inverse_rms(sum, ${BLOCK} * p.blocks, p.eps, lane);
  ${each(rounds, j => `let y${j} = v${j} * scale * w${j}; let a${j} = abs(y${j});`)}
  ${eachFour(j => `row_peaks[i${j} / 4][i${j} % 4] = max(max(a${j}.x, a${j}.y), max(a${j}.z, a${j}.w)); if (keep) { normed[i${j}] = y${j}; }`)}
  workgroupBarrier();
  ${eachFour(j => `xq[i${j} / 4][i${j} % 4] = int8_word(y${j}, peak(i${j} / 8));`)}
  workgroupBarrier();
  for (var b = lane; b < ${blocks}; b += ${size}) { xstats[b] = int8_stats(peak(b), xq[2 * b], xq[2 * b + 1]); }
  workgroupBarrier();
}`;
};
