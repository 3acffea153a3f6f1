/** RMS norms: x / rms(x) * weight, as a kernel, and as the first thing that a product of one row does. */
import type { Kernel } from '../gpu.ts';
import { BLOCK } from '../weights.ts';
import { int8Buffers, toInt8 } from './activations.ts';
import { each } from './text.ts';

/** Invocations that share a sum of squares. */
const SIZE = 256;

/**
 * `inverse_rms(own, length, eps, lane)`, of the sums of squares that 256 lanes have: by sixteens, so that two
 * barriers do. All share this text, because a row must get the same bits wherever it is normed.
 */
const inverseRms = /* wgsl */ `
var<workgroup> squares: array<f32, ${SIZE}>;
var<workgroup> sixteens: array<f32, 16>;
fn inverse_rms(own: f32, length: u32, eps: f32, lane: u32) -> f32 {
  if (lane < ${SIZE}) { squares[lane] = own; }
  workgroupBarrier();
  if (lane < 16) {
    var sum = squares[lane];
    ${each(SIZE / 16 - 1, n => `sum += squares[lane + ${16 * (n + 1)}];`, ' ')}
    sixteens[lane] = sum;
  }
  workgroupBarrier();
  var sum = sixteens[0];
  ${each(15, n => `sum += sixteens[${n + 1}];`, ' ')}
  return 1.0 / sqrt(sum / f32(length) + eps);
}
fn square(v: vec4f, sum: f32) -> f32 { return fma(v.w, v.w, fma(v.z, v.z, fma(v.y, v.y, fma(v.x, v.x, sum)))); }`;

/**
 * A workgroup a part, `fours` at a time where a part has a multiple of four values. `int8` is for rows that go on into a
 * matrix: parts are whole rows then, of a whole number of blocks.
 */
export const norm = (inPlace: boolean, fours: boolean, int8: boolean): Kernel => {
  const type = fours ? 'array<vec4f>' : 'array<f32>';
  const to = inPlace ? 'x' : 'out';
  return {
    name: `norm${inPlace ? ' in place' : ''}${fours ? ' of fours' : ''}${int8 ? ' int8' : ''}`,
    params: ['length', 'eps: f32', 'parts'],
    buffers: [
      `weight: ${type}`,
      ...(inPlace ? [`write x: ${type}`] : [`x: ${type}`, `write out: ${type}`]),
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
    if (live) { ${to}[start + i] = y; }
  }
}`,
  };
};

/** What a product needs in place of int8 activations, to norm its row itself. */
export const normParams = ['eps: f32'];
export const normBuffers = ['x: array<vec4f>', 'weight: array<vec4f>', 'write normed: array<vec4f>'];

/** Whether so many invocations can: they must sum squares like the kernel does. */
export const canNorm = (size: number): boolean => size >= SIZE;

/**
 * `normalize(keep, lane)`: the one row, normed, as int8 in workgroup memory (`xq` and `xstats`, as activations.ts has them);
 * who is to `keep` it writes the floats too. Needs `int8Block`.
 */
export const normalize = (size: number, blocks: number): string => {
  const fours = (blocks * BLOCK) / 4;
  const rounds = Math.ceil(fours / size);
  const mine = (text: (j: number) => string) =>
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
  ${mine(j => `row_peaks[i${j} / 4][i${j} % 4] = max(max(a${j}.x, a${j}.y), max(a${j}.z, a${j}.w)); if (keep) { normed[i${j}] = y${j}; }`)}
  workgroupBarrier();
  ${mine(j => `xq[i${j} / 4][i${j} % 4] = int8_word(y${j}, peak(i${j} / 8));`)}
  workgroupBarrier();
  for (var b = lane; b < ${blocks}; b += ${size}) { xstats[b] = int8_stats(peak(b), xq[2 * b], xq[2 * b + 1]); }
  workgroupBarrier();
}`;
};
