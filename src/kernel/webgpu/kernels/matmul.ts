/**
 * out = x weights^T. Integer weights meet int8 activations (blocks of 32 with a scale each), float weights meet floats;
 * in precise mode all weights meet floats.
 *
 * An output is summed in an order that does not depend on how many rows there are: the blocks of a row are cut into 16
 * parts of neighbours, a part sums its blocks in order, and the parts are summed in order. A few rows have an invocation
 * a weight row and part (`matmulFew`, and joined.ts for several matrices), many go through tiles, part after part
 * (tiles.ts). All call the same `term`, which leaves no sum to the compiler's taste.
 */
import type { Kernel } from '../gpu.ts';
import { BLOCK, BUNDLE, codeVectors, type GpuFormat, scaleHalves } from '../weights.ts';
import { each, halves } from './text.ts';

export const PARTS = 16;

export interface Matmul {
  format: GpuFormat;
  precise: boolean;
  bias: boolean;
}

/** Whether it takes quantized activations. */
export const takesInt8 = ({ format, precise }: Matmul) => format.integer !== undefined && !precise;

/** Where a part begins: `part(p)`. */
export const part = `fn part(n: u32) -> u32 { return n * p.blocks / ${PARTS}; }`;

export interface Few {
  /** Rows that share what is read of the weights. */
  rows: number;
  /** Invocations that the adapter allows a workgroup. */
  invocations: number;
  /** Blocks whose codes are asked for before the first is used. */
  ahead: number;
  /** Blocks of a row that has yet to be normed: of one row alone, which every workgroup norms for itself. */
  norm?: number;
}

/** A few rows: a workgroup has a bundle of weight rows, and as many parts at a time as it has room for. */
export const matmulFew = (m: Matmul, few: Few): Kernel => {
  const { rows } = few;
  const teams = teamsOf(few);
  return {
    name: `matmul ${nameOf(m)} ${fewName(few)}`,
    ...interfaceOf(m),
    size: teams * BUNDLE,
    body: /* wgsl */ `
${textOf(m)}
${part}
var<workgroup> sums: array<f32, ${PARTS * rows * BUNDLE}>;
fn main(group: vec3u, lane: u32) {
  let first = group.y * ${rows};
  ${sumParts(few, 'group.x', [''])}
  workgroupBarrier();
  for (var at = lane; at < ${rows * BUNDLE}; at += ${teams * BUNDLE}) {
    store(group.x * ${BUNDLE} + at % ${BUNDLE}, first + at / ${BUNDLE}, add_sums(at));
  }
}
${addParts(rows, 'sums')}`,
  };
};

export const teamsOf = ({ invocations }: Few) =>
  Math.max(1, Math.min(PARTS, 2 ** Math.floor(Math.log2(invocations / BUNDLE))));

export const fewName = (few: Few) =>
  `x${few.rows} by ${teamsOf(few)} ahead ${few.ahead}${few.norm ? ` normed ${few.norm}` : ''}`;

/**
 * Leaves the parts of a bundle's outs in `sums`, for every matrix by its suffix. Several matrices are read at once.
 */
export function sumParts(few: Few, bundle: string, suffixes: readonly string[]): string {
  const { rows, ahead } = few;
  const step = (blocks: number) => `
        ${suffixes.map(x => each(blocks, k => `let w${x}_${k} = load_weights${x}(bundle + b + ${k}, r);`)).join('\n')}
        ${each(blocks, k => each(rows, i => `{ let i = load_input(x${i} + b + ${k}); ${suffixes.map(x => `acc${x}_${i} = term(acc${x}_${i}, w${x}_${k}, i);`).join(' ')} }`))}`;
  const target = (x: string) => (suffixes.length > 1 ? `sums${x}` : 'sums');
  return /* wgsl */ `
  let r = lane % ${BUNDLE};
  let bundle = ${bundle} * p.blocks;
  ${each(rows, i => `let x${i} = min(first + ${i}, p.inputs - 1) * p.blocks;`)}
  for (var n = lane / ${BUNDLE}; n < ${PARTS}; n += ${teamsOf(few)}) {
    ${suffixes.map(x => each(rows, i => `var acc${x}_${i} = 0.0;`)).join(' ')}
    let end = part(n + 1);
    var b = part(n);
    ${ahead > 1 ? `for (; b + ${ahead} <= end; b += ${ahead}) { ${step(ahead)} }` : ''}
    for (; b < end; b++) { ${step(1)} }
    ${suffixes.map(x => each(rows, i => `${target(x)}[(n * ${rows} + ${i}) * ${BUNDLE} + r] = acc${x}_${i};`)).join('\n')}
  }`;
}

/** `add_SUMS(at)`: the parts of out `at` of a bundle (rows one after the other), in order. */
export const addParts = (rows: number, sums: string) => /* wgsl */ `
fn add_${sums}(at: u32) -> f32 {
  var sum = 0.0;
  for (var n = 0u; n < ${PARTS}; n++) { sum += ${sums}[n * ${rows * BUNDLE} + at]; }
  return sum;
}`;

export const nameOf = (m: Matmul) => `${m.format.name}${takesInt8(m) ? '' : ' float'}${m.bias ? ' bias' : ''}`;

/** Rows as activations.ts makes them. */
export const int8Buffers = ['xq: array<vec4u>', 'stats: array<vec2u>'];

export function interfaceOf(m: Matmul, input = takesInt8(m) ? int8Buffers : ['x: array<vec4f>']) {
  return {
    params: ['rows', 'inputs', 'blocks', 'firstRow', 'outCols', 'add'],
    buffers: [
      ...input,
      'codes: array<vec4u>',
      ...(m.format.integer ? ['scales: array<u32>'] : []),
      ...(m.bias ? ['bias: array<f32>'] : []),
      'write out: array<f32>',
    ],
  };
}

const store = (m: Matmul) => /* wgsl */ `
fn store(o: u32, row: u32, sum: f32) {
  if (o >= p.rows || row >= p.inputs) { return; }
  let at = row * p.outCols + p.firstRow + o;
  let value = sum${m.bias ? ' + bias[p.firstRow + o]' : ''};
  if (p.add == 1) { out[at] += value; } else { out[at] = value; }
}`;

/** Weights, Input, load_weights (a block of a bundle, a row of it), load_input, term and store. */
export const textOf = (m: Matmul): string =>
  m.format.integer
    ? `${weightsText(m)}\n${takesInt8(m) ? int8Term(m.format) : floatTerm(m.format)}`
    : `${floats(m.format)}\n${store(m)}`;

/** Of integers, Weights, load_weights and store alone. */
export const weightsText = (m: Matmul): string => `${halves}\n${integers(m.format)}\n${store(m)}`;

const floatInput = /* wgsl */ `
struct Input { v: array<vec4f, ${BLOCK / 4}> }
fn load_input(block: u32) -> Input {
  var i: Input;
  ${each(BLOCK / 4, k => `i.v[${k}] = x[${BLOCK / 4} * block + ${k}];`)}
  return i;
}`;

/** acc + a.b of four values, in order. */
const dot4 = (a: string, b: string) =>
  `acc = fma(${a}.w, ${b}.w, fma(${a}.z, ${b}.z, fma(${a}.y, ${b}.y, fma(${a}.x, ${b}.x, acc))));`;

const vector = (format: GpuFormat, v: number) => `codes[block * ${BUNDLE * codeVectors(format)} + ${BUNDLE * v} + r]`;

function floats(format: GpuFormat): string {
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
  ${each(codeVectors(format), load)}
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
 * Codes as int8 lanes, and scales: with groups of 32 a scale and a minimum, with groups of 16 two scales and two minima.
 * Of several matrices, by their number: load_weights0, load_weights1.
 */
export function integers(format: GpuFormat, count = 0): string {
  const n = scaleHalves(format);
  const { minima, group } = format.integer!;
  const half = (i: number) => (n === 1 ? 'pick' : i % 2 === 0 ? `low_half(word${i >> 1})` : `high_half(word${i >> 1})`);
  const kinds =
    group === 32
      ? [half(0), minima ? half(1) : '0.0']
      : [half(0), half(minima ? 2 : 1), ...(minima ? [half(1), half(3)] : ['0.0', '0.0'])];
  const vec = group === 32 ? 'vec2f' : 'vec4f';
  const words =
    n === 1
      ? `let pick = low_half(scales[block * ${BUNDLE / 2} + r / 2] >> (16 * (r & 1)));`
      : each(n / 2, k => `let word${k} = scales[${n / 2} * (block * ${BUNDLE} + r) + ${k}];`);
  const load = (k: string) => {
    const named = (text: string) => text.replaceAll('codes[', `codes${k}[`).replaceAll('scales[', `scales${k}[`);
    return /* wgsl */ `
fn load_weights${k}(block: u32, r: u32) -> Weights {
  ${named(words)}
  let scale = ${vec}(${kinds.join()});
  ${named(
    format.bits === 4
      ? `let c = ${vector(format, 0)};
  return Weights(c & vec4u(0x0f0f0f0fu), (c >> vec4u(4)) & vec4u(0x0f0f0f0fu), scale);`
      : `return Weights(${vector(format, 0)}, ${vector(format, 1)}, scale);`,
  )}
}`;
  };
  const names = count === 0 ? [''] : Array.from({ length: count }, (_, k) => String(k));
  return `struct Weights { a: vec4u, b: vec4u, scale: ${vec} }${names.map(load).join('')}`;
}

/** Sums of products of codes are exact, so how they are made does not show in the result. */
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

/** Weights back to floats, value by value. */
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
