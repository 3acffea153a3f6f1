/**
 * Product codes of four dims (vec, million), as integers: a code book entry is a word of four bytes in workgroup
 * memory, a code is a byte.
 *
 *   keys     a lane owns four tokens: looks up their entries and multiplies them with a word of an int8 query
 *   values   a lane owns a column of four dims: entries of four tokens are transposed and multiplied with quantized probabilities
 */

import type { PageLayout } from '../../../page-layout.ts';
import { blockStart, type Side } from '../names.ts';
import type { PageShape } from '../shape.ts';
import { transpose4x4Bytes } from '../snippets.ts';
import { encodingTableOffset } from '../tables.ts';
import { int8Words } from '../transform.ts';
import { addTerm, type KeyStage, type ValueStage } from './attend.ts';
import { loadQueries, queryDeclaration, queryWord } from './int8-queries.ts';
import { FOUR, vectors } from './names.ts';
import { quantizedProbabilities, sumsOfWords } from './quantized-probabilities.ts';
import { LANES } from './subgroup.ts';

const ENTRIES = 256;
/** Columns prefetched before the first is used. */
const PREFETCH = 8;

/** One code book for all columns, pages with one column per lane and four tokens per lane. */
function bookOf(layout: PageLayout, { headDim: D, pageTokens: P }: PageShape) {
  const { encoding, sharedBytes, blockBytes, codedDim } = layout;
  if (
    encoding.kind !== 'book' ||
    encoding.bookPerSubvector ||
    encoding.subvectorDims !== 4 ||
    encoding.codes.bits !== 8
  )
    return undefined;
  if (codedDim !== D || D !== 4 * LANES || P !== 4 * LANES || layout.ropeFrequencies) return undefined;
  if ([sharedBytes, blockBytes, encoding.codes.offset].some(n => n % 16 !== 0)) return undefined;
  // The tables hold the code book as floats, then the scale of its bytes, then the bytes (tables.ts).
  return { offset: encoding.codes.offset, unit: encodingTableOffset(layout) + 4 * ENTRIES };
}

const bookText = (side: Side) => `var<workgroup> ${side}_book: array<u32, ${ENTRIES}>;`;
const load = (side: Side, unit: number, flip: string) => `
  let ${side}_unit = bitcast<f32>(${side}Tables[${unit}]);
  for (var n = lane; n < ${ENTRIES}; n += ${LANES}) { ${side}_book[n] = ${side}Tables[${unit + 1} + n]${flip}; }`;

export function codebookKeys(name: string, layout: PageLayout, shape: PageShape): KeyStage | undefined {
  const book = bookOf(layout, shape);
  if (!book) return undefined;
  const { headDim: D } = shape;
  return {
    name: `book ${name}`,
    dim: D,
    queryWords: int8Words(D),
    int8: true,
    text: Q => `${bookText('key')}\n${queryDeclaration(Q, D)}`,
    load: Q => `${load('key', book.unit, ' ^ 0x80808080u')}
  ${loadQueries(Q, D)}`,
    sums: Q => `
    @unroll(j, 4) @unroll(v, ${vectors(Q)}) var d$j_$v = vec4i(0);
    for (var column = 0u; column < ${D / 4}; column += ${PREFETCH}) {
      @unroll(u, ${PREFETCH}) let codes$u = pool[(${blockStart('key')} + ${book.offset}) / 4 + (column + $u) * ${LANES} + lane];
      @unroll(u, ${PREFETCH}) {{
        @unroll(v, ${vectors(Q)}) let q$v = ${queryWord(Q, 'column + $u')};
        @unroll(j, 4) {{
          let e = key_book[(codes$u >> $(8 * j)u) & 255u];
          @unroll(q, ${Q}) d$j_$[q] += dot4I8Packed(e, q$[q]);
        }}
      }}
    }
    @unroll(q, ${Q}) let dots0_$q = vec4f(vec4i(@list(j, 4, d$j_$[q])));`,
    score: plus => addTerm('dots$c_$q * vec4f(query_scale$[q] * key_unit)', plus),
  };
}

export function codebookValues(name: string, layout: PageLayout, shape: PageShape): ValueStage | undefined {
  const book = bookOf(layout, shape);
  if (!book) return undefined;
  const { headDim: D, pageTokens: P } = shape;
  const quantized = quantizedProbabilities(P);
  return {
    name: `book ${name}`,
    dim: D,
    scratchVectors: quantized.scratchVectors,
    text: Q => `${bookText('value')}\n${quantized.declare(Q)}`,
    declare: Q => `${load('value', book.unit, '')}
  @unroll(v, ${vectors(Q)}) var correction$v = vec4f(0.0);`,
    accumulate: (Q, tokens) => `{
    @unroll(v, ${vectors(Q)}) var page_correction$v = vec4f(0.0);
    ${quantized.store(Q, tokens, { weights: 'prob$c_$q', after: `page_correction$v += ${sumsOfWords};` })}
    @unroll(v, ${vectors(Q)}) correction$v = fma(correction$v, rescale$v, page_correction$v * page_factor$v * (value_unit * f32(${-128 / 255})));
    @unroll(j, 4) @unroll(v, ${vectors(Q)}) var d$j_$v = vec4u(0);
    // Must stay a loop: see strip-loop.ts.
    for (var part = 0u; part < ${FOUR}; part++) {
      @unroll(w, 2) let codes$w = pool4[(${blockStart('value')} + ${book.offset}) / 16 + lane * ${P / 16} + part * 2 + $w];
      @unroll(w, 2) @unroll(k, 4) {{
        let c = codes$w[$k];
        @unroll(j, 4) let x$j = value_book[(c >> $(8 * j)u) & 255u];
        ${transpose4x4Bytes}
        @unroll(v, ${vectors(Q)}) let b$v = ${quantized.at(Q, 'part * 8 + $(4 * w + k)')};
        @unroll(q, ${Q}) @unroll(j, 4) d$j_$[q] += dot4U8Packed(y$j, b$[q]);
      }}
    }
    @unroll(j, 4) @unroll(v, ${vectors(Q)}) out0_$j_$v =
      fma(vec4f(d$j_$v), page_factor$v * (value_unit * f32(${1 / 255})), out0_$j_$v * rescale$v);
    }`,
    finish: Q => `@unroll(v, ${vectors(Q)}) {{
    let all = reduce_add(correction$v);
    @unroll(j, 4) out0_$j_$v += all;
  }}`,
  };
}
