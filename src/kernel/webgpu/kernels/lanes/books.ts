/**
 * Product codes of four dims (vec, million) as integers: an entry of the book is a word of four bytes in workgroup memory,
 * a code a byte.
 *
 *   keys     a lane has four tokens: it looks their entries up and multiplies them with a word of an int8 query
 *   values   a lane has a column, which is four dims; entries of four tokens are turned about and meet weights of 8 bits
 */

import type { Fragment } from '../../../fragment.ts';
import { int8Words } from '../domain.ts';
import type { PageShape } from '../shape.ts';
import { ownTable } from '../tables.ts';
import { each, turnAbout } from '../text.ts';
import { type KeyPart, of, type ValuePart, vectors, withPlus } from './attend.ts';
import { queryAt, queryText, takeQueries } from './queries.ts';
import { LANES } from './talk.ts';
import { sumOfBytes, weighedBytes } from './weighed.ts';

const ENTRIES = 256;
/** Columns that are read before the first of them is used. */
const AHEAD = 8;

/** One book for all, in pages of as many columns as there are lanes and four tokens a lane. */
function bookOf(fragment: Fragment, { headDim: D, pageTokens: P }: PageShape) {
  const { page, sharedBytes, blockBytes, codedDim } = fragment;
  if (page.kind !== 'book' || page.own || page.dims !== 4 || page.codes.bits !== 8) return undefined;
  if (codedDim !== D || D !== 4 * LANES || P !== 4 * LANES || fragment.turn) return undefined;
  if ([sharedBytes, blockBytes, page.codes.offset].some(n => n % 16 !== 0)) return undefined;
  // After the book as floats: the unit of its bytes, and these (tables.ts).
  return { offset: page.codes.offset, unit: ownTable(fragment) + 4 * ENTRIES };
}

const bookText = (side: 'key' | 'value') => `var<workgroup> ${side}_book: array<u32, ${ENTRIES}>;`;
const load = (side: 'key' | 'value', unit: number, flip: string) => `
  let ${side}_unit = bitcast<f32>(${side}Tables[${unit}]);
  for (var n = lane; n < ${ENTRIES}; n += ${LANES}) { ${side}_book[n] = ${side}Tables[${unit + 1} + n]${flip}; }`;

export function bookKeys(name: string, fragment: Fragment, shape: PageShape): KeyPart | undefined {
  const book = bookOf(fragment, shape);
  if (!book) return undefined;
  const { headDim: D } = shape;
  return {
    name: `book ${name}`,
    dim: D,
    words: int8Words(D),
    int8: true,
    text: Q => `${bookText('key')}\n${queryText(Q, D)}`,
    load: Q => `${load('key', book.unit, ' ^ 0x80808080u')}
  ${takeQueries(Q, D)}`,
    sums: Q => `
    ${each(4, j => each(vectors(Q), v => `var d${j}_${v} = vec4i(0);`, ' '))}
    for (var column = 0u; column < ${D / 4}; column += ${AHEAD}) {
      ${each(AHEAD, u => `let codes${u} = pool[(keyBlock + ${book.offset}) / 4 + (column + ${u}) * ${LANES} + lane];`)}
      ${each(AHEAD, u => `{ ${each(vectors(Q), v => `let q${v} = ${queryAt(Q, `column + ${u}`, v)};`, ' ')} ${each(4, j => `{ let e = key_book[(codes${u} >> ${8 * j}u) & 255u]; ${each(Q, q => `${of(`d${j}_`, q)} += dot4I8Packed(e, ${of('q', q)});`, ' ')} }`)} }`)}
    }
    ${each(Q, q => `let dots0_${q} = vec4f(vec4i(${each(4, j => of(`d${j}_`, q), ', ')}));`)}`,
    score: (q, _, plus) => withPlus(`dots0_${q} * vec4f(${of('scale', q)} * key_unit)`, plus),
    constant: v => `constants${v}`,
  };
}

export function bookValues(name: string, fragment: Fragment, shape: PageShape): ValuePart | undefined {
  const book = bookOf(fragment, shape);
  if (!book) return undefined;
  const { headDim: D, pageTokens: P } = shape;
  const weighed = weighedBytes(P);
  const four = (Q: number, w: number, k: number) => `{
        let c = codes${w}[${k}];
        ${each(4, j => `let x${j} = value_book[(c >> ${8 * j}u) & 255u];`, ' ')}
        ${turnAbout}
        ${each(vectors(Q), v => `let b${v} = ${weighed.at(Q, `part * 8 + ${4 * w + k}`, v)};`, ' ')}
        ${each(Q, q => each(4, j => `${of(`d${j}_`, q)} += dot4U8Packed(y${j}, ${of('b', q)});`, ' '))} }`;
  return {
    name: `book ${name}`,
    dim: D,
    room: weighed.room,
    text: Q => `${bookText('value')}\n${weighed.declare(Q)}`,
    declare: Q => `${load('value', book.unit, '')} ${each(vectors(Q), v => `var more${v} = vec4f(0.0);`, ' ')}`,
    sum: (Q, tokens) => `{
    ${each(vectors(Q), v => `var added${v} = vec4f(0.0);`, ' ')}
    ${weighed.put(
      Q,
      tokens,
      (q, c) => `w${c}_${q}`,
      v => `added${v} += ${sumOfBytes};`,
    )}
    ${each(vectors(Q), v => `more${v} = fma(more${v}, kept${v}, added${v} * whole${v} * (value_unit * f32(${-128 / 255})));`, ' ')}
    ${each(4, j => each(vectors(Q), v => `var d${j}_${v} = vec4u(0);`, ' '))}
    // A loop that shall stay one: walk.ts says why.
    for (var part = 0u; part < p.four; part++) {
      ${each(2, w => `let codes${w} = pool4[(valueBlock + ${book.offset}) / 16 + lane * ${P / 16} + part * 2 + ${w}];`)}
      ${each(2, w => each(4, k => four(Q, w, k)))}
    }
    ${each(4, j => each(vectors(Q), v => `o0_${j}_${v} = fma(vec4f(d${j}_${v}), whole${v} * (value_unit * f32(${1 / 255})), o0_${j}_${v} * kept${v});`, ' '))} }`,
    result: Q => each(vectors(Q), v => `{ let all = all_of(more${v}); ${each(4, j => `o0_${j}_${v} += all;`, ' ')} }`),
  };
}
