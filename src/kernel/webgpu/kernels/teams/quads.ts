/**
 * Pages of entries that stand for four dims each (mead's additive books) as integers: an entry is a word of four bytes.
 *
 *   keys     a lane has eight tokens of every other column: it looks their entries up and multiplies them with the
 *            quad's word of an int8 query. In the end lanes swap, so that each has four tokens of all columns
 *   values   a lane has columns of its own, and so a copy of their books in its own bank; entries of four tokens are
 *            turned about, so that a word has four tokens, and meet weights of 8 bits. Columns that are few are shared by
 *            two or four lanes, with some of the tokens each
 */

import type { Fragment, PageFragment } from '../../../fragment.ts';
import type { AttendShape } from '../attend.ts';
import { LANES } from '../lanes/talk.ts';
import type { PageShape } from '../shape.ts';
import { COLUMN_WORDS, ownTable } from '../tables.ts';
import { each, float, turnAbout } from '../text.ts';
import { type KeyPart, type ValuePart, vectors, type Words } from './attend.ts';
import { SIZE } from './talk.ts';
import { turnedPart } from './turned.ts';
import { weighedBytes } from './weighed.ts';

const ENTRIES = 16;
/** Up to this many columns a lane have their books in workgroup memory. */
const MOST_ROUNDS = 5;
/** Columns of keys whose loads are waited for together. */
const AHEAD = 4;

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

/**
 * Statements that fill the books: word n of column c is put at `place` of its round. All are asked for before the first is waited
 * for.
 */
const fillBooks = (rounds: number, columns: string, entry: string, place: string) => {
  const times = (rounds * LANES * ENTRIES) / SIZE;
  const entryOf = (k: number) => `let c${k} = own / ${ENTRIES} + ${(k * SIZE) / ENTRIES};`;
  return `{
    let n = own % ${ENTRIES};
    ${each(times, k => `${entryOf(k)} var entry${k} = 0u; if (c${k} < ${columns}) { let c = c${k}; entry${k} = ${entry}; }`)}
    ${each(times, k => `if (c${k} < ${columns}) { let c = c${k}; books[c / ${LANES}][${place}] = entry${k}; }`)}
  }`;
};

export function additiveKeys(name: string, fragment: Fragment, shape: AttendShape): KeyPart | undefined {
  const page = additiveOf(fragment, shape);
  if (!page || !fragment.turn) return undefined;
  const { headDim: D, pageTokens: P } = shape;
  // Layers share kernels, so room is for whole rounds of lanes.
  const rounds = Math.ceil(mostColumns(page, shape) / LANES);
  const own = ownTable(fragment);
  const word = (at: string) => `keyTables[${own} + ${at}]`;
  const column = (c: string, k: string) => word(`p.keyColumns + (${c}) * ${COLUMN_WORDS} + ${k}`);
  const firstOf = (quad: string) => word(`head * ${D / 4} + ${quad}`);
  // A word a quad, with its unit in it.
  const words: Words = {
    most: D / 4,
    count: `let count = ${D / 4}u;`,
    step: n =>
      `select(0.0, bitcast<f32>(${column(firstOf(`${n} / 4`), '1')}), ${firstOf(`${n} / 4 + 1`)} > ${firstOf(`${n} / 4`)})`,
    dims: n => `(4 * ${n} + vec4u(0, 1, 2, 3))`,
  };
  const turned = turnedPart(words, shape);
  return {
    name: `additive ${rounds} ${name}`,
    dim: D,
    turned: words,
    text: `${turned.text}
var<workgroup> key_quads: array<u32, ${rounds * LANES}>;`,
    setup: `let first_keys = ${firstOf('0')};
  let key_columns = ${firstOf(`${D / 4}`)} - first_keys;
  for (var c = own; c < key_columns; c += ${SIZE}) { key_quads[c] = ${column('first_keys + c', '0')}; }`,
    books: {
      rounds,
      fill: fillBooks(
        rounds,
        'key_columns',
        `${column('first_keys + c', '2 + n')} ^ 0x80808080u`,
        `c % ${LANES} * ${ENTRIES} + n`,
      ),
    },
    sums: Q => `
  ${turned.begin(Q)}
  // Slot 0 has the upper four bits of a byte where a lane's own tokens lie there, slot 1 where they do not.
  let own_half = lane / 4 % 2;
  let codes_at = keyPage / 4 + first_keys * ${P / 8} + lane / 8 * 4 + lane % 4;
  ${each(2, s => each(4, j => `let shift${s}_${j} = 4 * (own_half ^ ${s}u) + ${8 * j};`, ' '))}
  ${each(
    vectors(Q),
    v => `${each(4, j => `var dots${j}_${v}: vec4f;`, ' ')}
  {
    ${each(2, s => each(4, j => `var d${s}_${j} = vec4i(0);`, ' '))}
    for (var first = own_half; first < key_columns; first += ${2 * AHEAD}) {
      ${each(AHEAD, a => `let c${a} = min(first + ${2 * a}, key_columns - 1); let codes${a} = pool[codes_at + c${a} * ${P / 8}]; let q${a} = select(vec4u(0), ${turned.word(Q, `key_quads[c${a}]`, v)}, first + ${2 * a} < key_columns);`)}
      // Columns beyond the last count nothing. A branch around them would keep a compiler from looking up several at a time.
      ${each(
        AHEAD,
        a => `{
        let book = (c${a} % ${LANES}) << 4u;
        ${each(2, s => each(4, j => `let e${s}_${j} = books[c${a} / ${LANES}][book | ((codes${a} >> shift${s}_${j}) & 15u)];`, ' '))}
        ${each(2, s => each(4, j => `d${s}_${j} += vec4i(${each(4, k => `dot4I8Packed(e${s}_${j}, q${a}[${k}])`, ', ')});`))}
      }`,
      )}
    }
    ${each(4, j => `dots${j}_${v} = vec4f(d0_${j}) + across(vec4f(d1_${j}), 4u);`, ' ')}
  }`,
  )}`,
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
  const column = (c: string, k: string) => word(`p.valueColumns + (${c}) * ${COLUMN_WORDS} + ${k}`);
  const weighed = weighedBytes(P);
  const blocks = P / 32;
  // Entry n of a lane's column is word 32 n + its place among the columns: every column has a bank.
  const entry = (codes: string, bit: number) =>
    `books[round][(${bit > 5 ? `(${codes} >> ${bit - 5}u)` : `(${codes} << ${5 - bit}u)`} & 0x1e0u) | bank]`;
  return {
    name: `additive ${rounds} ${name}`,
    dim: D,
    room: weighed.room,
    dims: 0,
    dimOf: () => '',
    shared: true,
    text: `// Of a column: where it is, its quad and its place in it, 1024 times each other; and its unit.
var<workgroup> value_abouts: array<vec2u, ${rounds * LANES}>;`,
    setup: /* wgsl */ `
  let first_values = ${word(`head * ${D / 4}`)};
  let value_columns = ${word(`head * ${D / 4} + ${D / 4}`)} - first_values;
  for (var n = own; n < value_columns; n += ${SIZE}) {
    let c = ${column('first_values + n', `${COLUMN_WORDS - 1}`)};
    let quad = ${column('first_values + c', '0')};
    let place = first_values + c - ${word(`head * ${D / 4} + quad`)};
    value_abouts[n] = vec2u(c | (quad << 10u) | (place << 20u), ${column('first_values + c', '1')});
  }`,
    books: {
      rounds,
      fill: fillBooks(
        rounds,
        'value_columns',
        column('first_values + value_abouts[c].x % 1024', '2 + n'),
        `n * ${LANES} + c % ${LANES}`,
      ),
    },
    sum: Q => `
  for (var i = lane; i < ${D * vectors(Q)}; i += ${LANES}) { room[sums + i] = vec4u(0); }
  ${weighed.put(Q)}
  ${each(vectors(Q), v => `let all${v} = all_of(more${v});`, ' ')}
  for (var first = 0u; first < value_columns; first += ${LANES}) {
    // Lanes that share a column.
    let left = value_columns - first;
    let sharers = select(select(4u, 2u, left > ${LANES / 4}), 1u, left > ${LANES / 2});
    let bank = lane % (${LANES} / sharers);
    let round = first / ${LANES};
    let about = value_abouts[min(first + bank, value_columns - 1)];
    let at = valuePage / 16 + (first_values + about.x % 1024) * ${blocks};
    let some = ${blocks} / sharers;
    let from_block = lane / (${LANES} / sharers) * some;
    ${each(4, k => each(vectors(Q), v => `var d${k}_${v} = vec4u(0);`, ' '), ' ')}
    for (var b = from_block; b < from_block + some; b++) {
      var codes = pool4[at + b];
      // A loop, since all at once takes too many registers.
      for (var half = 0u; half < 2 * p.four / 4; half++) {
        ${each(
          4,
          n => `{
        ${each(4, j => `let x${j} = ${entry(`codes[${n}]`, 8 * j)};`)}
        ${turnAbout}
        ${each(vectors(Q), v => `{ let w = ${weighed.at(Q, `8 * b + 4 * half + ${n}`, v)}; ${each(4, k => `d${k}_${v} += vec4u(${each(4, q => `dot4U8Packed(y${k}, w[${q}])`, ', ')});`, ' ')} }`)}
      }`,
        )}
        codes >>= vec4u(4);
      }
    }
    ${each(4, k => each(vectors(Q), v => `var o${k}_${v} = vec4f(d${k}_${v});`, ' '), ' ')}
    if (sharers > 1) { ${each(4, k => each(vectors(Q), v => `o${k}_${v} += across(o${k}_${v}, 16u);`, ' '), ' ')} }
    if (sharers > 2) { ${each(4, k => each(vectors(Q), v => `o${k}_${v} += across(o${k}_${v}, 8u);`, ' '), ' ')} }
    let unit = bitcast<f32>(about.y) * ${float(1 / 255)};
    let quad = (about.x >> 10u) % 1024;
    let place = about.x >> 20u;
    let here = lane < min(left, ${LANES}u);
    // Columns are sorted by their place in a quad: lanes with the same place have quads of their own.
    let last = ${column(`first_values + min(first + ${LANES}, value_columns) - 1`, `${COLUMN_WORDS - 2}`)};
    for (var turn = ${column('first_values + first', `${COLUMN_WORDS - 2}`)}; turn <= last; turn++) {
      for (var half = 0u; half < 2; half++) {
        workgroupBarrier();
        if (here && place == turn && team / 2 == half) {
          ${each(4, k => each(vectors(Q), v => `{ let i = sums + (4 * quad + ${k}) * ${vectors(Q)} + ${v}; room[i] = bitcast<vec4u>(fma(fma(vec4f(-128.0), all${v}, o${k}_${v}), by${v} * unit, bitcast<vec4f>(room[i]))); }`, ' '))}
        }
      }
    }
  }`,
  };
}
