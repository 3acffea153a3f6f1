/**
 * Columns of codes of their own bits each (mead2u and its kin) as integers. What the bits are is data, so layers share a
 * kernel. A column of 3, 5 or 6 bits is two planes; each plane is a column of 1, 2 or 4 bits (codec/pack.ts).
 *
 *   keys     planes of one kind go four at a time (tables.ts sorts them): four dims of four tokens, turned about so that
 *            a word has four dims, against int8 queries that have the steps in them
 *   values   four tokens in a word, against weights of 8 bits
 */

import type { Fragment } from '../../../fragment.ts';
import type { AttendShape } from '../attend.ts';
import { LANES } from '../lanes/talk.ts';
import type { PageShape } from '../shape.ts';
import { mixedTables, ownTable, PLANE_KINDS, QUAD_WORDS } from '../tables.ts';
import { each, float, turnAbout } from '../text.ts';
import { type KeyPart, type ValuePart, vectors, type Words } from './attend.ts';
import { SIZE } from './talk.ts';
import { turnedPart } from './turned.ts';
import { weighedBytes } from './weighed.ts';

const fits = ({ page, codedDim }: Fragment, { headDim: D, pageTokens: P }: PageShape) =>
  page.kind === 'mixed' && codedDim === D && D % LANES === 0 && P === 4 * LANES;

/** Quads of planes whose loads are waited for together. */
const AHEAD = 4;

export function mixedKeys(name: string, fragment: Fragment, shape: AttendShape): KeyPart | undefined {
  if (!fits(fragment, shape) || !fragment.turn) return undefined;
  const { headDim: D } = shape;
  const own = ownTable(fragment);
  const tables = mixedTables(shape);
  const word = (at: string) => `keyTables[${own} + ${at}]`;
  const quad = (n: string, k: string) => word(`first_quad + ${QUAD_WORDS} * (${n}) + ${k}`);
  const begin = `let kinds_at = ${word(`${tables.heads} + head`)};
  let first_quad = kinds_at + ${PLANE_KINDS.length + 1};`;
  const words: Words = {
    most: tables.mostQuads,
    text: '',
    count: `${begin}
  let count = ${word(`kinds_at + ${PLANE_KINDS.length}`)};`,
    step: n => `bitcast<f32>(${word(`${tables.steps} + head * ${D} + ${n}`)})`,
    share: 0.5,
    dims: n =>
      `vec4u(${quad(n, '4')} & 0xffff, ${quad(n, '4')} >> 16, ${quad(n, '5')} & 0xffff, ${quad(n, '5')} >> 16)`,
    factor: () => '1.0',
  };
  const turned = turnedPart(words, shape);
  // The word of a lane's four tokens in a plane, and the shift that puts them at the bottom of bytes, by its bits.
  const place = (bits: number) => {
    const all = 32 / bits;
    return [`(lane / ${all} * 4 + lane % 4)`, `(lane % ${all} / 4 * ${bits})`];
  };
  const kind = (Q: number, k: number) => {
    const { bits, top, fold } = PLANE_KINDS[k];
    const [at, shift] = place(bits);
    const up = top ? 8 - bits : 0;
    const mask = `0x${((2 ** bits - 1) << up).toString(16).padStart(2, '0').repeat(4)}u`;
    return `{
    let end = kinds[${k + 1}];
    ${each(4, j => each(vectors(Q), v => `var d${j}_${v} = vec4i(0);`, ' '), ' ')}
    for (var n = kinds[${k}]; n < end; n += ${AHEAD}) {
      ${each(AHEAD, a => `let plane${a} = planes[min(n + ${a}, end - 1)];`, ' ')}
      ${each(AHEAD, a => each(4, i => `let k${a}_${i} = pool[(keyPage + plane${a}[${i}]) / 4 + ${at}];`))}
      ${each(
        AHEAD,
        a => `${a > 0 ? `if (n + ${a} < end) ` : ''}{
        ${each(vectors(Q), v => `let q${v} = ${turned.word(Q, `n + ${a}`, v)};`, ' ')}
        ${each(4, i => `let x${i} = ((k${a}_${i} >> ${shift}) << ${up}u) & ${mask};`)}
        ${turnAbout}
        ${each(4, j => each(vectors(Q), v => `d${j}_${v} += vec4i(${each(4, q => `dot4I8Packed(y${j}, q${v}[${q}])`, ', ')});`, ' '))}
      }`,
      )}
    }
    ${each(4, j => each(vectors(Q), v => `sum${j}_${v} += d${j}_${v} << vec4u(${fold}u);`, ' '), ' ')}
  }`;
  };
  return {
    name: `mixed ${name}`,
    dim: D,
    ...turned.part,
    neighbours: true,
    turned: words,
    fixed: 4 * tables.mostQuads + PLANE_KINDS.length + 1,
    text: () => `${turned.text()}
// Where the four planes of a quad begin; and the first quad of every kind.
var<workgroup> planes: array<vec4u, ${tables.mostQuads}>;
var<workgroup> kinds: array<u32, ${PLANE_KINDS.length + 1}>;`,
    setup: `${begin}
  for (var n = own; n < ${word(`kinds_at + ${PLANE_KINDS.length}`)}; n += ${SIZE}) {
    planes[n] = vec4u(${each(4, k => quad('n', `${k}`), ', ')});
  }
  if (own <= ${PLANE_KINDS.length}) { kinds[own] = ${word('kinds_at + own')}; }`,
    sums: Q => `
  ${turned.begin(Q)}
  ${each(4, j => each(vectors(Q), v => `var sum${j}_${v} = vec4i(0);`, ' '), ' ')}
  ${each(PLANE_KINDS.length, k => kind(Q, k))}
  ${each(4, j => each(vectors(Q), v => `let dots${j}_${v} = vec4f(sum${j}_${v});`, ' '), ' ')}`,
    score: (_, j, v) => `fma(dots${j}_${v}, turned_scale${v} * ${float(1 / 128)}, turned_added${v})`,
  };
}

export function mixedValues(name: string, fragment: Fragment, shape: PageShape): ValuePart | undefined {
  if (!fits(fragment, shape)) return undefined;
  const { headDim: D, pageTokens: P } = shape;
  const own = ownTable(fragment);
  const tables = mixedTables(shape);
  const weighed = weighedBytes(P);
  const dims = D / LANES;
  const column = (i: number) => `head * ${D} + lane + ${LANES * i}`;
  /** A plane of so many bits: a vector is 32 / bits words of four tokens. `at` is its first vector. */
  const plane = (Q: number, bits: number) => {
    const flip = { 4: '88888888', 2: 'aaaaaaaa', 1: 'ffffffff' }[bits];
    const codes = 8 / bits;
    return `if ((bits & ${bits}) != 0) {
      let flip = select(0u, 0x${flip}u, shift + ${bits} == bits);
      ${each(vectors(Q), v => `var d${v} = vec4u(0);`, ' ')}
      ${each(bits, b => `let c${b} = pool4[at + ${b}] ^ vec4u(flip);`, ' ')}
      ${each(
        bits,
        b => `{
        let c = c${b};
        ${each(4 * codes, n => `{ let x = (c[${n % 4}] >> ${bits * Math.floor(n / 4)}u) & 0x${(2 ** bits - 1).toString(16).padStart(2, '0').repeat(4)}u; ${each(vectors(Q), v => `let w${v} = ${weighed.at(Q, b * 4 * codes + n, v)}; d${v} += vec4u(${each(4, q => `dot4U8Packed(x, w${v}[${q}])`, ', ')});`, ' ')} }`)}
      }`,
      )}
      ${each(vectors(Q), v => `u${v} += d${v} << vec4u(shift);`, ' ')}
      shift += ${bits};
      at += ${(P * bits) / 128};
    }`;
  };
  return {
    name: `mixed ${name}`,
    dim: D,
    loaded: weighed.loaded + 4,
    text: Q => `${weighed.text(Q)}`,
    fetch: () =>
      each(
        dims,
        i =>
          `let column${i} = valueTables[${own} + ${column(i)}]; let step${i} = bitcast<f32>(valueTables[${own + tables.steps} + ${column(i)}]);`,
      ),
    sum: (Q, tokens) => `
  ${weighed.put(Q, tokens)}
  // What half a step more than the code's middle counts: the sum of all weights, which every lane needs.
  ${each(vectors(Q), v => `let all${v} = sum_of(more${v}); more${v} = vec4f(0.0);`, ' ')}
  ${each(
    dims,
    i => `{
    let bits = column${i} & 7;
    var at = (valuePage + column${i} / 8) / 16;
    var shift = 0u;
    ${each(vectors(Q), v => `var u${v} = vec4u(0);`, ' ')}
    ${plane(Q, 4)}
    ${plane(Q, 2)}
    ${plane(Q, 1)}
    let middle = 0.5 - f32((1u << bits) >> 1u);
    ${each(vectors(Q), v => `o${i}_${v} = fma(vec4f(middle), all${v}, vec4f(u${v})) * (step${i} * ${float(1 / 255)});`, ' ')}
  }`,
  )}`,
    dims,
    dimOf: i => `(lane + ${LANES * i})`,
  };
}
