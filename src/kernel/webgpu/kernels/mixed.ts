/**
 * Columns of codes of their own bits each (mead2u and its kin) as integers. What the bits are is data, so layers share a
 * kernel. A column of 3, 5 or 6 bits is two planes; each plane is a column of 1, 2 or 4 bits (codec/pack.ts).
 *
 *   keys     planes of one kind go four at a time (tables.ts sorts them): four dims of four tokens, turned about so that
 *            a word has four dims, against int8 queries that have the steps in them
 *   values   four tokens in a word, against weights of 8 bits
 */

import type { Fragment } from '../../fragment.ts';
import type { KeyPart, ValuePart } from './attend.ts';
import { dithered } from './ints.ts';
import { PARTS, sharedWords } from './lines.ts';
import { type PageShape, SIZE } from './shape.ts';
import { mixedTables, ownTable, PLANE_KINDS, QUAD_WORDS } from './tables.ts';
import { each, float, turnAbout } from './text.ts';
import { quantizing, turning } from './turn.ts';

const LANES = SIZE / PARTS;

const fits = ({ page, codedDim }: Fragment, { headDim: D, pageTokens: P }: PageShape) =>
  page.kind === 'mixed' && codedDim === D && D % 32 === 0 && P === 128;

export function mixedKeys(name: string, fragment: Fragment, shape: PageShape, perHead: boolean): KeyPart | undefined {
  if (!fits(fragment, shape) || !fragment.turn) return undefined;
  const { headDim: D } = shape;
  const own = ownTable(fragment);
  const tables = mixedTables(shape);
  const turned = turning(fragment, shape, perHead);
  const most = tables.mostQuads;
  const words = quantizing(most);
  const { query } = words;
  const word = (at: string) => `keyTables[${own} + ${at}]`;
  // Left and right shifts that put a lane's four tokens of a plane into bytes, by its bits.
  const place = (bits: number) => {
    const words = 32 / bits;
    return `vec2u(g / ${words} * 4 + g % 4, g % ${words} / 4 * ${bits})`;
  };
  return {
    name: `mixed ${name}`,
    dim: D,
    ...turned.part,
    loaded: turned.loaded + words.loaded + D + 34,
    fixed: QUAD_WORDS * most + PLANE_KINDS.length + 32,
    parts: PARTS,
    text: Q => /* wgsl */ `
${turned.text(Q)}
${words.text(Q)}
var<workgroup> coded: array<f32, ${Q * (D + 1)}>;
var<workgroup> constants: array<f32, ${Q}>;
var<workgroup> half_steps: array<vec4f, ${Q * 8}>;
var<workgroup> steps: array<f32, ${D}>;
var<workgroup> kinds: array<u32, ${PLANE_KINDS.length + 1}>;
var<workgroup> quads: array<u32, ${QUAD_WORDS * most}>;
fn four_dims(q: u32, quad: u32) -> vec4f {
  let dims = vec2u(quads[quad * ${QUAD_WORDS} + 4], quads[quad * ${QUAD_WORDS} + 5]);
  let first = q * ${D + 1};
  return vec4f(
    coded[first + (dims.x & 0xffff)], coded[first + (dims.x >> 16)],
    coded[first + (dims.y & 0xffff)], coded[first + (dims.y >> 16)],
  );
}`,
    setup: /* wgsl */ `
  let quadsAt = ${word(`${tables.heads} + head`)};
  for (var at = lane; at < ${D}; at += ${SIZE}) { steps[at] = bitcast<f32>(${word(`${tables.steps} + head * ${D} + at`)}); }
  if (lane <= ${PLANE_KINDS.length}) { kinds[lane] = ${word('quadsAt + lane')}; }
  for (var at = lane; at < ${QUAD_WORDS} * ${word(`quadsAt + ${PLANE_KINDS.length}`)}; at += ${SIZE}) {
    quads[at] = ${word(`quadsAt + ${PLANE_KINDS.length + 1} + at`)};
  }`,
    begin: Q => /* wgsl */ `
    ${turned.begin(Q, `coded[q * ${D + 1} + n] = sum * steps[n];`, 'constants[q] = sum;')}
    // Half a step of every column that has codes: the others have a step of 0.
    for (var at = lane; at < ${Q * 32}; at += ${SIZE}) {
      var half = 0.0;
      for (var i = at % 32; i < ${D}; i += 32) { half = fma(0.5, coded[at / 32 * ${D + 1} + i], half); }
      half_steps[at / 4][at % 4] = half;
    }
    ${words.begin(Q, `kinds[${PLANE_KINDS.length}]`, 'four_dims(q, n)')}
    if (lane < ${Q}) {
      var all = half_steps[8 * lane];
      for (var n = 1u; n < 8; n++) { all += half_steps[8 * lane + n]; }
      constants[lane] += (all.x + all.y) + (all.z + all.w);
    }`,
    sums: Q => /* wgsl */ `{
      let part = lane / 32;
      let g = lane % 32;
      ${each(Q, q => each(4, j => `var all${q}_${j} = 0;`, ' '))}
      for (var kind = 0u; kind < ${PLANE_KINDS.length}; kind++) {
        var planes = array<vec4u, ${PLANE_KINDS.length}>(${PLANE_KINDS.map(({ bits, top, fold }) => `vec4u(${bits}, ${top ? 8 - bits : 0}, 0x${((2 ** bits - 1) << (top ? 8 - bits : 0)).toString(16).padStart(2, '0').repeat(4)}, ${fold})`).join(', ')});
        let plane = planes[kind];
        var place = ${place(1)};
        if (plane.x == 4) { place = ${place(4)}; } else if (plane.x == 2) { place = ${place(2)}; }
        ${each(Q, q => each(4, j => `var d${q}_${j} = 0;`, ' '))}
        for (var quad = kinds[kind] + part; quad < kinds[kind + 1]; quad += ${PARTS}) {
          ${query(Q).load('q_', `quad * ${Q}`)}
          ${each(4, n => `let x${n} = ((pool[(keyPage + quads[quad * ${QUAD_WORDS} + ${n}]) / 4 + place.x] >> place.y) << plane.y) & plane.z;`)}
          ${turnAbout}
          ${each(Q, q => each(4, j => `d${q}_${j} += dot4I8Packed(y${j}, ${query(Q).word('q_', q)});`, ' '))}
        }
        ${each(Q, q => each(4, j => `all${q}_${j} += d${q}_${j} << plane.w;`, ' '))}
      }
      ${each(Q, q => `put4(part, ${q}, g, vec4f(vec4i(all${q}_0, all${q}_1, all${q}_2, all${q}_3)));`, ' ')}
    }`,
    score: () => `fma(dots, vec4f(query_scales[q] * ${float(1 / 128)}), vec4f(constants[q]))`,
  };
}

export function mixedValues(name: string, fragment: Fragment, shape: PageShape): ValuePart | undefined {
  if (!fits(fragment, shape)) return undefined;
  const { headDim: D, pageTokens: P } = shape;
  const own = ownTable(fragment);
  const tables = mixedTables(shape);
  const rows = P / 16;
  const columns = D / LANES;
  const weights = (Q: number) => sharedWords('weighed', Q * PARTS * rows, rows);
  /** Of a plane of so many bits: `at` is its first word of this lane's, `flip` what its top bits are turned by. */
  const plane = (Q: number, bits: number) => `if ((bits & ${bits}) != 0) {
          let flip = select(0u, 0x${{ 4: '88888888', 2: 'aaaaaaaa', 1: 'ffffffff' }[bits]}u, shift + ${bits} == bits);
          ${each(bits, b => `let c${b} = pool[at + ${4 * b}] ^ flip;`, ' ')}
          ${each(Q, q => `var d${q} = 0u;`, ' ')}
          ${each(rows, r => `{ let c = (c${Math.floor((r * bits) / 8)} >> ${(r * bits) % 8}u) & 0x${(2 ** bits - 1).toString(16).padStart(2, '0').repeat(4)}u; ${each(Q, q => `d${q} += dot4U8Packed(c, ${weights(Q).word(`w${q}_`, r)});`, ' ')} }`)}
          ${each(Q, q => `u${q} += d${q} << shift;`, ' ')}
          shift += ${bits};
          at += ${(P * bits) / 32};
        }`;
  return {
    name: `mixed ${name}`,
    dim: D,
    loaded: P / 4,
    fixed: 0,
    groups: 0,
    survey: [],
    text: Q => `${weights(Q).declare}\nvar<workgroup> weight_units: array<f32, ${Q}>;`,
    weigh: Q => `{
          let word = ${dithered('weights * 255.0')};
          ${weights(Q).put(`((g % 4) * ${Q} + q) * ${rows} + g / 4`, 'word')}
        }`,
    note: () => `weight_units[q] = whole * ${float(1 / 255)};`,
    shares: PARTS,
    share: `lane % ${PARTS}`,
    declare: Q =>
      each(
        columns,
        k => `let column${k} = valueTables[${own} + head * ${D} + lane / ${PARTS} + ${k * LANES}];
  let step${k} = bitcast<f32>(valueTables[${own + tables.steps} + head * ${D} + lane / ${PARTS} + ${k * LANES}]);
  ${each(Q, q => `var o${q}_${k} = 0.0;`, ' ')}`,
      ),
    sum: Q => `{
      let part = lane % ${PARTS};
      ${each(Q, q => weights(Q).load(`w${q}_`, `(part * ${Q} + ${q}) * ${rows}`))}
      ${each(Q, q => `let sum${q} = f32(${each(rows, r => `dot4U8Packed(${weights(Q).word(`w${q}_`, r)}, 0x01010101u)`, ' + ')});`)}
      ${each(
        columns,
        k => `{
        let bits = column${k} & 7;
        var at = (valuePage + column${k} / 8) / 4 + part;
        var shift = 0u;
        ${each(Q, q => `var u${q} = 0u;`, ' ')}
        ${plane(Q, 4)}
        ${plane(Q, 2)}
        ${plane(Q, 1)}
        let middle = 0.5 - f32((1u << bits) >> 1u);
        ${each(Q, q => `o${q}_${k} = fma(fma(middle, sum${q}, f32(u${q})), step${k} * weight_units[${q}], o${q}_${k} * factors[${q}]);`)}
      }`,
      )}
    }`,
    keep: Q => each(columns, k => each(Q, q => `keep(${q}, lane / ${PARTS} + ${k * LANES}, o${q}_${k});`, ' ')),
  };
}
