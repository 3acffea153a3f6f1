/**
 * Codes multiplied as integers, four at a time (dot4I8Packed, dot4U8Packed): what attention reads fastest.
 *
 *   keys     in rows: four dims in a word, against an int8 query
 *   values   in columns: four tokens in a word, against weights of 8 bits, of which the page's largest is 255
 *
 * A code becomes a byte that its level is a line of: level = byte x unit + offset. Evenly spaced codes are that already;
 * of four levels, symmetric ones, each bit adds its own; up to sixteen are looked up, in a table that every bank of
 * workgroup memory has a copy of. What the offset adds is the same for all tokens (or dims) and is added once.
 *
 * Weights are rounded up or down by a fixed pattern along the tokens, so that many small ones keep their sum.
 */

import type { Fragment, PageFragment } from '../../fragment.ts';
import type { KeyPart, ValuePart } from './attend.ts';
import { lineOf, PARTS, sharedWords } from './lines.ts';
import { type PageShape, SIZE } from './shape.ts';
import { each, float } from './text.ts';

type Levels = PageFragment & { kind: 'levels' };
type Affine = PageFragment & { kind: 'affine' };

/** How a code's byte stands for its level. */
interface Bytes {
  unit: number;
  offset: number;
  text: string;
  setup: string;
  /** Workgroup memory, in words. */
  fixed: number;
  /** Of four codes, a byte each (or at the top of their bytes): bytes from 0 on, or from -128 on. */
  unsigned(codes: string): string;
  signed(codes: string, top: string): string;
}

const LANES = SIZE / PARTS;
const TOP = '0x80808080u';

/** Words of a prepared query: packed words, then its scale, its sum and the constant (domain.ts makes them). */
export const int8Words = (dim: number) => dim / 4 + 3;

function bytesOf(name: string, { levels, uniform, codes: { bits } }: Levels): Bytes {
  const none = { text: '', setup: '', fixed: 0 };
  if (uniform) {
    const step = 2 * levels[0];
    const half = `0x${(2 ** (bits - 1)).toString(16).padStart(2, '0').repeat(4)}u`;
    return {
      ...none,
      unit: step,
      offset: (0.5 - 2 ** (bits - 1)) * step,
      unsigned: codes => `(${codes} ^ ${half})`,
      // Two's complement at the top of a byte: an int8 that is 2^(8 - bits) as large.
      signed: (_, top) => top,
    };
  }
  const unit = bestUnit(levels);
  const byte = (level: number) => 128 + Math.round(level / unit);
  if (bits <= 2) {
    // The lowest, one for the lower bit, one for the upper: symmetric levels are their sum.
    const least = byte(levels[0]);
    const [low, high] = [byte(levels[1]) - least, bits === 1 ? 0 : byte(levels[2]) - least];
    const base = `0x${least.toString(16).padStart(2, '0').repeat(4)}u`;
    const word = (x: string) =>
      bits === 1
        ? `(${x} * ${low}u + ${base})`
        : `((${x} & 0x01010101u) * ${low}u + ((${x} >> 1u) & 0x01010101u) * ${high}u + ${base})`;
    return {
      ...none,
      unit,
      offset: -128 * unit,
      unsigned: word,
      signed: codes => `(${word(codes)} ^ ${TOP})`,
    };
  }
  const look = `${name}_bytes`;
  return {
    unit,
    offset: -128 * unit,
    fixed: 32 * levels.length,
    text: /* wgsl */ `
var<workgroup> ${look}_table: array<u32, ${32 * levels.length}>;
fn ${look}(codes: u32) -> u32 {
  let a = ${look}_table[((codes << 5) & 0x1e0) | bank];
  let b = ${look}_table[((codes >> 3) & 0x1e0) | bank];
  let c = ${look}_table[((codes >> 11) & 0x1e0) | bank];
  let d = ${look}_table[((codes >> 19) & 0x1e0) | bank];
  return (a | (b << 8)) | ((c | (d << 8)) << 16);
}`,
    setup: `{ var levels = array<u32, ${levels.length}>(${Array.from(levels, level => `${byte(level)}u`).join()});
    for (var at = lane; at < ${32 * levels.length}; at += ${SIZE}) { ${look}_table[at] = levels[at / 32]; } }`,
    unsigned: codes => `${look}(${codes})`,
    signed: codes => `(${look}(${codes}) ^ ${TOP})`,
  };
}

/** The unit in which levels of an ascending, symmetric table are nearest to whole numbers up to 127; those near 0 count most. */
function bestUnit(levels: Float32Array): number {
  const most = levels[levels.length - 1];
  const spread = Math.sqrt(levels.reduce((sum, level) => sum + level * level, 0) / levels.length) / 1.2;
  let [best, least] = [most / 127, Number.POSITIVE_INFINITY];
  for (let steps = 127; steps >= 96; steps -= 1 / 32) {
    const unit = most / steps;
    const error = levels.reduce((sum, level) => {
      return sum + Math.exp(-0.5 * (level / spread) ** 2) * (level - unit * Math.round(level / unit)) ** 2;
    }, 0);
    if (error < least) [best, least] = [unit, error];
  }
  return best;
}

const aligned = ({ sharedBytes, blockBytes }: Fragment, offset: number) =>
  [sharedBytes, blockBytes, offset].every(n => n % 16 === 0);

/** Levels and norms that lines can be read of. */
function levelsOf(fragment: Fragment, order: 'rows' | 'columns' | 'pairs'): Levels | undefined {
  const { page } = fragment;
  if (page.kind !== 'levels' || page.codes.order !== order || page.norms.bytes !== 2) return undefined;
  return aligned(fragment, page.codes.offset) && page.norms.offset % 8 === 0 ? page : undefined;
}

/** Four f16 scalars from a token that four divides. */
export const fourHalves = /* wgsl */ `
fn four_halves(at: u32) -> vec4f {
  return vec4f(unpack2x16float(pool[at / 4]), unpack2x16float(pool[at / 4 + 1]));
}`;

export const intKeys = (name: string, fragment: Fragment, shape: PageShape): KeyPart | undefined =>
  fragment.turn ? undefined : (rowKeys(name, fragment, shape) ?? pairKeys(name, fragment, shape));

/** What all int8 keys share: norms a token, and queries of int8 words with a scale, a sum and a constant. */
function scored(name: string, page: Levels, bytes: Bytes, D: number) {
  const { codes, uniform } = page;
  // Of a signed byte: what it is multiplied by, and what a byte of 0 stands for.
  const unit = uniform ? bytes.unit / 2 ** (8 - codes.bits) : bytes.unit;
  const offset = uniform ? bytes.unit / 2 : bytes.offset + 128 * bytes.unit;
  return {
    name: `int ${name}`,
    dim: D,
    words: int8Words(D),
    taken: int8Words(D),
    loaded: D / 4 + 3,
    fixed: bytes.fixed,
    parts: PARTS,
    setup: bytes.setup,
    score: (c: number) =>
      `fma(query_scalars[3 * q] * keyNorms${c}, fma(dots, vec4f(${float(unit)}), vec4f(query_scalars[3 * q + 1] * ${float(offset)})), vec4f(query_scalars[3 * q + 2]))`,
  };
}

/** Norms of a lane's tokens in step 2. */
const fetchNorms = (side: 'key' | 'value', { norms }: Levels, P: number) =>
  each(
    Math.ceil(P / 128),
    c =>
      `let ${side}Norms${c} = four_halves(${side}Block + ${norms.offset} + 8 * min(lane % 32 + ${32 * c}, ${P / 4 - 1}u));`,
  );

const queryScalars = (Q: number) => `var<workgroup> query_scalars: array<f32, ${3 * Q}>;`;

/** Four lanes a token, each with a part of its row and of the queries. */
function rowKeys(name: string, fragment: Fragment, shape: PageShape): KeyPart | undefined {
  const { headDim: D, pageTokens: P, subgroups } = shape;
  const page = levelsOf(fragment, 'rows');
  const line = page && lineOf(page.codes.bits, D, P);
  if (!page || !line) return undefined;
  const bytes = bytesOf('key', page);
  const { words } = line;
  const query = (Q: number) => sharedWords('query', Q * PARTS * words, words);
  const rounds = Math.ceil(P / LANES);
  return {
    ...scored(name, page, bytes, D),
    text: Q => `${bytes.text}\n${query(Q).declare}\n${queryScalars(Q)}`,
    load: Q => `if (n < ${D / 4}) {
      let place = ${line.place('n')};
      ${query(Q).put(`((place / ${words}) * ${Q} + q) * ${words} + place % ${words}`, 'queries[origin + n]')}
    } else { query_scalars[3 * q + n - ${D / 4}] = bitcast<f32>(queries[origin + n]); }`,
    fetch: `${fetchNorms('key', page, P)}
    ${each(rounds, k => `let t${k} = min(lane / ${PARTS} + ${k * LANES}, ${P - 1}u); ${line.load(`k${k}_`, `keyBlock + ${page.codes.offset}`, `t${k}`, `lane % ${PARTS}`)}`)}`,
    sums: Q => `{
      let part = lane % ${PARTS};
      ${each(Q, q => query(Q).load(`q${q}_`, `(part * ${Q} + ${q}) * ${words}`))}
      ${each(
        rounds,
        k => `{ ${each(Q, q => `var d${q} = 0;`, ' ')}
      ${each(words, m => `{ let c = ${bytes.signed(line.codes(`k${k}_`, m), line.top(`k${k}_`, m))}; ${each(Q, q => `d${q} += dot4I8Packed(c, ${query(Q).word(`q${q}_`, m)});`, ' ')} }`)}
      ${subgroups ? acrossFour(Q, `t${k}`) : each(Q, q => `put(part, ${q}, t${k}, f32(d${q}));`, ' ')} }`,
      )}
    }`,
    ...(subgroups && { name: `int of four ${name}`, parts: 1 }),
  };
}

/** Sums d0, d1, ... of four neighbours; each puts every fourth query's. */
const acrossFour = (Q: number, t: string) => `
      ${each(Q, q => `d${q} += quadSwapX(d${q}); d${q} += quadSwapY(d${q});`)}
      ${each(Math.ceil(Q / PARTS), v => {
        const d = (n: number) => `d${Math.min(PARTS * v + n, Q - 1)}`;
        const own = `select(select(${d(0)}, ${d(1)}, part == 1), select(${d(2)}, ${d(3)}, part == 3), part > 1)`;
        return `if (${PARTS * v} + part < ${Q}) { put(0, ${PARTS * v} + part, ${t}, f32(${own})); }`;
      })}`;

/**
 * Columns of nibbles that hold two dims each: a lane has four tokens and a part of the dims. Two columns make a byte a
 * token with the codes of four dims, which shifts spread over four bytes.
 */
function pairKeys(name: string, fragment: Fragment, { headDim: D, pageTokens: P }: PageShape): KeyPart | undefined {
  const page = levelsOf(fragment, 'pairs');
  if (!page || D % 16 !== 0 || P % 32 !== 0 || P > 128) return undefined;
  const bytes = bytesOf('key', page);
  const query = (Q: number) => sharedWords('query', (Q * D) / 4, Q);
  const columns = D / 4 / PARTS;
  return {
    ...scored(name, page, bytes, D),
    text: Q => `${bytes.text}\n${query(Q).declare}\n${queryScalars(Q)}`,
    load: Q => `if (n < ${D / 4}) { ${query(Q).put(`n * ${Q} + q`, 'queries[origin + n]')} } else {
      query_scalars[3 * q + n - ${D / 4}] = bitcast<f32>(queries[origin + n]);
    }`,
    fetch: `${fetchNorms('key', page, P)}
    let pairs = min(lane % 32, ${P / 4 - 1}u);
    let from_word = (keyBlock + ${page.codes.offset}) / 4 + pairs / 8 * 4 + pairs % 4 + lane / 32 * ${(2 * columns * P) / 8};
    ${each(2 * columns, n => `let k${n} = pool[from_word + ${(n * P) / 8}];`, ' ')}`,
    sums: Q => `{
      let part = lane / 32;
      let g = min(lane % 32, ${P / 4 - 1}u);
      let shift = g / 4 % 2 * 4;
      ${each(Q, q => each(4, j => `var d${q}_${j} = 0;`, ' '))}
      ${each(
        columns,
        m => `{
        ${query(Q).load('q_', `(part * ${columns} + ${m}) * ${Q}`)}
        let both = ((k${2 * m} >> shift) & 0x0f0f0f0fu) | (((k${2 * m + 1} >> shift) & 0x0f0f0f0fu) << 4u);
        ${each(4, j => `{ let b = (both >> ${8 * j}u) & 0xffu; let y = b | (b << 6u); let x = (y | (y << 12u)) & 0x03030303u; let c = ${bytes.signed('x', 'x')}; ${each(Q, q => `d${q}_${j} += dot4I8Packed(c, ${query(Q).word('q_', q)});`, ' ')} }`)}
      }`,
      )}
      ${each(Q, q => `put4(part, ${q}, g, vec4f(vec4i(d${q}_0, d${q}_1, d${q}_2, d${q}_3)));`, ' ')}
    }`,
  };
}

/** How the values of a page are scaled: what the weights of dims in group d are multiplied by, and what they add. */
interface Scaled {
  bytes: Bytes;
  codes: { bits: number; offset: number };
  /** Dims that a code of a line holds, and the codes of each. */
  dims: 1 | 2;
  groups: number;
  groupOf: string;
  factor(d: number, chunk: number): string;
  fetch: string;
  /** Added under the weights as they are. */
  plus?(d: number): string;
  text: string;
}

function scaledOf(fragment: Fragment, { headDim: D, pageTokens: P }: PageShape): Scaled | undefined {
  const { page } = fragment;
  if (page.kind === 'affine') return rangesOf(fragment, page, D);
  const levels = levelsOf(fragment, 'columns') ?? levelsOf(fragment, 'pairs');
  if (!levels) return undefined;
  const { codes } = levels;
  const pairs = codes.order === 'pairs';
  return {
    bytes: bytesOf('value', levels),
    codes: { bits: pairs ? 4 : codes.bits, offset: codes.offset },
    dims: pairs ? 2 : 1,
    groups: 1,
    groupOf: '0u',
    factor: (_, c) => `valueNorms${c}`,
    fetch: fetchNorms('value', levels, P),
    text: '',
  };
}

/** A range a token and group of dims: weights are multiplied by its step, and its minimum added to the sums. */
function rangesOf(fragment: Fragment, { codes, group, axis, ranges, norms }: Affine, D: number): Scaled | undefined {
  if (axis !== 'token' || codes.order !== 'columns' || norms || ranges % 4 !== 0) return undefined;
  if (!aligned(fragment, codes.offset)) return undefined;
  const groups = D / group;
  const middle = (2 ** codes.bits - 1) / 2;
  const part = (d: number, half: 'low' | 'high') =>
    `four_${half}(valueBlock + ${ranges} + ${4 * d} + 4 * g * ${4 * groups})`;
  return {
    // Codes count from their middle, so that what rounds the weights meets no common part.
    bytes: {
      unit: 1,
      offset: -middle,
      text: '',
      setup: '',
      fixed: 0,
      unsigned: codes => codes,
      signed: codes => codes,
    },
    codes,
    dims: 1,
    groups,
    groupOf: `i / ${group}`,
    fetch: '',
    factor: d => part(d, 'high'),
    plus: d => `fma(vec4f(${float(middle)}), ${part(d, 'high')}, ${part(d, 'low')})`,
    text: /* wgsl */ `
fn four_words(at: u32) -> vec4u {
  return vec4u(pool[at / 4], pool[at / 4 + ${groups}], pool[at / 4 + ${2 * groups}], pool[at / 4 + ${3 * groups}]);
}
fn four_low(at: u32) -> vec4f {
  let words = four_words(at);
  return vec4f(${each(4, j => `unpack2x16float(words[${j}]).x`, ', ')});
}
fn four_high(at: u32) -> vec4f {
  let words = four_words(at);
  return vec4f(${each(4, j => `unpack2x16float(words[${j}]).y`, ', ')});
}`,
  };
}

/** Multiples of it, less their whole parts, are spread evenly: by them weights are rounded along the tokens. */
export const GOLDEN = 0.6180339887498949;

/** Weights of tokens 4 g to 4 g + 3, up to 255, as four bytes, by the pattern. */
export const dithered = (weights: string): string =>
  `pack4xU8(vec4u(${weights} + fract(f32(4 * g) * ${float(GOLDEN)} + vec4f(${each(4, j => float((j * GOLDEN) % 1), ', ')}))))`;

export function intValues(name: string, fragment: Fragment, shape: PageShape): ValuePart | undefined {
  const { headDim: D, pageTokens: P } = shape;
  const scaled = scaledOf(fragment, shape);
  const line = scaled && lineOf(scaled.codes.bits, P, D / scaled.dims);
  if (!scaled || !line) return undefined;
  const { bytes, codes, dims, groups, groupOf, factor, plus } = scaled;
  const { words } = line;
  const weights = (Q: number) => sharedWords('weighed', groups * Q * PARTS * words, words);
  const columns = Math.ceil(D / dims / LANES);
  /** Codes of dim e of a line's. */
  const codesOf = (k: number, m: number, e: number) => {
    const word = line.codes(`c${k}_`, m);
    if (dims === 1) return word;
    return e === 0 ? `(${word} & 0x03030303u)` : `((${word} >> 2u) & 0x03030303u)`;
  };
  const sums = (Q: number, k: number, e: number) => `{
      ${each(Q, q => `var d${q} = 0u;`, ' ')}
      ${each(words, m => `{ let c = ${bytes.unsigned(codesOf(k, m, e))}; ${each(Q, q => `d${q} += dot4U8Packed(c, ${weights(Q).word(`w${q}_`, m)});`, ' ')} }`)}
      ${each(Q, q => `o${q}_${k}_${e} = fma(f32(d${q}), weight_units[d * ${Q} + ${q}], o${q}_${k}_${e} * factors[${q}]);`, ' ')}
    }`;
  const load = (Q: number, d: string) =>
    each(Q, q => weights(Q).load(`w${q}_`, `(((${d}) * ${PARTS} + part) * ${Q} + ${q}) * ${words}`));
  return {
    name: `int ${name}`,
    dim: D,
    loaded: (groups * P) / 4,
    fixed: bytes.fixed,
    groups,
    groupOf,
    setup: bytes.setup,
    text: Q =>
      `${bytes.text}\n${scaled.text}\n${weights(Q).declare}\nvar<workgroup> weight_units: array<f32, ${groups * Q}>;`,
    survey: Array.from({ length: groups }, (_, d) => (c: number) => `abs(${factor(d, c)})`),
    weigh: (Q, chunk) => `let place = ${line.place('g')};
        ${each(
          groups,
          d => `{
          let unit = select(0.0, 255.0 / largest${d}, largest${d} > 0);
          let word = ${dithered(`weights * ${factor(d, chunk)} * unit`)};
          ${weights(Q).put(`(((${d * PARTS} + place / ${words}) * ${Q} + q) * ${words} + place % ${words})`, 'word')}
          more${d} = fma(f32(dot4U8Packed(word, 0x01010101u)), largest${d} * ${float(bytes.offset / 255)}, more${d});
          ${
            plus
              ? `let low = ${plus(d)};
          more${d} = fma(weights.x, low.x, fma(weights.y, low.y, fma(weights.z, low.z, fma(weights.w, low.w, more${d}))));`
              : ''
          }
        }`,
        )}`,
    note: Q => each(groups, d => `weight_units[${d * Q} + q] = whole * largest${d} * ${float(bytes.unit / 255)};`),
    fetch: `${scaled.fetch}
    ${each(columns, k => `let i${k} = min(lane / ${PARTS} + ${k * LANES}, ${D / dims - 1}u); ${line.load(`c${k}_`, `valueBlock + ${codes.offset}`, `i${k}`, `lane % ${PARTS}`)}`)}`,
    shares: PARTS,
    share: `lane % ${PARTS}`,
    declare: Q => each(Q, q => each(columns, k => each(dims, e => `var o${q}_${k}_${e} = 0.0;`, ' '), ' ')),
    sum: Q => `{
      let part = lane % ${PARTS};
      ${groups === 1 ? load(Q, '0u') : ''}
      ${each(
        columns,
        k => `{ let i = i${k}; let d = ${groupOf};
      ${groups > 1 ? load(Q, 'd') : ''}
      ${each(dims, e => sums(Q, k, e))} }`,
      )}
    }`,
    keep: Q =>
      each(
        columns,
        k => `if (lane / ${PARTS} + ${k * LANES} < ${D / dims}) {
    let i = (lane / ${PARTS} + ${k * LANES}) * ${dims};
    ${each(Q, q => each(dims, e => `keep(${q}, i + ${e}, o${q}_${k}_${e});`, ' '))}
  }`,
      ),
  };
}
