/**
 * Levels (tq2 to tq4, tqNu) as integers, four codes at a time (dot4I8Packed, dot4U8Packed).
 *
 *   keys     in rows: four dims per word, against an int8 query
 *   values   in columns: four tokens per word, against quantized probabilities
 *
 * A code becomes a byte that its level is linear in (../levels.ts). What the zero point adds is the same for all tokens
 * (or dims) and is added once.
 */

import type { PageEncoding, PageLayout } from '../../../page-layout.ts';
import { type LevelBytes, levelBytes, tableBytes } from '../levels.ts';
import { blockStart, type Side } from '../names.ts';
import type { PageShape } from '../shape.ts';
import { each, float, transpose4x4Bytes } from '../snippets.ts';
import { stripsOf, type Word } from '../strips.ts';
import { int8Words } from '../transform.ts';
import { type KeyStage, roundsOf, type Tokens, type ValueStage } from './attend.ts';
import { loadQueries, queryDeclaration, queryWord } from './int8-queries.ts';
import {
  component,
  dots,
  opaque,
  output,
  pageFactor,
  probabilities,
  queryScale,
  querySum,
  rescale,
  vectors,
} from './names.ts';
import { quantizedProbabilities, sumsOfWords } from './quantized-probabilities.ts';
import { type Lines, prefetchStrip, type StripLoopOptions, stripLoop } from './strip-loop.ts';
import { LANES } from './subgroup.ts';

/** Groups of eight dims of pairs prefetched before the first is used. */
const PREFETCHED_EIGHTS = 4;

type Levels = PageEncoding & { kind: 'levels' };

const aligned = ({ sharedBytes, blockBytes }: PageLayout, offset: number) =>
  [sharedBytes, blockBytes, offset].every(n => n % 16 === 0);

/** The page encoding, if its lines can be loaded as vectors. */
function levelsOf(layout: PageLayout, order: 'rows' | 'columns' | 'pairs'): Levels | undefined {
  const { encoding } = layout;
  if (encoding.kind !== 'levels' || encoding.codes.order !== order || encoding.norms.bytes !== 2) return undefined;
  if (encoding.codes.bits === 1) return undefined;
  return aligned(layout, encoding.codes.offset) && encoding.norms.offset % 8 === 0 ? encoding : undefined;
}

/** Norms of a lane's tokens of chunk c (vec4f). */
const normsName = (side: Side, c: number) => `${side}_norms${c}`;

/** Loads the norms of a lane's tokens. */
const loadNorms = (side: Side, offset: number, P: number) => (tokens: Tokens) =>
  each(roundsOf(P), c =>
    tokens.strided
      ? `let ${normsName(side, c)} = vec4f(${each(4, j => `read_f16(${blockStart(side)} + ${offset} + 2 * min(${tokens.at(c, j)}, ${P - 1}u))`, ', ')});`
      : `let ${normsName(side, c)} = read_f16x4(${blockStart(side)} + ${offset} + 8 * min(lane + ${LANES * c}, ${P / 4 - 1}u));`,
  );

/** Dot products of four codes of every line with a word that all lanes share, for all queries. */
export const products = (
  Q: number,
  sign: 'I' | 'U',
  lines: readonly string[],
  sum: (l: number, q: number) => string,
  shared: (v: number) => string,
): string => `${each(vectors(Q), v => `let by${v} = ${shared(v)};`, ' ')}
      ${lines.map((codes, l) => `{ let c = ${codes}; ${each(Q, q => `${sum(l, q)} += dot4${sign}8Packed(c, ${component('by', q)});`, ' ')} }`).join(' ')}`;

/** Accumulates the columns of round r under quantized probabilities times `unitsV` into `output(r, j, v)`. */
export const addColumns = (
  Q: number,
  r: number,
  lines: Lines,
  bytes: (words: Word[]) => string[],
  weights: (n: string, v: number) => string,
  options: StripLoopOptions,
): string => `
      ${each(4, j => each(vectors(Q), v => `var d${j}_${v} = vec4u(0);`, ' '))}
      ${stripLoop(
        lines,
        (n, words) =>
          products(
            Q,
            'U',
            bytes(words),
            (l, q) => component(`d${l}_`, q),
            v => weights(n, v),
          ),
        options,
      )}
      ${each(4, j => each(vectors(Q), v => `${output(r, j, v)} = fma(vec4f(d${j}_${v}), units${v}, ${output(r, j, v)} * ${rescale(v)});`, ' '))}`;

/** Keys of levels: `sums` computes `dC_J_V` for chunk c; `order` permutes the words of queries. */
function levelKeys(
  name: string,
  { norms }: Levels,
  { scale, zeroPoint, text }: LevelBytes,
  { headDim: D, pageTokens: P }: PageShape,
  sums: (Q: number, c: number) => string,
  order?: { text: string; word(origin: string): string },
): KeyStage {
  return {
    name: `int ${name}`,
    dim: D,
    queryWords: int8Words(D),
    int8: true,
    text: Q => `${text}\n${order?.text ?? ''}\n${queryDeclaration(Q, D)}`,
    load: Q => `${loadQueries(Q, D, order?.word)}
  ${each(vectors(Q), v => `let unit${v} = ${queryScale(v)} * ${float(scale)}; let middle${v} = ${queryScale(v)} * ${querySum(v)} * ${float(-zeroPoint * scale)};`)}`,
    loadConstants: loadNorms('key', norms.offset, P),
    sums: Q =>
      each(
        roundsOf(P),
        c => `
    ${each(4, j => each(vectors(Q), v => `var d${c}_${j}_${v} = vec4i(0);`, ' '))}
    ${sums(Q, c)}
    ${each(Q, q => `let ${dots(c, q)} = vec4f(vec4i(${each(4, j => component(`d${c}_${j}_`, q), ', ')}));`)}`,
      ),
    score: (q, c, plus) =>
      `fma(${normsName('key', c)}, fma(${dots(c, q)}, vec4f(${component('unit', q)}), vec4f(${component('middle', q)})), ${plus ?? 'vec4f(0.0)'})`,
  };
}

/** Rows: a lane loads those of its tokens, four at a time. */
export function levelRowKeys(name: string, layout: PageLayout, shape: PageShape): KeyStage | undefined {
  const { headDim: D, pageTokens: P } = shape;
  const page = levelsOf(layout, 'rows');
  const strips = page && stripsOf(page.codes.bits, D, P, !page.uniform);
  const bytes = page && levelBytes('key', page);
  if (!page || !strips || !bytes || layout.ropeFrequencies || P % 4 !== 0) return undefined;
  const lines = (c: number): Lines => ({
    strips,
    id: `k${c}_`,
    at: `${blockStart('key')} + ${page.codes.offset}`,
    lineIndices: [0, 1, 2, 3].map(j => `min(lane + ${LANES * c}, ${P / 4 - 1}u) + ${(P / 4) * j}`),
  });
  return levelKeys(name, page, bytes, shape, (Q, c) =>
    stripLoop(lines(c), (n, words) =>
      products(
        Q,
        'I',
        words.map(bytes.of),
        (l, q) => component(`d${c}_${l}_`, q),
        v => queryWord(Q, n, v),
      ),
    ),
  );
}

/** Words 2 n and 2 n + 1 of a query have the even and the odd dims of 8 n to 8 n + 7. */
const EVEN_ODD_ORDER = {
  text: /* wgsl */ `
fn even_or_odd_bytes(a: u32, b: u32, odd: u32) -> u32 {
  let x = a >> (8 * odd);
  let y = b >> (8 * odd);
  return ((x & 0xffu) | ((x >> 8u) & 0xff00u)) | (((y & 0xffu) << 16u) | ((y << 8u) & 0xff000000u));
}`,
  word: (origin: string) =>
    `even_or_odd_bytes(queries[${origin} + n / 2 * 2], queries[${origin} + n / 2 * 2 + 1], n % 2)`,
};

/**
 * Columns of nibbles with two dims each: a lane loads the words of its tokens. Four words transposed have eight dims
 * per token, the even ones in the lower bits.
 */
export function levelPairKeys(name: string, layout: PageLayout, shape: PageShape): KeyStage | undefined {
  const { headDim: D, pageTokens: P } = shape;
  const page = levelsOf(layout, 'pairs');
  const bytes = page && tableBytes('key', page.levels);
  if (!page || !bytes || layout.ropeFrequencies || D % (8 * PREFETCHED_EIGHTS) !== 0 || P % 32 !== 0) return undefined;
  const columns = 4 * PREFETCHED_EIGHTS;
  const eight = (Q: number, c: number, m: number) => `{
        ${each(4, k => `let x${k} = k${4 * m + k} >> column_shift;`, ' ')}
        ${transpose4x4Bytes}
        ${each(
          2,
          odd =>
            `{ ${products(
              Q,
              'I',
              [0, 1, 2, 3].map(j => bytes.join(`(y${j} >> ${2 * odd}u)`, '')),
              (j, q) => component(`d${c}_${j}_`, q),
              v => queryWord(Q, `2 * (eight + ${m}) + ${odd}`, v),
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
    let column_word = (${blockStart('key')} + ${page.codes.offset}) / 4 + four / 8 * ${2 * D} + four % 4;
    let column_shift = four / 4 % 2 * 4;
    ${each(columns, k => `var next${k} = pool[column_word + ${4 * k}];`)}
    for (var eight = 0u; eight < ${opaque(D / 8)}; eight += ${PREFETCHED_EIGHTS}) {
      ${each(columns, k => `let k${k} = next${k};`, ' ')}
      ${each(columns, k => `next${k} = pool[column_word + 16 * min(eight + ${PREFETCHED_EIGHTS}, ${D / 8 - PREFETCHED_EIGHTS}u) + ${4 * k}];`)}
      ${each(PREFETCHED_EIGHTS, m => eight(Q, c, m))}
    }
    }`,
    EVEN_ODD_ORDER,
  );
}

export function levelValues(name: string, layout: PageLayout, shape: PageShape): ValueStage | undefined {
  const { headDim: D, pageTokens: P } = shape;
  const page = levelsOf(layout, 'columns') ?? levelsOf(layout, 'pairs');
  const dims = page?.codes.order === 'pairs' ? 2 : 1;
  const strips = page && stripsOf(dims * page.codes.bits, P, D / dims, !page.uniform);
  const bytes = page && levelBytes('value', page);
  if (!page || !strips || !bytes) return undefined;
  const { codes, norms, uniform } = page;
  // Three bits take two or three vectors per line: prefetched during the keys, they would take too many registers.
  const prefetchEarly = codes.bits !== 3;
  const quantized = quantizedProbabilities(P);
  const rounds = roundsOf(D);
  const lines = (r: number): Lines => ({
    strips,
    id: `c${r}_`,
    at: `${blockStart('value')} + ${codes.offset}`,
    lineIndices: [0, 1, 2, 3]
      .slice(0, 4 / dims)
      .map(j => `min(lane + ${((4 * r) / dims + j) * LANES}, ${D / dims - 1}u)`),
  });
  // The second dim of a pair has the upper bits.
  const ofWord = (word: Word) => (dims === 1 ? [word] : [word, { ...word, low: `(${word.low} >> 2u)` }]).map(bytes.of);
  const columns = (Q: number, r: number) =>
    addColumns(
      Q,
      r,
      lines(r),
      words => words.flatMap(ofWord),
      (n, v) => quantized.at(Q, n, v),
      { prefetched: prefetchEarly && r === 0, flipSigns: uniform },
    );
  return {
    name: `int ${name}`,
    dim: D,
    scratchVectors: quantized.scratchVectors,
    tokenFactor: c => normsName('value', c),
    loadConstants: tokens =>
      `${loadNorms('value', norms.offset, P)(tokens)} ${prefetchEarly ? prefetchStrip(lines(0)) : ''}`,
    // Neighbouring lanes own neighbouring columns.
    strided: dims === 1,
    dimOf: dims === 1 ? undefined : (r, j) => `(2 * lane + ${4 * LANES * r + 2 * LANES * (j >> 1) + (j & 1)})`,
    text: Q => `${bytes.text}\n${quantized.declare(Q)}`,
    declare: Q => each(vectors(Q), v => `var correction${v} = vec4f(0.0);`, ' '),
    accumulate: (Q, tokens) => `
    ${each(vectors(Q), v => `var page_correction${v} = vec4f(0.0);`, ' ')}
    ${quantized.store(
      Q,
      tokens,
      (q, c) => probabilities(c, q),
      v => `page_correction${v} += ${sumsOfWords} * ${float((-bytes.zeroPoint * bytes.scale) / 255)};`,
    )}
    ${each(vectors(Q), v => `correction${v} = fma(correction${v}, ${rescale(v)}, page_correction${v} * ${pageFactor(v)});`, ' ')}
    ${each(
      rounds,
      r => `{
      ${each(vectors(Q), v => `let units${v} = ${pageFactor(v)} * ${float(bytes.scale / 255)};`)}
      ${columns(Q, r)}
    }`,
    )}`,
    finish: Q => `
  ${each(vectors(Q), v => `correction${v} = reduce_add(correction${v});`, ' ')}
  ${each(rounds, r => each(vectors(Q), v => each(4, j => `${output(r, j, v)} += correction${v};`, ' ')))}`,
  };
}
