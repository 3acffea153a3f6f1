/**
 * Pages of entries that stand for four dims each (product codes) as integers: an entry is a word of four bytes in
 * workgroup memory.
 *
 *   keys     a lane has four tokens: it looks their entries up and multiplies them with the column's word of an int8 query
 *   values   a lane has columns of its own; entries of four tokens are turned about, so that a word has four tokens, and
 *            meet weights of 8 bits
 */

import type { Fragment, PageFragment } from '../../fragment.ts';
import type { KeyPart, ValuePart } from './attend.ts';
import { dithered, int8Words } from './ints.ts';
import { PARTS, sharedWords } from './lines.ts';
import { blockAt } from './read.ts';
import { type PageShape, SIZE } from './shape.ts';
import { ownTable } from './tables.ts';
import { each, float, turnAbout } from './text.ts';

/** Lanes that have columns of their own. */
const LANES = 32;

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

export function bookValues(name: string, fragment: Fragment, shape: PageShape): ValuePart | undefined {
  const page = bookOf(fragment, shape);
  if (!page) return undefined;
  const { headDim: D, pageTokens: P } = shape;
  const subs = D / 4;
  const rounds = Math.ceil(subs / LANES);
  // Each of the four subgroups of lanes has a quarter of the tokens: so many words of four.
  const groups = P / 4 / PARTS;
  const weights = (Q: number) => sharedWords('weighed', (Q * P) / 4, Q);
  const c = (s: number) => `(lane % ${LANES} + ${s * LANES})`;
  return {
    name: `book ${name}`,
    dim: D,
    loaded: P / 4,
    fixed: 256,
    groups: 0,
    survey: [],
    setup: bookSetup('value', ownTable(fragment), '0u'),
    text: Q => `${bookText('value')}\n${weights(Q).declare}\nvar<workgroup> weight_units: array<f32, ${Q}>;`,
    weigh: Q => `{ let word = ${dithered('weights * 255.0')}; ${weights(Q).put(`g * ${Q} + q`, 'word')} }`,
    note: () => `weight_units[q] = whole * ${float(1 / 255)};`,
    declare: Q => each(rounds, s => each(Q, q => `var o${q}_${s} = vec4f(0.0);`, ' ')),
    sum: Q => `{
      let part = lane / ${LANES};
      ${each(
        rounds,
        s => `if (${c(s)} < ${subs}) {
        let from_vector = (${blockAt(fragment, 'valuePage')} + ${page.codes.offset}) / 16 + ${c(s)} * ${P / 16} + part * 2;
        ${each(2, v => `let v${v} = pool4[from_vector + ${v}];`, ' ')}
        ${each(Q, q => `var d${q} = vec4i(0);`, ' ')}
        ${each(
          groups,
          m => `{
          ${weights(Q).load('w_', `(part * ${groups} + ${m}) * ${Q}`)}
          ${each(4, j => `let x${j} = value_book[(v${m >> 2}[${m & 3}] >> ${8 * j}u) & 255u];`)}
          ${turnAbout}
          ${each(Q, q => `{ let w = ${weights(Q).word('w_', q)}; let all = 128 * i32(dot4U8Packed(w, 0x01010101u)); d${q} += vec4i(${each(4, j => `i32(dot4U8Packed(y${j}, w)) - all`, ', ')}); }`)}
        }`,
        )}
        ${each(Q, q => `o${q}_${s} = fma(vec4f(d${q}), vec4f(valueUnit * weight_units[${q}]), o${q}_${s} * factors[${q}]);`)}
      }`,
      )}
    }`,
    // Quarters of the tokens are added one after the other.
    shares: PARTS,
    share: `lane / ${LANES}`,
    keep: Q =>
      each(
        rounds,
        s => `if (${c(s)} < ${subs}) {
      ${each(Q, q => each(4, k => `keep(${q}, 4 * ${c(s)} + ${k}, o${q}_${s}[${k}]);`, ' '))}
    }`,
      ),
  };
}
