/** The small operations: embedding rows, norms, rotary turns, gates. */
import type { Kernel } from '../gpu.ts';
import { BLOCK, codeWords, type GpuFormat, scaleHalves } from '../weights.ts';
import { halves } from './text.ts';

const SIZE = 256;

/** Rows `ids` of a matrix; those that lie in another piece of it are left alone. */
export const embed = (format: GpuFormat): Kernel => ({
  name: `embed ${format.name}`,
  params: ['cols', 'firstRow', 'rows', 'ids'],
  buffers: [
    'data: array<u32>',
    'codes: array<u32>',
    ...(format.integer ? ['scales: array<u32>'] : []),
    'write out: array<f32>',
  ],
  size: SIZE,
  body: /* wgsl */ `
${weightValue(format)}
fn main(group: vec3u, lane: u32) {
  let row = data[p.ids + group.y] - p.firstRow;
  let i = group.x * ${SIZE} + lane;
  if (row < p.rows && i < p.cols) { out[group.y * p.cols + i] = weight(row * p.cols + i); }
}`,
});

/** `weight(i)`: value i of a piece, counted through its rows. */
export function weightValue(format: GpuFormat): string {
  const { bits, bf16, integer } = format;
  if (bits === 32) return 'fn weight(i: u32) -> f32 { return bitcast<f32>(codes[i]); }';
  if (bits === 16)
    return bf16
      ? 'fn weight(i: u32) -> f32 { return bitcast<f32>((codes[i / 2] >> (16 * (i & 1))) << 16); }'
      : 'fn weight(i: u32) -> f32 { return unpack2x16float(codes[i / 2] >> (16 * (i & 1))).x; }';
  const { group, zero, minima } = integer!;
  const code =
    bits === 4
      ? `f32((codes[block * ${codeWords(format)} + (j & 15) / 4] >> (8 * (j & 3) + 4 * (j / 16))) & 15) - ${zero}.0`
      : `f32(i32(codes[block * ${codeWords(format)} + j / 4] << (24 - 8 * (j & 3))) >> 24)`;
  return /* wgsl */ `
${halves}
fn scale_half(n: u32) -> f32 { return low_half(scales[n / 2] >> (16 * (n & 1))); }
fn weight(i: u32) -> f32 {
  let block = i / ${BLOCK};
  let j = i % ${BLOCK};
  let at = block * ${scaleHalves(format)} + (j / ${group}) * ${minima ? 2 : 1};
  return fma(scale_half(at), ${code}, ${minima ? 'scale_half(at + 1)' : '0.0'});
}`;
}

/** A workgroup a part: out = x / rms(x) * weight. */
export const norm = (inPlace: boolean): Kernel => ({
  name: `norm${inPlace ? ' in place' : ''}`,
  params: ['length', 'eps: f32', 'parts'],
  buffers: inPlace
    ? ['weight: array<f32>', 'write x: array<f32>']
    : ['weight: array<f32>', 'x: array<f32>', 'write out: array<f32>'],
  size: SIZE,
  body: /* wgsl */ `
var<workgroup> sums: array<f32, ${SIZE}>;
fn main(group: vec3u, lane: u32) {
  let part = group.y * 65535 + group.x;
  let start = part * p.length;
  var sum = 0.0;
  if (part < p.parts) {
    for (var i = lane; i < p.length; i += ${SIZE}) { sum = fma(x[start + i], x[start + i], sum); }
  }
  sums[lane] = sum;
  for (var n = ${SIZE / 2}u; n > 0; n /= 2) {
    workgroupBarrier();
    if (lane < n) { sums[lane] += sums[lane + n]; }
  }
  workgroupBarrier();
  if (part >= p.parts) { return; }
  let scale = 1.0 / sqrt(sums[0] / f32(p.length) + p.eps);
  for (var i = lane; i < p.length; i += ${SIZE}) { ${inPlace ? 'x' : 'out'}[start + i] = x[start + i] * scale * weight[i]; }
}`,
});

/** One pair an invocation. */
export const rope: Kernel = {
  name: 'rope',
  params: ['rows', 'cols', 'headDim', 'pairs'],
  buffers: ['angles: array<vec2f>', 'write x: array<f32>'],
  size: SIZE,
  body: /* wgsl */ `
fn main(group: vec3u, lane: u32) {
  let row = group.y;
  let n = group.x * ${SIZE} + lane;
  let head = n / p.pairs;
  let pair = n % p.pairs;
  if (head * p.headDim >= p.cols) { return; }
  let turn = angles[row * p.pairs + pair];
  let at = row * p.cols + head * p.headDim + 2 * pair;
  let a = x[at];
  let b = x[at + 1];
  x[at] = fma(a, turn.x, -(b * turn.y));
  x[at + 1] = fma(a, turn.y, b * turn.x);
}`,
};

export const swiglu: Kernel = {
  name: 'swiglu',
  params: ['cols'],
  buffers: ['up: array<f32>', 'write gate: array<f32>'],
  size: SIZE,
  body: /* wgsl */ `
fn main(group: vec3u, lane: u32) {
  let col = group.x * ${SIZE} + lane;
  if (col >= p.cols) { return; }
  let i = group.y * p.cols + col;
  // Past that exp overflows, and the quotient is nothing anyway.
  gate[i] = gate[i] / (1.0 + exp(min(-gate[i], 80.0))) * up[i];
}`,
};

/** Invocations of the small operations. */
export const groupsOf = (n: number) => Math.ceil(n / SIZE);
