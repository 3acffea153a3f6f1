/**
 * out = x weights^T for a few rows (GEMV), and what all matmul kernels share. Integer weights are multiplied by int8
 * activations (blocks of 32 with one scale each), float weights by floats; in precise mode all weights by floats.
 *
 * The order of a sum does not depend on the number of rows: the blocks of a row are divided into SPLIT_K ranges, each
 * range is summed in order, and then the ranges are. `gemv` and fused-gemv.ts use one invocation per weight row and
 * range, gemm-int8.ts one tile for all ranges. All call the same `term`, which fixes every rounding.
 */

import { type Kernel, readBuffer, u32, writeBuffer } from '../kernel.ts';
import { BLOCK, type GpuFormat, ROW_TILE, scalesPerBlock, vectorsPerBlock } from '../weights.ts';
import { each, unpackHalves } from './snippets.ts';

export const SPLIT_K = 16;

export interface MatmulVariant {
  format: GpuFormat;
  precise: boolean;
  bias: boolean;
}

/** Whether activations are quantized. */
export const usesInt8 = ({ format, precise }: MatmulVariant) => format.integer !== undefined && !precise;

/** `split_start(n)`: the first block of range n. */
export const splitStart = `fn split_start(n: u32) -> u32 { return n * p.blocks / ${SPLIT_K}; }`;

export interface GemvOptions {
  /** Rows per workgroup, which share the weights that it loads. */
  rows: number;
  /** The adapter's limit of invocations per workgroup. */
  invocations: number;
  /** Blocks loaded before the first is used. */
  prefetchBlocks: number;
  /** For a single row that every workgroup normalizes first: its blocks. */
  normBlocks?: number;
}

/** A workgroup computes a tile of weight rows, with as many ranges at a time as it has invocations for. */
export const gemv = (m: MatmulVariant, options: GemvOptions): Kernel => {
  const { rows } = options;
  const splits = splitsPerPass(options);
  return {
    name: `gemv ${variantName(m)} ${gemvName(options)}`,
    summary: 'GEMV: one weight matrix times a few rows.',
    ...matmulBindings(m),
    size: splits * ROW_TILE,
    body: /* wgsl */ `
${matmulText(m)}
${splitStart}
var<workgroup> sums: array<f32, ${SPLIT_K * rows * ROW_TILE}>;
fn main(group: vec3u, lane: u32) {
  let first = group.y * ${rows};
  ${accumulateSplits(options, 'group.x', [''])}
  workgroupBarrier();
  for (var at = lane; at < ${rows * ROW_TILE}; at += ${splits * ROW_TILE}) {
    store(group.x * ${ROW_TILE} + at % ${ROW_TILE}, first + at / ${ROW_TILE}, add_sums(at));
  }
}
${addSplits(rows, 'sums')}`,
  };
};

export const splitsPerPass = ({ invocations }: GemvOptions) =>
  Math.max(1, Math.min(SPLIT_K, 2 ** Math.floor(Math.log2(invocations / ROW_TILE))));

export const gemvName = (options: GemvOptions) =>
  `x${options.rows} by ${splitsPerPass(options)} prefetch ${options.prefetchBlocks}${options.normBlocks ? ` norm ${options.normBlocks}` : ''}`;

/**
 * Leaves the partial sums of a row tile in `sums`, or in `sums0` and so on for several matrices, which are read together.
 * `inputRow`: the row of the input that is the i-th of the workgroup.
 */
export function accumulateSplits(
  options: GemvOptions,
  tile: string,
  suffixes: readonly string[],
  inputRow = (i: number) => `min(first + ${i}, p.inputs - 1)`,
): string {
  const { rows, prefetchBlocks } = options;
  const step = (blocks: number) => `
        ${suffixes.map(x => each(blocks, k => `let w${x}_${k} = load_weights${x}(tile + b + ${k}, r);`)).join('\n')}
        ${each(blocks, k => each(rows, i => `{ let i = load_input(x${i} + b + ${k}); ${suffixes.map(x => `acc${x}_${i} = term(acc${x}_${i}, w${x}_${k}, i);`).join(' ')} }`))}`;
  const target = (x: string) => (suffixes.length > 1 ? `sums${x}` : 'sums');
  return /* wgsl */ `
  let r = lane % ${ROW_TILE};
  let tile = ${tile} * p.blocks;
  ${each(rows, i => `let x${i} = ${inputRow(i)} * p.blocks;`)}
  for (var n = lane / ${ROW_TILE}; n < ${SPLIT_K}; n += ${splitsPerPass(options)}) {
    ${suffixes.map(x => each(rows, i => `var acc${x}_${i} = 0.0;`)).join(' ')}
    let end = split_start(n + 1);
    var b = split_start(n);
    ${prefetchBlocks > 1 ? `for (; b + ${prefetchBlocks} <= end; b += ${prefetchBlocks}) { ${step(prefetchBlocks)} }` : ''}
    for (; b < end; b++) { ${step(1)} }
    ${suffixes.map(x => each(rows, i => `${target(x)}[(n * ${rows} + ${i}) * ${ROW_TILE} + r] = acc${x}_${i};`)).join('\n')}
  }`;
}

/** `add_SUMS(at)`: adds the partial sums of output `at` of a row tile ([row][weight row]) in order. */
export const addSplits = (rows: number, sums: string) => /* wgsl */ `
fn add_${sums}(at: u32) -> f32 {
  var sum = 0.0;
  for (var n = 0u; n < ${SPLIT_K}; n++) { sum += ${sums}[n * ${rows * ROW_TILE} + at]; }
  return sum;
}`;

export const variantName = (m: MatmulVariant) =>
  `${m.format.name}${usesInt8(m) ? '' : ' float'}${m.bias ? ' bias' : ''}`;

/** Activations in the format of activations.ts. */
export const int8Buffers = [readBuffer('xq', 'vec4u'), readBuffer('stats', 'vec2u')];

export function matmulBindings(m: MatmulVariant, input = usesInt8(m) ? int8Buffers : [readBuffer('x', 'vec4f')]) {
  return {
    params: u32('rows', 'inputs', 'blocks', 'firstRow', 'outCols', 'add'),
    buffers: [
      ...input,
      readBuffer('codes', 'vec4u'),
      ...(m.format.integer ? [readBuffer('scales', 'u32')] : []),
      ...(m.bias ? [readBuffer('bias', 'f32')] : []),
      writeBuffer('out', 'f32'),
    ],
  };
}

export const storeText = (m: MatmulVariant) => /* wgsl */ `
fn store(o: u32, row: u32, sum: f32) {
  if (o >= p.rows || row >= p.inputs) { return; }
  let at = row * p.outCols + p.firstRow + o;
  let value = sum${m.bias ? ' + bias[p.firstRow + o]' : ''};
  if (p.add == 1) { out[at] += value; } else { out[at] = value; }
}`;

/** Declares Weights, Input, load_weights(block of the row tile, row), load_input, term and store. */
export const matmulText = (m: MatmulVariant): string => `${productText(m)}\n${storeText(m)}`;

/** The same without store. */
export const productText = (m: MatmulVariant): string =>
  m.format.integer
    ? `${integerText(m)}\n${usesInt8(m) ? int8Term(m.format) : floatTerm(m.format)}`
    : floatWeights(m.format);

/** For integers: declares only Weights and load_weights. */
export const integerText = (m: MatmulVariant): string => `${unpackHalves}\n${integerWeights(m.format)}`;

const floatInput = /* wgsl */ `
struct Input { v: array<vec4f, ${BLOCK / 4}> }
fn load_input(block: u32) -> Input {
  var i: Input;
  ${each(BLOCK / 4, k => `i.v[${k}] = x[${BLOCK / 4} * block + ${k}];`)}
  return i;
}`;

/** acc += dot(a, b) in a fixed order. */
const dot4 = (a: string, b: string) =>
  `acc = fma(${a}.w, ${b}.w, fma(${a}.z, ${b}.z, fma(${a}.y, ${b}.y, fma(${a}.x, ${b}.x, acc))));`;

const vector = (format: GpuFormat, v: number, matrix = '') =>
  `codes${matrix}[block * ${ROW_TILE * vectorsPerBlock(format)} + ${ROW_TILE * v} + r]`;

function floatWeights(format: GpuFormat): string {
  const { bits, bf16 } = format;
  const pair = (word: string) =>
    bf16 ? `vec2f(bitcast<f32>(${word} << 16), bitcast<f32>(${word} & 0xffff0000u))` : `unpack2x16float(${word})`;
  const load = (k: number) => {
    if (bits === 32) return `w.v[${k}] = bitcast<vec4f>(${vector(format, k)});`;
    return `{ let c = ${vector(format, k)};
    w.v[${2 * k}] = vec4f(${pair('c.x')}, ${pair('c.y')}); w.v[${2 * k + 1}] = vec4f(${pair('c.z')}, ${pair('c.w')}); }`;
  };
  return /* wgsl */ `
struct Weights { v: array<vec4f, 8> }
fn load_weights(block: u32, r: u32) -> Weights {
  var w: Weights;
  ${each(vectorsPerBlock(format), load)}
  return w;
}
${floatInput}
fn term(sum: f32, w: Weights, i: Input) -> f32 {
  var acc = sum;
  for (var k = 0; k < 8; k++) { ${dot4('w.v[k]', 'i.v[k]')} }
  return acc;
}`;
}

/**
 * Codes as packed int8, and scales: groups of 32 have a scale and a minimum, groups of 16 two scales and two minima.
 * Several matrices are numbered: load_weights0, load_weights1.
 */
export function integerWeights(format: GpuFormat, count = 0): string {
  const n = scalesPerBlock(format);
  const { minima, group } = format.integer!;
  const half = (i: number) => (n === 1 ? 'pick' : i % 2 === 0 ? `low_half(word${i >> 1})` : `high_half(word${i >> 1})`);
  const scales =
    group === 32
      ? [half(0), minima ? half(1) : '0.0']
      : [half(0), half(minima ? 2 : 1), ...(minima ? [half(1), half(3)] : ['0.0', '0.0'])];
  const vec = group === 32 ? 'vec2f' : 'vec4f';
  const load = (matrix: string) => /* wgsl */ `
fn load_weights${matrix}(block: u32, r: u32) -> Weights {
  ${
    n === 1
      ? `let pick = low_half(scales${matrix}[block * ${ROW_TILE / 2} + r / 2] >> (16 * (r & 1)));`
      : each(n / 2, k => `let word${k} = scales${matrix}[${n / 2} * (block * ${ROW_TILE} + r) + ${k}];`)
  }
  let scale = ${vec}(${scales.join()});
  ${
    format.bits === 4
      ? `let c = ${vector(format, 0, matrix)};
  return Weights(c & vec4u(0x0f0f0f0fu), (c >> vec4u(4)) & vec4u(0x0f0f0f0fu), scale);`
      : `return Weights(${vector(format, 0, matrix)}, ${vector(format, 1, matrix)}, scale);`
  }
}`;
  const matrices = count === 0 ? [''] : Array.from({ length: count }, (_, k) => String(k));
  return `struct Weights { a: vec4u, b: vec4u, scale: ${vec} }${matrices.map(load).join('')}`;
}

/** Integer dot products are exact, so their order does not matter. */
export function int8Term({ integer }: GpuFormat, stats = 'stats'): string {
  const { group, zero, minima } = integer!;
  const dot = (x: string) => `(${each(4, k => `dot4I8Packed(w.${x}[${k}], i.${x}[${k}])`, ' + ')})`;
  const lowered = (dots: string, sum: string) => `f32(${dots}${zero ? ` - ${zero} * (${sum})` : ''})`;
  const lines =
    group === 32
      ? [
          `var acc = fma(w.scale.x * i.scale, ${lowered(`${dot('a')} + ${dot('b')}`, 'i.sums')}, sum);`,
          minima ? 'acc = fma(w.scale.y, i.scale * f32(i.sums), acc);' : '',
        ]
      : [
          `var acc = fma(w.scale.x * i.scale, ${lowered(dot('a'), 'i.sums.x')}, sum);`,
          `acc = fma(w.scale.y * i.scale, ${lowered(dot('b'), 'i.sums.y')}, acc);`,
          minima ? 'acc = fma(w.scale.z, i.scale * f32(i.sums.x), acc);' : '',
          minima ? 'acc = fma(w.scale.w, i.scale * f32(i.sums.y), acc);' : '',
        ];
  return /* wgsl */ `
struct Input { a: vec4u, b: vec4u, scale: f32, sums: ${group === 32 ? 'i32' : 'vec2i'} }
fn load_input(block: u32) -> Input {
  let m = ${stats}[block];
  let sums = vec2i(bitcast<i32>(m.y << 16) >> 16, bitcast<i32>(m.y) >> 16);
  return Input(xq[2 * block], xq[2 * block + 1], bitcast<f32>(m.x), ${group === 32 ? 'sums.x + sums.y' : 'sums'});
}
fn term(sum: f32, w: Weights, i: Input) -> f32 {
  ${lines.join('\n  ')}
  return acc;
}`;
}

/** Dequantizes weights value by value. */
function floatTerm({ integer }: GpuFormat): string {
  const { group, zero } = integer!;
  const [scale, minimum] =
    group === 32
      ? ['w.scale.x', 'w.scale.y']
      : ['select(w.scale.x, w.scale.y, k >= 4)', 'select(w.scale.z, w.scale.w, k >= 4)'];
  return /* wgsl */ `
${floatInput}
fn term(sum: f32, w: Weights, i: Input) -> f32 {
  var acc = sum;
  for (var k = 0; k < 8; k++) {
    let codes = unpack4xI8(select(w.a[k & 3], w.b[k & 3], k >= 4)) - vec4i(${zero});
    let v = fma(vec4f(codes), vec4f(${scale}), vec4f(${minimum}));
    ${dot4('v', 'i.v[k]')}
  }
  return acc;
}`;
}
