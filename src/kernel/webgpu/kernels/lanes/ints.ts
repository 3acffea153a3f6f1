/**
 * Codes multiplied as integers, four at a time (dot4I8Packed, dot4U8Packed).
 *
 *   keys     in rows: four dims in a word, against an int8 query
 *   values   in columns: four tokens in a word, against weights of 8 bits, of which the page's largest is 255
 *
 * A code becomes a byte that its level is a line of (../levels.ts). What the offset adds is the same for all tokens (or dims)
 * and is added once.
 */

import type { Fragment, PageFragment } from '../../../fragment.ts';
import { int8Words } from '../domain.ts';
import { type Bytes, bytesOf, tableBytes } from '../levels.ts';
import type { PageShape } from '../shape.ts';
import { stripsOf, type Word } from '../strips.ts';
import { each, float, turnAbout } from '../text.ts';
import { type KeyPart, of, roundsOf, type Tokens, type ValuePart, vectors } from './attend.ts';
import { queryAt, queryText, takeQueries } from './queries.ts';
import { LANES } from './talk.ts';
import { askFor, type Lines, type Walk, walk } from './walk.ts';
import { sumOfBytes, weighedBytes } from './weighed.ts';

/** Eights of dims of pairs that are read before the first of them is used. */
const EIGHTS = 4;

type Levels = PageFragment & { kind: 'levels' };

const aligned = ({ sharedBytes, blockBytes }: Fragment, offset: number) =>
  [sharedBytes, blockBytes, offset].every(n => n % 16 === 0);

/** Levels and norms that lines can be read of. */
function levelsOf(fragment: Fragment, order: 'rows' | 'columns' | 'pairs'): Levels | undefined {
  const { page } = fragment;
  if (page.kind !== 'levels' || page.codes.order !== order || page.norms.bytes !== 2) return undefined;
  if (page.codes.bits === 1) return undefined;
  return aligned(fragment, page.codes.offset) && page.norms.offset % 8 === 0 ? page : undefined;
}

/** Norms of a lane's tokens. */
const fetchNorms = (side: 'key' | 'value', offset: number, P: number) => (tokens: Tokens) =>
  each(roundsOf(P), c =>
    tokens.strided
      ? `let ${side}Norms${c} = vec4f(${each(4, j => `half(${side}Block + ${offset} + 2 * min(${tokens.at(c, j)}, ${P - 1}u))`, ', ')});`
      : `let ${side}Norms${c} = four_halves(${side}Block + ${offset} + 8 * min(lane + ${LANES * c}, ${P / 4 - 1}u));`,
  );

/** Products of four codes of every line with a word that all lanes share, for all queries. */
export const products = (
  Q: number,
  sign: 'I' | 'U',
  lines: readonly string[],
  sum: (l: number, q: number) => string,
  shared: (v: number) => string,
): string => `${each(vectors(Q), v => `let by${v} = ${shared(v)};`, ' ')}
      ${lines.map((codes, l) => `{ let c = ${codes}; ${each(Q, q => `${sum(l, q)} += dot4${sign}8Packed(c, ${of('by', q)});`, ' ')} }`).join(' ')}`;

/** Columns of round r under weights of 8 bits, times `unitsV`, added to `oR_J_V`. */
export const addColumns = (
  Q: number,
  r: number,
  lines: Lines,
  bytes: (words: Word[]) => string[],
  weights: (n: string, v: number) => string,
  options: Walk,
): string => `
      ${each(4, j => each(vectors(Q), v => `var d${j}_${v} = vec4u(0);`, ' '))}
      ${walk(
        lines,
        (n, words) =>
          products(
            Q,
            'U',
            bytes(words),
            (l, q) => of(`d${l}_`, q),
            v => weights(n, v),
          ),
        options,
      )}
      ${each(4, j => each(vectors(Q), v => `o${r}_${j}_${v} = fma(vec4f(d${j}_${v}), units${v}, o${r}_${j}_${v} * kept${v});`, ' '))}`;

/** Keys of levels: what makes the sums `dC_J_V` of chunk c, and how words of queries are ordered, if otherwise. */
function levelKeys(
  name: string,
  { norms }: Levels,
  { unit, middle, text }: Bytes,
  { headDim: D, pageTokens: P }: PageShape,
  sums: (Q: number, c: number) => string,
  order?: { text: string; word(origin: string): string },
): KeyPart {
  return {
    name: `int ${name}`,
    dim: D,
    words: int8Words(D),
    int8: true,
    text: Q => `${text}\n${order?.text ?? ''}\n${queryText(Q, D)}`,
    load: Q => `${takeQueries(Q, D, order?.word)}
  ${each(vectors(Q), v => `let unit${v} = scale${v} * ${float(unit)}; let middle${v} = scale${v} * sums${v} * ${float(-middle * unit)};`)}`,
    fetch: fetchNorms('key', norms.offset, P),
    sums: Q =>
      each(
        roundsOf(P),
        c => `
    ${each(4, j => each(vectors(Q), v => `var d${c}_${j}_${v} = vec4i(0);`, ' '))}
    ${sums(Q, c)}
    ${each(Q, q => `let dots${c}_${q} = vec4f(vec4i(${each(4, j => of(`d${c}_${j}_`, q), ', ')}));`)}`,
      ),
    score: (q, c, plus) =>
      `fma(keyNorms${c}, fma(dots${c}_${q}, vec4f(${of('unit', q)}), vec4f(${of('middle', q)})), ${plus ?? 'vec4f(0.0)'})`,
    constant: v => `constants${v}`,
  };
}

/** Rows: a lane reads those of its tokens, four at a time. */
export function intKeys(name: string, fragment: Fragment, shape: PageShape): KeyPart | undefined {
  const { headDim: D, pageTokens: P } = shape;
  const page = levelsOf(fragment, 'rows');
  const strips = page && stripsOf(page.codes.bits, D, P, !page.uniform);
  const bytes = page && bytesOf('key', page);
  if (!page || !strips || !bytes || fragment.turn || P % 4 !== 0) return undefined;
  const lines = (c: number): Lines => ({
    strips,
    id: `k${c}_`,
    at: `keyBlock + ${page.codes.offset}`,
    places: [0, 1, 2, 3].map(j => `min(lane + ${LANES * c}, ${P / 4 - 1}u) + ${(P / 4) * j}`),
  });
  return levelKeys(name, page, bytes, shape, (Q, c) =>
    walk(lines(c), (n, words) =>
      products(
        Q,
        'I',
        words.map(bytes.of),
        (l, q) => of(`d${c}_${l}_`, q),
        v => queryAt(Q, n, v),
      ),
    ),
  );
}

/** Words 2 n and 2 n + 1 of a query have the even and the odd ones of dims 8 n to 8 n + 7. */
const EVERY_OTHER = {
  text: /* wgsl */ `
fn every_other(a: u32, b: u32, odd: u32) -> u32 {
  let x = a >> (8 * odd);
  let y = b >> (8 * odd);
  return ((x & 0xffu) | ((x >> 8u) & 0xff00u)) | (((y & 0xffu) << 16u) | ((y << 8u) & 0xff000000u));
}`,
  word: (origin: string) => `every_other(queries[${origin} + n / 2 * 2], queries[${origin} + n / 2 * 2 + 1], n % 2)`,
};

/**
 * Columns of nibbles that hold two dims each: a lane reads the words of its tokens. Four of them turned about have eight dims
 * of a token each, the even ones in the lower bits.
 */
export function pairKeys(name: string, fragment: Fragment, shape: PageShape): KeyPart | undefined {
  const { headDim: D, pageTokens: P } = shape;
  const page = levelsOf(fragment, 'pairs');
  const bytes = page && tableBytes('key', page.levels);
  if (!page || !bytes || fragment.turn || D % (8 * EIGHTS) !== 0 || P % 32 !== 0) return undefined;
  const columns = 4 * EIGHTS;
  const eight = (Q: number, c: number, m: number) => `{
        ${each(4, k => `let x${k} = k${4 * m + k} >> column_shift;`, ' ')}
        ${turnAbout}
        ${each(
          2,
          odd =>
            `{ ${products(
              Q,
              'I',
              [0, 1, 2, 3].map(j => bytes.join(`(y${j} >> ${2 * odd}u)`, '')),
              (j, q) => of(`d${c}_${j}_`, q),
              v => queryAt(Q, `2 * (eight + ${m}) + ${odd}`, v),
            )} }`,
        )}
      }`;
  return levelKeys(
    name,
    page,
    bytes,
    shape,
    (Q, c) => `{
    let four = min(lane + ${LANES * c}, ${P / 4 - 1}u);
    let column_word = (keyBlock + ${page.codes.offset}) / 4 + four / 8 * ${2 * D} + four % 4;
    let column_shift = four / 4 % 2 * 4;
    ${each(columns, k => `var next${k} = pool[column_word + ${4 * k}];`)}
    for (var eight = 0u; eight < ${D / 8} * p.four / 4; eight += ${EIGHTS}) {
      ${each(columns, k => `let k${k} = next${k};`, ' ')}
      ${each(columns, k => `next${k} = pool[column_word + 16 * min(eight + ${EIGHTS}, ${D / 8 - EIGHTS}u) + ${4 * k}];`)}
      ${each(EIGHTS, m => eight(Q, c, m))}
    }
    }`,
    EVERY_OTHER,
  );
}

export function intValues(name: string, fragment: Fragment, shape: PageShape): ValuePart | undefined {
  const { headDim: D, pageTokens: P } = shape;
  const page = levelsOf(fragment, 'columns') ?? levelsOf(fragment, 'pairs');
  const dims = page?.codes.order === 'pairs' ? 2 : 1;
  const strips = page && stripsOf(dims * page.codes.bits, P, D / dims, !page.uniform);
  const bytes = page && bytesOf('value', page);
  if (!page || !strips || !bytes) return undefined;
  const { codes, norms, uniform } = page;
  // Three bits are two or three vectors a line: on their way while keys are read, they would take too many registers.
  const early = codes.bits !== 3;
  const weighed = weighedBytes(P);
  const rounds = roundsOf(D);
  const lines = (r: number): Lines => ({
    strips,
    id: `c${r}_`,
    at: `valueBlock + ${codes.offset}`,
    places: [0, 1, 2, 3].slice(0, 4 / dims).map(j => `min(lane + ${((4 * r) / dims + j) * LANES}, ${D / dims - 1}u)`),
  });
  // Of a pair the second dim has the upper bits.
  const ofWord = (word: Word) => (dims === 1 ? [word] : [word, { ...word, low: `(${word.low} >> 2u)` }]).map(bytes.of);
  const columns = (Q: number, r: number) =>
    addColumns(
      Q,
      r,
      lines(r),
      words => words.flatMap(ofWord),
      (n, v) => weighed.at(Q, n, v),
      { asked: early && r === 0, flipped: uniform },
    );
  return {
    name: `int ${name}`,
    dim: D,
    room: weighed.room,
    factor: c => `valueNorms${c}`,
    fetch: tokens => `${fetchNorms('value', norms.offset, P)(tokens)} ${early ? askFor(lines(0)) : ''}`,
    // Columns side by side are for lanes side by side.
    strided: dims === 1,
    dimOf: dims === 1 ? undefined : (r, j) => `(2 * lane + ${4 * LANES * r + 2 * LANES * (j >> 1) + (j & 1)})`,
    text: Q => `${bytes.text}\n${weighed.declare(Q)}`,
    declare: Q => each(vectors(Q), v => `var more${v} = vec4f(0.0);`, ' '),
    sum: (Q, tokens) => `
    ${each(vectors(Q), v => `var added${v} = vec4f(0.0);`, ' ')}
    ${weighed.put(
      Q,
      tokens,
      (q, c) => `w${c}_${q}`,
      v => `added${v} += ${sumOfBytes} * ${float((-bytes.middle * bytes.unit) / 255)};`,
    )}
    ${each(vectors(Q), v => `more${v} = fma(more${v}, kept${v}, added${v} * whole${v});`, ' ')}
    ${each(
      rounds,
      r => `{
      ${each(vectors(Q), v => `let units${v} = whole${v} * ${float(bytes.unit / 255)};`)}
      ${columns(Q, r)}
    }`,
    )}`,
    result: Q => `
  ${each(vectors(Q), v => `more${v} = all_of(more${v});`, ' ')}
  ${each(rounds, r => each(vectors(Q), v => each(4, j => `o${r}_${j}_${v} += more${v};`, ' ')))}`,
  };
}
