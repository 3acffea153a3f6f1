/** The small operations: embedding rows, rotary turns. */
import type { Kernel } from '../gpu.ts';
import { BLOCK, BUNDLE, codeVectors, type GpuFormat, scaleHalves } from '../weights.ts';
import { each, halves, turned } from './text.ts';

const SIZE = 256;

/**
 * Rows `ids` of a matrix; those that lie in another piece of it are left alone. An id of -1 - n, as a u32, is that of the
 * token that was chosen n-th.
 */
export const embed = (format: GpuFormat): Kernel => ({
  name: `embed ${format.name}`,
  params: ['blocks', 'firstRow', 'rows', 'ids'],
  buffers: [
    'data: array<u32>',
    'chosen: array<u32>',
    'codes: array<u32>',
    ...(format.integer ? ['scales: array<u32>'] : []),
    'write out: array<f32>',
  ],
  size: SIZE,
  body: /* wgsl */ `
${weightValue(format)}
fn main(group: vec3u, lane: u32) {
  var id = data[p.ids + group.y];
  if (id >= 0x80000000u) { id = chosen[~id]; }
  let row = id - p.firstRow;
  let i = group.x * ${SIZE} + lane;
  let cols = ${BLOCK} * p.blocks;
  if (row < p.rows && i < cols) { out[group.y * cols + i] = weight(row, i); }
}`,
});

/** `weight(row, i)`: value i of a row of a piece. */
function weightValue(format: GpuFormat): string {
  const { bits, bf16, integer } = format;
  const word = (i: string, perWord: number) =>
    `codes[(((row / ${BUNDLE} * p.blocks + i / ${BLOCK}) * ${codeVectors(format)} + ${i} / ${4 * perWord}) * ${BUNDLE} + row % ${BUNDLE}) * 4 + ${i} / ${perWord} % 4]`;
  if (!integer) {
    const read =
      bits === 32
        ? `bitcast<f32>(${word('j', 1)})`
        : bf16
          ? `bitcast<f32>((${word('j', 2)} >> (16 * (j & 1))) << 16)`
          : `unpack2x16float(${word('j', 2)} >> (16 * (j & 1))).x`;
    return `fn weight(row: u32, i: u32) -> f32 { let j = i % ${BLOCK}; return ${read}; }`;
  }
  const { group, zero, minima } = integer;
  const code =
    bits === 4
      ? `f32((${word('(j & 15)', 4)} >> (8 * (j & 3) + 4 * (j / 16))) & 15) - ${zero}.0`
      : `f32(i32(${word('j', 4)} << (24 - 8 * (j & 3))) >> 24)`;
  return /* wgsl */ `
${halves}
fn scale_half(n: u32) -> f32 { return low_half(scales[n / 2] >> (16 * (n & 1))); }
fn weight(row: u32, i: u32) -> f32 {
  let j = i % ${BLOCK};
  let place = (row / ${BUNDLE} * p.blocks + i / ${BLOCK}) * ${BUNDLE} + row % ${BUNDLE};
  let at = place * ${scaleHalves(format)} + (j / ${group}) * ${minima ? 2 : 1};
  return fma(scale_half(at), ${code}, ${minima ? 'scale_half(at + 1)' : '0.0'});
}`;
}

/** One pair an invocation, of one tensor or of two after each other. */
export const rope = (count: 1 | 2): Kernel => ({
  name: `rope of ${count}`,
  params: ['headDim', 'pairs', 'cols0', 'cols1'],
  buffers: ['angles: array<vec2f>', 'write x0: array<f32>', ...(count === 2 ? ['write x1: array<f32>'] : [])],
  size: SIZE,
  body: /* wgsl */ `
${turned}
fn main(group: vec3u, lane: u32) {
  let n = group.x * ${SIZE} + lane;
  let pair = n % p.pairs;
  let turn = angles[group.y * p.pairs + pair];
  var head = n / p.pairs;
  ${each(
    count,
    k => `if (head * p.headDim < p.cols${k}) {
    let at = group.y * p.cols${k} + head * p.headDim + 2 * pair;
    let y = turned(vec2f(x${k}[at], x${k}[at + 1]), turn);
    x${k}[at] = y.x;
    x${k}[at + 1] = y.y;
    return;
  }
  head -= p.cols${k} / p.headDim;`,
  )}
}`,
});

/** Invocations of the small operations. */
export const groupsOf = (n: number) => Math.ceil(n / SIZE);
