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
import { float, transpose4x4Bytes } from '../snippets.ts';
import { stripsOf, type Word } from '../strips.ts';
import { int8Words } from '../transform.ts';
import { type KeyStage, roundsOf, type Tokens, type ValueStage } from './attend.ts';
import { loadQueries, queryDeclaration, queryWord } from './int8-queries.ts';
import { opaque, vectors } from './names.ts';
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

/** Loads the norms of a lane's tokens of each chunk (vec4f): `SIDE_normsC`. */
const loadNorms =
  (side: Side, offset: number, P: number) =>
  ({ strided, at }: Tokens) => {
    const start = `${blockStart(side)} + ${offset}`;
    const norms = strided
      ? `vec4f(@list(j, 4, read_f16(${start} + 2 * min(${at}, ${P - 1}u))))`
      : `read_f16x4(${start} + 8 * min(lane + $(${LANES} * c), ${P / 4 - 1}u))`;
    return `@unroll(c, ${roundsOf(P)}) let ${side}_norms$c = ${norms};`;
  };

/**
 * Dot products of four codes of every line with a word that all lanes share, for all queries: adds those of line L to
 * vec4s named `sums` L_V. `shared` is the word for the queries of vec4 `$v`.
 */
export const products = (
  Q: number,
  sign: 'I' | 'U',
  lines: readonly string[],
  sums: string,
  shared: string,
): string => `@unroll(v, ${vectors(Q)}) let by$v = ${shared};
      ${lines.map((codes, l) => `{ let c = ${codes}; @unroll(q, ${Q}) ${sums}${l}_$[q] += dot4${sign}8Packed(c, by$[q]); }`).join('\n')}`;

/** Accumulates the columns of round r under quantized probabilities times `unitsV` into `outR_J_V`. */
export const addColumns = (
  Q: number,
  r: number,
  lines: Lines,
  bytes: (words: Word[]) => string[],
  weights: (n: string) => string,
  options: StripLoopOptions,
): string => `
      @unroll(j, 4) @unroll(v, ${vectors(Q)}) var d$j_$v = vec4u(0);
      ${stripLoop(lines, (n, words) => products(Q, 'U', bytes(words), 'd', weights(n)), options)}
      @unroll(j, 4) @unroll(v, ${vectors(Q)}) out${r}_$j_$v = fma(vec4f(d$j_$v), units$v, out${r}_$j_$v * rescale$v);`;

/** Keys of levels: `sums` computes `dC_J_V` for chunk c; `order` permutes the words of queries. */
function levelKeys(
  name: string,
  { norms }: Levels,
  { scale, zeroPoint, text }: LevelBytes,
  { headDim: D, pageTokens: P }: PageShape,
  sums: (Q: number, c: number) => string,
  order?: { text: string; word: string },
): KeyStage {
  return {
    name: `int ${name}`,
    dim: D,
    queryWords: int8Words(D),
    int8: true,
    text: Q => `${text}\n${order?.text ?? ''}\n${queryDeclaration(Q, D)}`,
    load: Q => `${loadQueries(Q, D, order?.word)}
  @unroll(v, ${vectors(Q)}) {
    let unit$v = query_scale$v * ${float(scale)};
    let middle$v = query_scale$v * query_sum$v * ${float(-zeroPoint * scale)};
  }`,
    loadConstants: loadNorms('key', norms.offset, P),
    sums: Q =>
      Array.from(
        { length: roundsOf(P) },
        (_, c) => `
    @unroll(j, 4) @unroll(v, ${vectors(Q)}) var d${c}_$j_$v = vec4i(0);
    ${sums(Q, c)}
    @unroll(q, ${Q}) let dots${c}_$q = vec4f(vec4i(@list(j, 4, d${c}_$j_$[q])));`,
      ).join('\n'),
    score: (plus = 'vec4f(0.0)') => `fma(key_norms$c, fma(dots$c_$q, vec4f(unit$[q]), vec4f(middle$[q])), ${plus})`,
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
    stripLoop(lines(c), (n, words) => products(Q, 'I', words.map(bytes.of), `d${c}_`, queryWord(Q, n))),
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
  word: 'even_or_odd_bytes(queries[query_origin$q + n / 2 * 2], queries[query_origin$q + n / 2 * 2 + 1], n % 2)',
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
  const codes = [0, 1, 2, 3].map(j => bytes.join(`(y${j} >> $(2 * o)u)`, ''));
  return levelKeys(
    name,
    page,
    bytes,
    shape,
    (Q, c) => `{
    let four = min(lane + ${LANES * c}, ${P / 4 - 1}u);
    let column_word = (${blockStart('key')} + ${page.codes.offset}) / 4 + four / 8 * ${2 * D} + four % 4;
    let column_shift = four / 4 % 2 * 4;
    @unroll(k, ${columns}) var next$k = pool[column_word + $(4 * k)];
    for (var eight = 0u; eight < ${opaque(D / 8)}; eight += ${PREFETCHED_EIGHTS}) {
      @unroll(k, ${columns}) let k$k = next$k;
      @unroll(k, ${columns}) next$k = pool[column_word + 16 * min(eight + ${PREFETCHED_EIGHTS}, ${D / 8 - PREFETCHED_EIGHTS}u) + $(4 * k)];
      @unroll(m, ${PREFETCHED_EIGHTS}) {{
        @unroll(k, 4) let x$k = k$(4 * m + k) >> column_shift;
        ${transpose4x4Bytes}
        @unroll(o, 2) {{ ${products(Q, 'I', codes, `d${c}_`, queryWord(Q, '2 * (eight + $m) + $o'))} }}
      }}
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
      n => quantized.at(Q, n),
      { prefetched: prefetchEarly && r === 0, flipSigns: uniform },
    );
  return {
    name: `int ${name}`,
    dim: D,
    scratchVectors: quantized.scratchVectors,
    tokenFactor: 'value_norms$c',
    loadConstants: tokens =>
      `${loadNorms('value', norms.offset, P)(tokens)} ${prefetchEarly ? prefetchStrip(lines(0)) : ''}`,
    // Neighbouring lanes own neighbouring columns.
    strided: dims === 1,
    dimOf: dims === 1 ? undefined : `(2 * lane + $(${4 * LANES} * r + ${2 * LANES} * (j / 2) + j % 2))`,
    text: Q => `${bytes.text}\n${quantized.declare(Q)}`,
    declare: Q => `@unroll(v, ${vectors(Q)}) var correction$v = vec4f(0.0);`,
    accumulate: (Q, tokens) => `
    @unroll(v, ${vectors(Q)}) var page_correction$v = vec4f(0.0);
    ${quantized.store(Q, tokens, {
      weights: 'prob$c_$q',
      after: `page_correction$v += ${sumsOfWords} * ${float((-bytes.zeroPoint * bytes.scale) / 255)};`,
    })}
    @unroll(v, ${vectors(Q)}) correction$v = fma(correction$v, rescale$v, page_correction$v * page_factor$v);
    ${Array.from(
      { length: rounds },
      (_, r) => `{
      @unroll(v, ${vectors(Q)}) let units$v = page_factor$v * ${float(bytes.scale / 255)};
      ${columns(Q, r)}
    }`,
    ).join('\n')}`,
    finish: Q => `
  @unroll(v, ${vectors(Q)}) correction$v = reduce_add(correction$v);
  @unroll(r, ${rounds}) @unroll(v, ${vectors(Q)}) @unroll(j, 4) out$r_$j_$v += correction$v;`,
  };
}
