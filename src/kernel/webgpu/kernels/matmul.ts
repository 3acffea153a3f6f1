/**
 * out = x weights^T. Integer weights meet int8 activations (blocks of 32 with a scale each), float weights meet floats;
 * in precise mode all weights meet floats.
 *
 * An output is summed in an order that does not depend on how many rows there are: block b of a row belongs to slice
 * b mod 32, a slice sums its blocks in order, and the slices are summed in order. One row has an invocation a slice; many
 * rows go through tiles, slice after slice. Both call the same `term`, which leaves no sum to the compiler's taste.
 */
import type { Kernel } from '../gpu.ts';
import { BLOCK, type GpuFormat, scaleHalves } from '../weights.ts';
import { each, halves } from './text.ts';

const SLICES = 32;
const SIZE = 256;
/** Weight rows a workgroup of the kernel for few rows. */
export const FEW_OUT = SIZE / SLICES;

export interface Matmul {
  format: GpuFormat;
  precise: boolean;
  bias: boolean;
}

/** Whether it takes quantized activations. */
export const takesInt8 = ({ format, precise }: Matmul) => format.integer !== undefined && !precise;

/** A block an invocation: 32 values to int8, with what a term needs of them: the scale, and the sums of both halves. */
export const quantize: Kernel = {
  name: 'quantize',
  params: ['blocks'],
  buffers: ['x: array<vec4f>', 'write codes: array<vec4u>', 'write stats: array<vec2u>'],
  size: 64,
  body: /* wgsl */ `
fn main(group: vec3u, lane: u32) {
  let block = (group.y * 65535 + group.x) * 64 + lane;
  if (block >= p.blocks) { return; }
  var largest = vec4f(0);
  for (var i = 0u; i < 8; i++) { largest = max(largest, abs(x[8 * block + i])); }
  let most = max(max(largest.x, largest.y), max(largest.z, largest.w));
  let unit = select(0.0, 127.0 / most, most > 0);
  for (var half = 0u; half < 2; half++) {
    var words: vec4u;
    for (var i = 0u; i < 4; i++) { words[i] = pack4xI8(vec4i(round(x[8 * block + 4 * half + i] * unit))); }
    codes[2 * block + half] = words;
  }
  var sums: vec2u;
  for (var half = 0u; half < 2; half++) {
    var sum = 0;
    for (var i = 0u; i < 4; i++) { sum += dot4I8Packed(codes[2 * block + half][i], 0x01010101u); }
    sums[half] = bitcast<u32>(sum) & 0xffffu;
  }
  stats[block] = vec2u(bitcast<u32>(most / 127.0), sums.x | (sums.y << 16));
}`,
};

/** Up to `rows` rows: each workgroup has 8 weight rows, an invocation a slice of one. */
export const matmulFew = (m: Matmul, rows: number): Kernel => ({
  name: `matmul ${nameOf(m)} x${rows}`,
  ...interfaceOf(m),
  size: SIZE,
  body: /* wgsl */ `
${textOf(m)}
var<workgroup> sums: array<array<f32, ${SLICES}>, ${FEW_OUT * rows}>;
fn main(group: vec3u, lane: u32) {
  let slice = lane % ${SLICES};
  let local = lane / ${SLICES};
  let o = group.x * ${FEW_OUT} + local;
  let first = group.y * ${rows};
  ${each(rows, r => `var acc${r} = 0.0;`)}
  if (o < p.rows) {
    for (var b = slice; b < p.blocks; b += ${SLICES}) {
      let w = load_weights(o * p.blocks + b);
      ${each(rows, r => `acc${r} = term(acc${r}, w, load_input(min(first + ${r}, p.inputs - 1) * p.blocks + b));`)}
    }
  }
  ${each(rows, r => `sums[local * ${rows} + ${r}][slice] = acc${r};`)}
  workgroupBarrier();
  if (lane >= ${FEW_OUT * rows}) { return; }
  var sum = 0.0;
  for (var s = 0u; s < ${SLICES}; s++) { sum += sums[lane][s]; }
  store(group.x * ${FEW_OUT} + lane / ${rows}, first + lane % ${rows}, sum);
}`,
});

/** Tiles of 16 n weight rows by 16 n rows; an invocation has n x n outputs, 16 apart so that neighbours read neighbours. */
export const matmulTile = (m: Matmul, n: number): Kernel => ({
  name: `matmul ${nameOf(m)} tile ${n}`,
  ...interfaceOf(m),
  size: SIZE,
  body: /* wgsl */ `
${textOf(m)}
var<workgroup> weights: array<Weights, ${16 * n}>;
var<workgroup> input: array<Input, ${16 * n}>;
fn main(group: vec3u, lane: u32) {
  let x = lane % 16;
  let y = lane / 16;
  let firstOut = group.x * ${16 * n};
  let firstRow = group.y * ${16 * n};
  ${each(n * n, i => `var total${i} = 0.0;`)}
  for (var slice = 0u; slice < ${SLICES}; slice++) {
    ${each(n * n, i => `var acc${i} = 0.0;`)}
    for (var b = slice; b < p.blocks; b += ${SLICES}) {
      workgroupBarrier();
      if (lane < ${16 * n}) {
        weights[lane] = load_weights(min(firstOut + lane, p.rows - 1) * p.blocks + b);
      } else if (lane < ${32 * n}) {
        input[lane - ${16 * n}] = load_input(min(firstRow + lane - ${16 * n}, p.inputs - 1) * p.blocks + b);
      }
      workgroupBarrier();
      ${each(n, i => `let x${i} = input[y + ${16 * i}];`)}
      ${each(n, j => `{ let w = weights[x + ${16 * j}]; ${each(n, i => `acc${n * i + j} = term(acc${n * i + j}, w, x${i});`)} }`)}
    }
    ${each(n * n, i => `total${i} += acc${i};`)}
  }
  ${each(n * n, i => `store(firstOut + x + ${16 * (i % n)}, firstRow + y + ${16 * Math.floor(i / n)}, total${i});`)}
}`,
});

const nameOf = (m: Matmul) => `${m.format.name}${takesInt8(m) ? '' : ' float'}${m.bias ? ' bias' : ''}`;

function interfaceOf(m: Matmul) {
  const input = takesInt8(m) ? ['xq: array<vec4u>', 'stats: array<vec2u>'] : ['x: array<vec4f>'];
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

/** Weights, Input, load_weights, load_input, term and store. */
function textOf(m: Matmul): string {
  const store = /* wgsl */ `
fn store(o: u32, row: u32, sum: f32) {
  if (o >= p.rows || row >= p.inputs) { return; }
  let at = row * p.outCols + p.firstRow + o;
  let value = sum${m.bias ? ' + bias[p.firstRow + o]' : ''};
  if (p.add == 1) { out[at] += value; } else { out[at] = value; }
}`;
  if (!m.format.integer) return `${floats(m.format)}\n${store}`;
  return `${halves}\n${integers(m.format)}\n${takesInt8(m) ? int8Term(m.format) : floatTerm(m.format)}\n${store}`;
}

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

function floats({ bits, bf16 }: GpuFormat): string {
  const pair = (word: string) =>
    bf16 ? `vec2f(bitcast<f32>(${word} << 16), bitcast<f32>(${word} & 0xffff0000u))` : `unpack2x16float(${word})`;
  const words = bits === 32 ? 8 : 4;
  const load = (k: number) => {
    if (bits === 32) return `w.v[${k}] = bitcast<vec4f>(codes[8 * block + ${k}]);`;
    const word = (n: number) => `codes[4 * block + ${k}][${n}]`;
    return `w.v[${2 * k}] = vec4f(${pair(word(0))}, ${pair(word(1))}); w.v[${2 * k + 1}] = vec4f(${pair(word(2))}, ${pair(word(3))});`;
  };
  return /* wgsl */ `
struct Weights { v: array<vec4f, 8> }
fn load_weights(block: u32) -> Weights {
  var w: Weights;
  ${each(words, load)}
  return w;
}
${floatInput}
fn term(sum: f32, w: Weights, i: Input) -> f32 {
  var acc = sum;
  for (var k = 0; k < 8; k++) { ${dot4('w.v[k]', 'i.v[k]')} }
  return acc;
}`;
}

/** Codes as int8 lanes, and up to two pairs of scale and minimum. */
function integers(format: GpuFormat): string {
  const n = scaleHalves(format);
  const { minima, group } = format.integer!;
  const half = (i: number) => (n === 1 ? 'pick' : i % 2 === 0 ? `low_half(word${i >> 1})` : `high_half(word${i >> 1})`);
  const scale = group === 32 ? [half(0), minima ? half(1) : '0.0'] : [half(0), half(minima ? 2 : 1)];
  const minimum = minima && group === 16 ? [half(1), half(3)] : ['0.0', '0.0'];
  const loadScales =
    n === 1
      ? 'let pick = low_half(scales[block / 2] >> (16 * (block & 1)));'
      : each(n / 2, k => `let word${k} = scales[${n / 2} * block + ${k}];`);
  return /* wgsl */ `
struct Weights { a: vec4u, b: vec4u, scale: vec2f, minimum: vec2f }
fn load_weights(block: u32) -> Weights {
  ${loadScales}
  let scale = vec2f(${scale.join()});
  let minimum = vec2f(${minimum.join()});
  ${
    format.bits === 4
      ? `let c = codes[block];
  return Weights(c & vec4u(0x0f0f0f0fu), (c >> vec4u(4)) & vec4u(0x0f0f0f0fu), scale, minimum);`
      : 'return Weights(codes[2 * block], codes[2 * block + 1], scale, minimum);'
  }
}`;
}

/** With groups of 32 `scale` is a scale and a minimum; with groups of 16 it is two scales. */
function int8Term({ integer }: GpuFormat): string {
  const { group, zero, minima } = integer!;
  const dot = (w: string, x: string) => each(4, k => `dot4I8Packed(w.${w}[${k}], i.${x}[${k}])`, ' + ');
  const lowered = (dots: string, sum: string) => (zero ? `f32(${dots} - ${zero} * (${sum}))` : `f32(${dots})`);
  const lines =
    group === 32
      ? [
          `var acc = fma(w.scale.x * i.scale, ${lowered(`(${dot('a', 'a')} + ${dot('b', 'b')})`, 'i.sums.x + i.sums.y')}, sum);`,
          minima ? 'acc = fma(w.scale.y * i.scale, f32(i.sums.x + i.sums.y), acc);' : '',
        ]
      : [
          `var acc = fma(w.scale.x * i.scale, ${lowered(`(${dot('a', 'a')})`, 'i.sums.x')}, sum);`,
          `acc = fma(w.scale.y * i.scale, ${lowered(`(${dot('b', 'b')})`, 'i.sums.y')}, acc);`,
          minima ? 'acc = fma(w.minimum.x * i.scale, f32(i.sums.x), acc);' : '',
          minima ? 'acc = fma(w.minimum.y * i.scale, f32(i.sums.y), acc);' : '',
        ];
  return /* wgsl */ `
struct Input { a: vec4u, b: vec4u, scale: f32, sums: vec2i }
fn load_input(block: u32) -> Input {
  let m = stats[block];
  let sums = vec2i(bitcast<i32>(m.y << 16) >> 16, bitcast<i32>(m.y) >> 16);
  return Input(xq[2 * block], xq[2 * block + 1], bitcast<f32>(m.x), sums);
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
      : ['select(w.scale.x, w.scale.y, k >= 4)', 'select(w.minimum.x, w.minimum.y, k >= 4)'];
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
