/**
 * Pages of entries that stand for four dims each (mead's additive books) as integers: an entry is a word of four bytes.
 *
 *   keys     a lane has four tokens: it looks their entries up and multiplies them with the column's word of an int8 query
 *   values   a lane has columns of its own, and so a copy of their books in its own bank; entries of four tokens are
 *            turned about, so that a word has four tokens, and meet weights of 8 bits
 */

import type { Fragment, PageFragment } from '../../../fragment.ts';
import type { AttendShape } from '../attend.ts';
import { LANES } from '../lanes/talk.ts';
import type { PageShape } from '../shape.ts';
import { COLUMN_WORDS, ownTable } from '../tables.ts';
import { each, float, turnAbout } from '../text.ts';
import { groupOf, type KeyPart, type ValuePart, vectors, type Words } from './attend.ts';
import { SIZE } from './talk.ts';
import { turnedPart } from './turned.ts';
import { weighedBytes } from './weighed.ts';

const ENTRIES = 16;
/** Up to this many columns a lane have their books in workgroup memory. */
const MOST_ROUNDS = 5;
/** Columns whose loads are waited for together. */
const AHEAD = 8;

type Additive = PageFragment & { kind: 'additive' };

/** The most columns of a head. */
function mostColumns({ counts }: Additive, { headDim, kvHeads }: PageShape): number {
  const quads = headDim / 4;
  const heads = Array.from({ length: kvHeads }, (_, head) =>
    counts.subarray(head * quads, (head + 1) * quads).reduce((sum, count) => sum + count, 0),
  );
  return Math.max(1, ...heads);
}

function additiveOf({ page, codedDim }: Fragment, shape: PageShape): Additive | undefined {
  const { headDim: D, pageTokens: P } = shape;
  if (page.kind !== 'additive' || codedDim !== D || P !== 4 * LANES || D % LANES !== 0) return undefined;
  return mostColumns(page, shape) <= MOST_ROUNDS * LANES ? page : undefined;
}

export function additiveKeys(name: string, fragment: Fragment, shape: AttendShape): KeyPart | undefined {
  const page = additiveOf(fragment, shape);
  if (!page || !fragment.turn) return undefined;
  const { headDim: D, pageTokens: P } = shape;
  // Layers share kernels, so room is for whole rounds of lanes.
  const most = LANES * Math.ceil(mostColumns(page, shape) / LANES);
  const own = ownTable(fragment);
  const word = (at: string) => `keyTables[${own} + ${at}]`;
  const column = (n: string, k: string) => word(`p.keyColumns + (first_column + ${n}) * ${COLUMN_WORDS} + ${k}`);
  const begin = `let first_column = ${word(`head * ${D / 4}`)};
  let count = ${word(`head * ${D / 4} + ${D / 4}`)} - first_column;`;
  const words: Words = {
    most,
    text: '',
    count: begin,
    step: () => '1.0',
    share: 0,
    dims: n => `(4 * ${column(n, '0')} + vec4u(0, 1, 2, 3))`,
    factor: n => `bitcast<f32>(${column(n, '1')})`,
  };
  const turned = turnedPart(words, shape);
  return {
    name: `additive ${most} ${name}`,
    dim: D,
    ...turned.part,
    neighbours: true,
    turned: words,
    text: turned.text,
    sums: Q => `
  ${begin}
  ${turned.begin(Q)}
  let codes_at = keyPage / 4 + first_column * ${P / 8} + lane / 8 * 4 + lane % 4;
  let codes_shift = lane / 4 % 2 * 4;
  ${each(4, j => each(vectors(Q), v => `var sum${j}_${v} = vec4i(0);`, ' '), ' ')}
  for (var first = 0u; first < count; first += ${AHEAD}) {
    ${each(AHEAD, a => `let k${a} = pool[codes_at + min(first + ${a}, count - 1) * ${P / 8}] >> codes_shift;`)}
    ${each(
      AHEAD,
      a => `if (first + ${a} < count) {
      ${each(vectors(Q), v => `let q${v} = ${turned.word(Q, `first + ${a}`, v)};`, ' ')}
      let book = ${own} + p.keyColumns + (first_column + first + ${a}) * ${COLUMN_WORDS} + 2;
      ${each(4, j => `let e${j} = keyTables[book + ((k${a} >> ${8 * j}u) & 15u)] ^ 0x80808080u;`)}
      ${each(4, j => each(vectors(Q), v => `sum${j}_${v} += vec4i(${each(4, q => `dot4I8Packed(e${j}, q${v}[${q}])`, ', ')});`, ' '))}
    }`,
    )}
  }
  ${each(4, j => each(vectors(Q), v => `let dots${j}_${v} = vec4f(sum${j}_${v});`, ' '), ' ')}`,
    score: (_, j, v) => `fma(dots${j}_${v}, turned_scale${v}, turned_added${v})`,
  };
}

export function additiveValues(name: string, fragment: Fragment, shape: PageShape): ValuePart | undefined {
  const page = additiveOf(fragment, shape);
  if (!page) return undefined;
  const { headDim: D, pageTokens: P } = shape;
  const rounds = Math.ceil(mostColumns(page, shape) / LANES);
  const own = ownTable(fragment);
  const word = (at: string) => `valueTables[${own} + ${at}]`;
  const weighed = weighedBytes(P);
  const strip = (Q: number, s: number, b: number) => `
      ${each(
        8,
        n => `{
        let codes = (codes${b}[${n % 4}] >> ${4 * Math.floor(n / 4)}u) & 0x0f0f0f0fu;
        ${each(4, j => `let x${j} = value_entries[(${s * ENTRIES} + ((codes >> ${8 * j}u) & 15u)) * ${LANES} + lane];`)}
        ${turnAbout}
        ${each(vectors(Q), v => `{ let w = ${weighed.at(Q, b * 8 + n, v)}; ${each(4, k => `d${k}_${v} += vec4u(${each(4, q => `dot4U8Packed(y${k}, w[${q}])`, ', ')});`, ' ')} }`)}
      }`,
      )}`;
  return {
    name: `additive ${rounds} ${name}`,
    dim: D,
    loaded: weighed.loaded,
    fixed: rounds * LANES * ENTRIES,
    text: Q => `${weighed.text(Q)}
var<workgroup> value_entries: array<u32, ${rounds * ENTRIES * LANES}>;`,
    setup: /* wgsl */ `
  let first_values = ${word(`head * ${D / 4}`)};
  let value_columns = ${word(`head * ${D / 4} + ${D / 4}`)} - first_values;
  for (var n = own; n < value_columns * ${ENTRIES}; n += ${SIZE}) {
    let c = n / ${ENTRIES};
    value_entries[(c / ${LANES} * ${ENTRIES} + n % ${ENTRIES}) * ${LANES} + c % ${LANES}] = ${word(`p.valueColumns + (first_values + c) * ${COLUMN_WORDS} + 2 + n % ${ENTRIES}`)};
  }`,
    sum: (Q, tokens) => `
  ${weighed.put(Q, tokens)}
  ${each(vectors(Q), v => `let all${v} = sum_of(more${v}); more${v} = vec4f(0.0);`, ' ')}
  ${each(
    rounds,
    s => `
  if (c${s} < value_columns) {
    let c = c${s};
    ${each(4, k => each(vectors(Q), v => `var d${k}_${v} = vec4u(0);`, ' '), ' ')}
    ${each(P / 32, b => `let codes${b} = pool4[valuePage / 16 + (first_values + c) * ${P / 32} + ${b}];`)}
    ${each(P / 32, b => `if (p.four > 0u) { ${strip(Q, s, b)} }`)}
    ${each(4, k => each(vectors(Q), v => `o${s}_${k}_${v} = fma(vec4f(-128.0), all${v}, vec4f(d${k}_${v})) * unit${s};`, ' '), ' ')}
  }`,
  )}`,
    dims: 0,
    dimOf: () => '',
    // Columns of one quad are added one after the other.
    turns: {
      count: BOOKS,
      declare: Q =>
        each(
          rounds,
          s => `
  let c${s} = lane + ${s * LANES};
  let about${s} = p.valueColumns + (first_values + min(c${s}, value_columns - 1)) * ${COLUMN_WORDS};
  let quad${s} = ${word(`about${s}`)};
  let unit${s} = bitcast<f32>(${word(`about${s} + 1`)}) * ${float(1 / 255)};
  let order${s} = select(${BOOKS}u, first_values + c${s} - ${word(`head * ${D / 4} + quad${s}`)}, c${s} < value_columns);
  ${each(4, k => each(vectors(Q), v => `var o${s}_${k}_${v} = vec4f(0.0);`, ' '), ' ')}`,
        ),
      add: Q =>
        each(
          rounds,
          s =>
            `if (order${s} == turn) { ${each(4, k => each(vectors(Q), v => `{ let at = (4 * quad${s} + ${k}) * ${vectors(Q)} + ${v}; sums[${groupOf}][at] = fma(o${s}_${k}_${v}, by${v}, sums[${groupOf}][at]); }`, ' '), ' ')} }`,
        ),
    },
  };
}

/** Most nibbles of a quad. */
const BOOKS = 6;
