/** Embedding lookup, RoPE and softcap. */

import { f32, type Kernel, readBuffer, u32, writeBuffer } from '../kernel.ts';
import { BLOCK, type GpuFormat, ROW_TILE, scalesPerBlock, vectorsPerBlock } from '../weights.ts';
import { each, ropeRotate, unpackHalves } from './snippets.ts';

const SIZE = 256;

/**
 * Rows `ids` of a matrix; rows of its other pieces are skipped. An id of -1 - n (as u32) is a handle: the token in slot n
 * of the sampled tokens.
 */
export const embed = (format: GpuFormat): Kernel => ({
  name: `embed ${format.name}`,
  summary: 'Looks up embedding rows, times a factor.',
  params: [...u32('blocks', 'firstRow', 'rows', 'ids'), ...f32('scale')],
  buffers: [
    readBuffer('data', 'u32'),
    readBuffer('sampled', 'u32'),
    readBuffer('codes', 'u32'),
    ...(format.integer ? [readBuffer('scales', 'u32')] : []),
    writeBuffer('out', 'f32'),
  ],
  size: SIZE,
  body: /* wgsl */ `
${weightValue(format)}
fn main(group: vec3u, lane: u32) {
  var id = data[p.ids + group.y];
  if (id >= 0x80000000u) { id = sampled[~id]; }
  let row = id - p.firstRow;
  let i = group.x * ${SIZE} + lane;
  let cols = ${BLOCK} * p.blocks;
  if (row < p.rows && i < cols) { out[group.y * cols + i] = weight(row, i) * p.scale; }
}`,
});

/** `weight(row, i)`: dequantizes value i of a row. */
function weightValue(format: GpuFormat): string {
  const { bits, bf16, integer } = format;
  const word = (i: string, perWord: number) =>
    `codes[(((row / ${ROW_TILE} * p.blocks + i / ${BLOCK}) * ${vectorsPerBlock(format)} + ${i} / ${4 * perWord}) * ${ROW_TILE} + row % ${ROW_TILE}) * 4 + ${i} / ${perWord} % 4]`;
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
${unpackHalves}
fn scale_half(n: u32) -> f32 { return low_half(scales[n / 2] >> (16 * (n & 1))); }
fn weight(row: u32, i: u32) -> f32 {
  let j = i % ${BLOCK};
  let place = (row / ${ROW_TILE} * p.blocks + i / ${BLOCK}) * ${ROW_TILE} + row % ${ROW_TILE};
  let at = place * ${scalesPerBlock(format)} + (j / ${group}) * ${minima ? 2 : 1};
  return fma(scale_half(at), ${code}, ${minima ? 'scale_half(at + 1)' : '0.0'});
}`;
}

/** One pair of dims per invocation, of one tensor or of two. */
export const rope = (count: 1 | 2): Kernel => ({
  name: `rope ${count}`,
  summary: 'Rotates heads by RoPE.',
  params: u32('headDim', 'pairs', 'cols0', 'cols1'),
  buffers: [
    readBuffer('angles', 'vec2f'),
    writeBuffer('x0', 'f32'),
    ...(count === 2 ? [writeBuffer('x1', 'f32')] : []),
  ],
  size: SIZE,
  body: /* wgsl */ `
${ropeRotate}
fn main(group: vec3u, lane: u32) {
  let n = group.x * ${SIZE} + lane;
  let pair = n % p.pairs;
  let angle = angles[group.y * p.pairs + pair];
  var head = n / p.pairs;
  ${each(
    count,
    k => `if (head * p.headDim < p.cols${k}) {
    let at = group.y * p.cols${k} + head * p.headDim + 2 * pair;
    let y = rope_rotate(vec2f(x${k}[at], x${k}[at + 1]), angle);
    x${k}[at] = y.x;
    x${k}[at + 1] = y.y;
    return;
  }
  head -= p.cols${k} / p.headDim;`,
  )}
}`,
});

/** tanh may overflow past 10, where it is 1 anyway. */
export const softcapRows: Kernel = {
  name: 'softcap',
  summary: 'Caps values: softcap * tanh(x / softcap).',
  params: [...u32('cols'), ...f32('softcap')],
  buffers: [writeBuffer('x', 'f32')],
  size: SIZE,
  body: /* wgsl */ `
fn main(group: vec3u, lane: u32) {
  let i = group.x * ${SIZE} + lane;
  if (i >= p.cols) { return; }
  let at = group.y * p.cols + i;
  x[at] = p.softcap * tanh(clamp(x[at] / p.softcap, -10.0, 10.0));
}`,
};

/** Workgroups for n invocations. */
export const workgroupsFor = (n: number) => Math.ceil(n / SIZE);
