/**
 * Pages of entries that stand for four dims each (mead's additive books, product codes of four dims) as integers: an
 * entry is a word of four bytes in workgroup memory.
 *
 *   keys     a lane has four tokens: it looks their entries up and multiplies them with the column's word of an int8 query
 *   values   a lane has columns of its own, and so a copy of their books in its own bank; entries of four tokens are
 *            turned about, so that a word has four tokens, and meet weights of 8 bits
 */

import type { Fragment, PageFragment } from '../../fragment.ts';
import type { KeyPart, ValuePart } from './attend.ts';
import { dithered, int8Words } from './ints.ts';
import { PARTS, sharedWords } from './lines.ts';
import { blockAt } from './read.ts';
import { type PageShape, SIZE } from './shape.ts';
import { COLUMN_WORDS, ownTable } from './tables.ts';
import { each, float } from './text.ts';
import { quantizing, turning } from './turn.ts';

const ENTRIES = 16;
/** Lanes that have columns of their own; as many as there are banks. */
const LANES = 32;
/** Most nibbles of a quad. */
const MOST_BOOKS = 6;

type Additive = PageFragment & { kind: 'additive' };

/** The most columns of a head, in whole rounds of lanes. */
function mostColumns({ counts }: Additive, { headDim, kvHeads }: PageShape): number {
  const quads = headDim / 4;
  const heads = Array.from({ length: kvHeads }, (_, head) =>
    counts.subarray(head * quads, (head + 1) * quads).reduce((sum, count) => sum + count, 0),
  );
  return LANES * Math.max(1, Math.ceil(Math.max(...heads) / LANES));
}

/** Up to this many columns a lane and books in workgroup memory; beyond, floats are read. */
const MOST_ROUNDS = 5;

/** Four tokens of a column of nibbles: word and shift of a lane's. */
const nibblePlace = 'vec2u(g / 8 * 4 + g % 4, g / 4 % 2 * 4)';

function additiveOf({ page, codedDim }: Fragment, shape: PageShape): Additive | undefined {
  const { headDim: D, pageTokens: P } = shape;
  if (page.kind !== 'additive' || codedDim !== D || P !== 128 || D > 512) return undefined;
  return mostColumns(page, shape) <= MOST_ROUNDS * LANES ? page : undefined;
}

export function additiveKeys(
  name: string,
  fragment: Fragment,
  shape: PageShape,
  perHead: boolean,
): KeyPart | undefined {
  const page = additiveOf(fragment, shape);
  if (!page || !fragment.turn) return undefined;
  const { headDim: D, pageTokens: P } = shape;
  const most = mostColumns(page, shape);
  const own = ownTable(fragment);
  const turned = turning(fragment, shape, perHead);
  const words = quantizing(most);
  const word = (at: string) => `keyTables[${own} + ${at}]`;
  return {
    name: `additive ${most} ${name}`,
    dim: D,
    ...turned.part,
    loaded: turned.loaded + words.loaded + D + 1,
    fixed: most * (ENTRIES + 2),
    parts: PARTS,
    text: Q => /* wgsl */ `
${turned.text(Q)}
${words.text(Q)}
var<workgroup> coded: array<vec4f, ${(Q * D) / 4}>;
var<workgroup> constants: array<f32, ${Q}>;
var<workgroup> column_quads: array<u32, ${most}>;
var<workgroup> column_units: array<f32, ${most}>;
var<workgroup> entries: array<u32, ${most * ENTRIES}>;`,
    setup: /* wgsl */ `
  let firstColumn = ${word(`head * ${D / 4}`)};
  let columns = ${word(`head * ${D / 4} + ${D / 4}`)} - firstColumn;
  for (var c = lane; c < columns; c += ${SIZE}) {
    let at = p.keyColumns + (firstColumn + c) * ${COLUMN_WORDS};
    column_quads[c] = ${word('at')};
    column_units[c] = bitcast<f32>(${word('at + 1')});
  }
  for (var n = lane; n < columns * ${ENTRIES}; n += ${SIZE}) {
    entries[n] = ${word(`p.keyColumns + (firstColumn + n / ${ENTRIES}) * ${COLUMN_WORDS} + 2 + n % ${ENTRIES}`)} ^ 0x80808080u;
  }`,
    begin: Q => /* wgsl */ `
    ${turned.begin(Q, `{ let to = q * ${D} + n; coded[to / 4][to % 4] = sum; }`, 'constants[q] = sum;')}
    ${words.begin(Q, 'columns', `(column_units[n] * coded[q * ${D / 4} + column_quads[n]])`)}`,
    sums: Q => /* wgsl */ `{
      let part = lane / 32;
      let g = lane % 32;
      let place = ${nibblePlace};
      ${each(Q, q => each(4, j => `var d${q}_${j} = 0;`, ' '))}
      for (var c = part; c < columns; c += ${PARTS}) {
        let codes = pool[keyPage / 4 + (firstColumn + c) * ${P / 8} + place.x] >> place.y;
        ${words.query(Q).load('q_', `c * ${Q}`)}
        ${each(4, j => `{ let e = entries[c * ${ENTRIES} + ((codes >> ${8 * j}u) & 15u)]; ${each(Q, q => `d${q}_${j} += dot4I8Packed(e, ${words.query(Q).word('q_', q)});`, ' ')} }`)}
      }
      ${each(Q, q => `put4(part, ${q}, g, vec4f(vec4i(d${q}_0, d${q}_1, d${q}_2, d${q}_3)));`, ' ')}
    }`,
    score: () => 'fma(dots, vec4f(query_scales[q]), vec4f(constants[q]))',
  };
}

/** What values by columns differ in. */
interface Columns {
  name: string;
  /** Columns a lane, and bits of a code. */
  rounds: number;
  bits: 4 | 8;
  fixed: number;
  text: string;
  setup: string;
  /** The first word of column c; whether a head has it; the expression of an entry of a lane's column in round s. */
  line(c: string): string;
  has(c: string): string;
  entry(s: number, code: string): string;
  /** Of a column: its quad, its unit, and which of its quad's it is. */
  quad(c: string): string;
  unit(c: string): string;
  order(c: string): string;
  books: number;
}

export function quadValues(name: string, fragment: Fragment, shape: PageShape): ValuePart | undefined {
  const columns = additiveColumns(fragment, shape) ?? bookColumns(fragment, shape);
  if (!columns) return undefined;
  const { headDim: D, pageTokens: P } = shape;
  const { rounds, bits, books } = columns;
  // Each of the four subgroups of lanes has a quarter of the tokens: so many words of four.
  const groups = P / 4 / PARTS;
  const weights = (Q: number) => sharedWords('weighed', (Q * P) / 4, Q);
  const c = (s: number) => `(lane % ${LANES} + ${s * LANES})`;
  /** Word m of a lane's quarter, as codes of a byte each, and the group of tokens that it has. */
  const codes = (m: number) =>
    bits === 8 ? `v${m >> 2}[${m & 3}]` : `((v0[${m & 3}] >> ${4 * (m >> 2)}u) & 0x0f0f0f0fu)`;
  return {
    name: `${columns.name} ${name}`,
    dim: D,
    loaded: P / 4,
    fixed: columns.fixed,
    groups: 0,
    survey: [],
    setup: columns.setup,
    text: Q => `${columns.text}\n${weights(Q).declare}\nvar<workgroup> weight_units: array<f32, ${Q}>;`,
    weigh: Q => `{ let word = ${dithered('weights * 255.0')}; ${weights(Q).put(`g * ${Q} + q`, 'word')} }`,
    note: () => `weight_units[q] = whole * ${float(1 / 255)};`,
    declare: Q => each(rounds, s => each(Q, q => `var o${q}_${s} = vec4f(0.0);`, ' ')),
    sum: Q => `{
      let part = lane / ${LANES};
      ${each(
        rounds,
        s => `if (${columns.has(c(s))}) {
        let from_vector = (${columns.line(c(s))}) / 4 + part * ${bits / 4};
        ${each(bits / 4, v => `let v${v} = pool4[from_vector + ${v}];`, ' ')}
        ${each(Q, q => `var d${q} = vec4i(0);`, ' ')}
        ${each(
          groups,
          m => `{
          let codes = ${codes(m)};
          ${weights(Q).load('w_', `(part * ${groups} + ${m}) * ${Q}`)}
          ${each(4, j => `let x${j} = ${columns.entry(s, `((codes >> ${8 * j}u) & ${2 ** bits - 1}u)`)};`)}
          let even0 = (x0 & 0x00ff00ffu) | ((x1 & 0x00ff00ffu) << 8u);
          let odd0 = ((x0 >> 8u) & 0x00ff00ffu) | (x1 & 0xff00ff00u);
          let even1 = (x2 & 0x00ff00ffu) | ((x3 & 0x00ff00ffu) << 8u);
          let odd1 = ((x2 >> 8u) & 0x00ff00ffu) | (x3 & 0xff00ff00u);
          let y = vec4u((even0 & 0xffffu) | (even1 << 16u), (odd0 & 0xffffu) | (odd1 << 16u), (even0 >> 16u) | (even1 & 0xffff0000u), (odd0 >> 16u) | (odd1 & 0xffff0000u));
          ${each(Q, q => `{ let w = ${weights(Q).word('w_', q)}; let all = 128 * i32(dot4U8Packed(w, 0x01010101u)); d${q} += vec4i(${each(4, j => `i32(dot4U8Packed(y[${j}], w)) - all`, ', ')}); }`)}
        }`,
        )}
        let unit = ${columns.unit(c(s))};
        ${each(Q, q => `o${q}_${s} = fma(vec4f(d${q}), vec4f(unit * weight_units[${q}]), o${q}_${s} * factors[${q}]);`)}
      }`,
      )}
    }`,
    // Columns of one quad are added one after the other, and the quarters of the tokens.
    shares: PARTS * books,
    share: 'turn',
    keep: Q =>
      each(
        rounds,
        s => `if (${columns.has(c(s))} && ${columns.order(c(s))} * ${PARTS} + lane / ${LANES} == turn) {
      ${each(Q, q => each(4, k => `keep(${q}, 4 * ${columns.quad(c(s))} + ${k}, o${q}_${s}[${k}]);`, ' '))}
    }`,
      ),
  };
}

function additiveColumns(fragment: Fragment, shape: PageShape): Columns | undefined {
  const page = additiveOf(fragment, shape);
  if (!page) return undefined;
  const { headDim: D, pageTokens: P } = shape;
  const most = mostColumns(page, shape);
  const own = ownTable(fragment);
  const word = (at: string) => `valueTables[${own} + ${at}]`;
  return {
    name: `additive ${most}`,
    rounds: most / LANES,
    bits: 4,
    fixed: most * (ENTRIES + 2),
    text: /* wgsl */ `
var<workgroup> value_quads: array<u32, ${most}>;
var<workgroup> value_units: array<f32, ${most}>;
var<workgroup> value_entries: array<u32, ${most * ENTRIES}>;`,
    setup: /* wgsl */ `
  let firstValues = ${word(`head * ${D / 4}`)};
  let valueColumns = ${word(`head * ${D / 4} + ${D / 4}`)} - firstValues;
  for (var c = lane; c < valueColumns; c += ${SIZE}) {
    let at = p.valueColumns + (firstValues + c) * ${COLUMN_WORDS};
    let quad = ${word('at')};
    // Quad, and which of its columns this is.
    value_quads[c] = quad | ((firstValues + c - ${word(`head * ${D / 4} + quad`)}) << 16u);
    value_units[c] = bitcast<f32>(${word('at + 1')});
  }
  for (var n = lane; n < valueColumns * ${ENTRIES}; n += ${SIZE}) {
    let c = n / ${ENTRIES};
    value_entries[(c / ${LANES} * ${ENTRIES} + n % ${ENTRIES}) * ${LANES} + c % ${LANES}] = ${word(`p.valueColumns + (firstValues + c) * ${COLUMN_WORDS} + 2 + n % ${ENTRIES}`)};
  }`,
    line: c => `valuePage / 4 + (firstValues + ${c}) * ${P / 8}`,
    has: c => `${c} < valueColumns`,
    entry: (s, code) => `value_entries[${s * ENTRIES * LANES} + ${code} * ${LANES} + bank]`,
    quad: c => `(value_quads[${c}] & 0xffffu)`,
    unit: c => `value_units[${c}]`,
    order: c => `(value_quads[${c}] >> 16u)`,
    books: MOST_BOOKS,
  };
}

type Book = PageFragment & { kind: 'book' };

/** One book of entries of four dims for all, by whole bytes. */
function bookOf(
  { page, codedDim, sharedBytes, blockBytes }: Fragment,
  { headDim: D, pageTokens: P }: PageShape,
): Book | undefined {
  if (page.kind !== 'book' || page.own || page.dims !== 4 || page.codes.bits !== 8) return undefined;
  const fits = codedDim === D && D % 16 === 0 && P === 128;
  return fits && [sharedBytes, blockBytes, page.codes.offset].every(n => n % 16 === 0) ? page : undefined;
}

/** The book's bytes in workgroup memory. */
const bookText = (side: 'key' | 'value') => `var<workgroup> ${side}_book: array<u32, 256>;`;
const bookSetup = (side: 'key' | 'value', own: number, flip: string) => `
  let ${side}Unit = bitcast<f32>(${side}Tables[${own + 1024}]);
  for (var n = lane; n < 256; n += ${SIZE}) { ${side}_book[n] = ${side}Tables[${own + 1025} + n] ^ ${flip}; }`;

export function bookKeys(name: string, fragment: Fragment, shape: PageShape): KeyPart | undefined {
  const page = bookOf(fragment, shape);
  if (!page || fragment.turn) return undefined;
  const { headDim: D, pageTokens: P } = shape;
  const subs = D / 4;
  const query = (Q: number) => sharedWords('query', Q * subs, Q);
  return {
    name: `book ${name}`,
    dim: D,
    words: int8Words(D),
    taken: int8Words(D),
    loaded: subs + 3,
    fixed: 256,
    parts: PARTS,
    text: Q => `${bookText('key')}\n${query(Q).declare}\nvar<workgroup> query_scalars: array<f32, ${3 * Q}>;`,
    setup: bookSetup('key', ownTable(fragment), '0x80808080u'),
    load: Q => `if (n < ${subs}) { ${query(Q).put(`n * ${Q} + q`, 'queries[origin + n]')} } else {
      query_scalars[3 * q + n - ${subs}] = bitcast<f32>(queries[origin + n]);
    }`,
    sums: Q => `{
      let part = lane / 32;
      let g = lane % 32;
      ${each(Q, q => each(4, j => `var d${q}_${j} = 0;`, ' '))}
      for (var c = part; c < ${subs}; c += ${PARTS}) {
        let codes = pool[(keyBlock + ${page.codes.offset}) / 4 + c * ${P / 4} + g];
        ${query(Q).load('q_', `c * ${Q}`)}
        ${each(4, j => `{ let e = key_book[(codes >> ${8 * j}u) & 255u]; ${each(Q, q => `d${q}_${j} += dot4I8Packed(e, ${query(Q).word('q_', q)});`, ' ')} }`)}
      }
      ${each(Q, q => `put4(part, ${q}, g, vec4f(vec4i(d${q}_0, d${q}_1, d${q}_2, d${q}_3)));`, ' ')}
    }`,
    score: () => 'fma(dots, vec4f(query_scalars[3 * q] * keyUnit), vec4f(query_scalars[3 * q + 2]))',
  };
}

function bookColumns(fragment: Fragment, shape: PageShape): Columns | undefined {
  const page = bookOf(fragment, shape);
  if (!page) return undefined;
  const subs = shape.headDim / 4;
  return {
    name: 'book',
    rounds: Math.ceil(subs / LANES),
    bits: 8,
    fixed: 256,
    text: bookText('value'),
    setup: bookSetup('value', ownTable(fragment), '0u'),
    line: c => `(${blockAt(fragment, 'valuePage')} + ${page.codes.offset}) / 4 + ${c} * ${shape.pageTokens / 4}`,
    has: c => `${c} < ${subs}`,
    entry: (_, code) => `value_book[${code}]`,
    quad: c => c,
    unit: () => 'valueUnit',
    order: () => '0u',
    books: 1,
  };
}
