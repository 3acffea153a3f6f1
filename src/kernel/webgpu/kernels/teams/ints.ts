/**
 * Codes multiplied as integers, four at a time (dot4I8Packed, dot4U8Packed).
 *
 *   keys     in rows: four dims in a word, against an int8 query
 *   values   in columns: four tokens in a word, against weights of 8 bits, of which the page's largest is 255
 *
 * A code becomes a byte that its level is a line of (levels.ts). What the middle adds is the same for all tokens (or dims)
 * and is added once. Four lines are read at a time, a strip of each: what is in flight at once must fit into registers.
 */

import type { Fragment, PageFragment } from '../../../fragment.ts';
import { int8Words } from '../domain.ts';
import { LANES } from '../lanes/talk.ts';
import type { PageShape } from '../shape.ts';
import { type Strips, stripsOf, type Word } from '../strips.ts';
import { each, float } from '../text.ts';
import { type KeyPart, type Tokens, type ValuePart, vectors } from './attend.ts';
import { type Bytes, bytesOf } from './levels.ts';
import { SIZE } from './talk.ts';
import { weighedBytes } from './weighed.ts';

type Levels = PageFragment & { kind: 'levels' };

/** Lines that are read at a time, and pairs of columns. */
const AT_ONCE = 4;
const COLUMNS = 4;

const aligned = ({ sharedBytes, blockBytes }: Fragment, offset: number) =>
  [sharedBytes, blockBytes, offset].every(n => n % 16 === 0);

/** Levels and norms that lines can be read of. */
function levelsOf(fragment: Fragment, order: 'rows' | 'columns' | 'pairs'): Levels | undefined {
  const { page } = fragment;
  if (page.kind !== 'levels' || page.codes.order !== order || page.norms.bytes !== 2) return undefined;
  if (page.codes.bits === 1) return undefined;
  return aligned(fragment, page.codes.offset) && page.norms.offset % 8 === 0 ? page : undefined;
}

const fitsLanes = ({ headDim: D, pageTokens: P }: PageShape) => D % LANES === 0 && P % LANES === 0 && P <= 4 * LANES;

/** The products of some words with as many vectors of words, all queries of a vector, added to `sum`. */
const addProducts = (sum: string, type: 'I' | 'U', words: readonly string[], by: readonly string[]) =>
  `${sum} += vec4${type === 'I' ? 'i' : 'u'}(${each(4, k => words.map((word, n) => `dot4${type}8Packed(${word}, ${by[n]}[${k}])`).join(' + '), ', ')});`;

/** What lines are multiplied by and how. */
interface Lines {
  strips: Strips;
  /** How many a lane has, where their grid begins, and where line L lies in a strip. */
  count: number;
  at: string;
  place(l: number): string;
  /** Word n of vector v of what all lanes share. */
  shared(n: number, v: number): string;
  type: 'I' | 'U';
  /** What a word is multiplied as, for each of the sums that a line has. */
  bytes: readonly ((word: Word) => string)[];
}

/**
 * Lines of a lane against words that all lanes share, for all queries: `sumN_V`. Strips are blocks of their own, so that a
 * compiler does not read all of them at once and has no registers left.
 */
function products(Q: number, { strips, count, at, place, shared, type, bytes }: Lines): string {
  const V = vectors(Q);
  const sums = bytes.length;
  /** Words n and n + 1 of a strip, of lines l. */
  const both = (strip: number, n: number, lines: readonly number[]) => `{
      ${each(2, k => each(V, v => `let q${k}_${v} = ${shared(strip * strips.words + n + k, v)};`, ' '), ' ')}
      ${lines
        .map(l =>
          each(
            sums,
            e => `{ ${each(2, k => `let x${k} = ${bytes[e](strips.word(`c${l}_`, n + k))};`, ' ')}
      ${each(V, v => addProducts(`sum${l * sums + e}_${v}`, type, ['x0', 'x1'], [`q0_${v}`, `q1_${v}`]), ' ')} }`,
          ),
        )
        .join('\n')}
    }`;
  const some = (first: number, strip: number) => {
    const lines = Array.from({ length: Math.min(AT_ONCE, count - first) }, (_, k) => first + k);
    const load = (l: number) => strips.load(at, place(l), `${strip}u`).map((x, c) => `let c${l}_${c} = ${x};`);
    return `if (p.four > 0u) {
    ${lines.flatMap(load).join('\n')}
    ${each(strips.words / 2, m => both(strip, 2 * m, lines))}
  }`;
  };
  return `${each(count * sums, n => each(V, v => `var sum${n}_${v} = vec4${type === 'I' ? 'i' : 'u'}(0);`, ' '))}
  ${each(Math.ceil(count / AT_ONCE), n => each(strips.count, strip => some(n * AT_ONCE, strip)))}`;
}

/** Int8 queries of four a word in workgroup memory, and their scales, sums and constants. */
const takeQueries = (Q: number, D: number) => `
  for (var at = own; at < ${Q * int8Words(D)}; at += ${SIZE}) {
    let q = at / ${int8Words(D)};
    let n = at % ${int8Words(D)};
    let word = queries[origin(item, head, q) + n];
    room[n * ${vectors(Q)} + q / 4][q % 4] = word;
  }`;

const queryRoom = (D: number) => (Q: number) => int8Words(D) * vectors(Q);

const fetchNorms = (side: 'key' | 'value', offset: number, P: number) => (tokens: Tokens) =>
  each(tokens.each, j => `let ${side}Norm${j} = half(${side}Block + ${offset} + 2 * min(${tokens.at(j)}, ${P - 1}u));`);

/** The score of token j for the queries of vector v, which have a scale, a sum and a constant. */
const scoreOf = ({ unit, middle }: Bytes, D: number, Q: number, j: number, v: number) => {
  const scalars = (n: number) => `bitcast<vec4f>(room[${(D / 4 + n) * vectors(Q) + v}])`;
  return `fma(${scalars(0)} * keyNorm${j}, fma(dots${j}_${v}, vec4f(${float(unit)}), ${scalars(1)} * ${float(-middle * unit)}), ${scalars(2)})`;
};

/** Rows: a lane reads those of its tokens. */
export function intKeys(name: string, fragment: Fragment, shape: PageShape): KeyPart | undefined {
  const { headDim: D, pageTokens: P } = shape;
  const page = levelsOf(fragment, 'rows');
  const strips = page && stripsOf(page.codes.bits, D, P);
  const bytes = page && bytesOf('key', page);
  if (!page || !strips || !bytes || fragment.turn || !fitsLanes(shape)) return undefined;
  const { codes, norms } = page;
  return {
    name: `int ${name}`,
    dim: D,
    words: int8Words(D),
    even: page.uniform,
    text: bytes.text,
    room: queryRoom(D),
    load: Q => takeQueries(Q, D),
    fetch: fetchNorms('key', norms.offset, P),
    sums: Q => `
  ${products(Q, { strips, count: 4, at: `keyBlock + ${codes.offset}`, place: l => `min(lane, ${P / 4 - 1}u) + ${(P / 4) * l}`, shared: (n, v) => `room[${n * vectors(Q) + v}]`, type: 'I', bytes: [bytes.of] })}
  ${each(4, j => each(vectors(Q), v => `let dots${j}_${v} = vec4f(sum${j}_${v});`, ' '))}`,
    score: (Q, j, v) => scoreOf(bytes, D, Q, j, v),
  };
}

/**
 * Columns of nibbles that hold two dims each: a lane has four tokens. Two columns make a byte a token with the codes of four
 * dims, which shifts spread over four bytes.
 */
export function pairKeys(name: string, fragment: Fragment, shape: PageShape): KeyPart | undefined {
  const { headDim: D, pageTokens: P } = shape;
  const page = levelsOf(fragment, 'pairs');
  const bytes = page && bytesOf('key', page);
  if (!page || !bytes || fragment.turn || !fitsLanes(shape)) return undefined;
  const { codes, norms } = page;
  return {
    name: `int ${name}`,
    dim: D,
    words: int8Words(D),
    text: bytes.text,
    room: queryRoom(D),
    load: Q => takeQueries(Q, D),
    fetch: fetchNorms('key', norms.offset, P),
    sums: Q => `
  let own_four = min(lane, ${P / 4 - 1}u);
  let column_word = (keyBlock + ${codes.offset}) / 4 + own_four / 8 * ${2 * D} + own_four % 4;
  let column_shift = own_four / 4 % 2 * 4;
  ${each(4, j => each(vectors(Q), v => `var sum${j}_${v} = vec4i(0);`, ' '))}
  for (var n = 0u; n < ${D / 4} / 4 * p.four; n += ${COLUMNS}) {
    ${each(2 * COLUMNS, c => `let k${c} = pool[column_word + (2 * n + ${c}) * 4];`)}
    ${each(
      COLUMNS,
      m => `{
      ${each(vectors(Q), v => `let q${v} = room[(n + ${m}) * ${vectors(Q)} + ${v}];`, ' ')}
      let both = ((k${2 * m} >> column_shift) & 0x0f0f0f0fu) | (((k${2 * m + 1} >> column_shift) & 0x0f0f0f0fu) << 4u);
      ${each(4, j => `{ let b = (both >> ${8 * j}u) & 0xffu; let y = b | (b << 6u); let c = ${bytes.of({ codes: '(y | (y << 12u))', top: '' })}; ${each(vectors(Q), v => addProducts(`sum${j}_${v}`, 'I', ['c'], [`q${v}`]), ' ')} }`)}
    }`,
    )}
  }
  ${each(4, j => each(vectors(Q), v => `let dots${j}_${v} = vec4f(sum${j}_${v});`, ' '))}`,
    score: (Q, j, v) => scoreOf(bytes, D, Q, j, v),
  };
}

/** Columns: a lane reads those of its dims; of pairs, a code of four bits has two dims. */
export function intValues(name: string, fragment: Fragment, shape: PageShape): ValuePart | undefined {
  const { headDim: D, pageTokens: P } = shape;
  const page = levelsOf(fragment, 'columns') ?? levelsOf(fragment, 'pairs');
  if (!page || !fitsLanes(shape)) return undefined;
  const { codes, norms } = page;
  const dims = codes.order === 'pairs' ? 2 : 1;
  const strips = stripsOf(dims * codes.bits, P, D / dims);
  const lines = D / dims / LANES;
  const bytes = bytesOf('value', page);
  if (!strips || !bytes || lines % 1 !== 0) return undefined;
  const { middle, unit } = bytes;
  const weighed = weighedBytes(P);
  // Of a pair the second dim has the upper bits.
  const sums = Array.from(
    { length: dims },
    (_, e) =>
      ({ codes, top }: Word) =>
        bytes.of({ codes: e === 0 ? codes : `(${codes} >> 2u)`, top }),
  );
  return {
    name: `int ${name}`,
    dim: D,
    even: page.uniform,
    constant: true,
    dims: D / LANES,
    dimOf: i => `(${dims} * (lane + ${LANES * Math.floor(i / dims)}) + ${i % dims})`,
    text: bytes.text,
    room: weighed.room,
    factor: j => `valueNorm${j}`,
    fetch: fetchNorms('value', norms.offset, P),
    sum: (Q, tokens) => `
  ${weighed.put(Q, tokens)}
  { ${products(Q, { strips, count: lines, at: `valueBlock + ${codes.offset}`, place: l => `lane + ${LANES * l}`, shared: (n, v) => weighed.at(Q, n, v), type: 'U', bytes: sums })}
  ${each(D / LANES, i => each(vectors(Q), v => `o${i}_${v} = vec4f(sum${i}_${v}) * (by${v} * ${float(unit / 255)});`, ' '))} }
  ${each(vectors(Q), v => `more${v} *= ${float((-middle * unit) / 255)};`, ' ')}`,
  };
}
