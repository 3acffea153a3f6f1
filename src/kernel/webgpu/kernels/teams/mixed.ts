/**
 * Columns of codes of their own bits each (mead2u and its kin) as integers. What the bits are is data, so layers share a
 * kernel; tables.ts sorts columns by them, so that lanes side by side do the same. A column of 3, 5 or 6 bits is two planes;
 * each plane is a column of 1, 2 or 4 bits (codec/pack.ts). Codes are counted from the least on, not from 0.
 *
 *   keys     four columns of like bits go together. A lane has tokens of every other of these quads: words of four tokens
 *            are turned about as they are, so that what is shifted out of them has four dims, against int8 queries that
 *            have the steps in them. In the end lanes swap, so that each has four tokens of all quads
 *   values   four tokens in a word, against weights of 8 bits
 */

import type { Fragment } from '../../../fragment.ts';
import type { AttendShape } from '../attend.ts';
import { LANES } from '../lanes/talk.ts';
import type { PageShape } from '../shape.ts';
import { MOST_BITS, mixedTables, ownTable, QUAD_WORDS } from '../tables.ts';
import { each, float, fours, turnAbout } from '../text.ts';
import { type KeyPart, type ValuePart, vectors, type Words } from './attend.ts';
import { SIZE } from './talk.ts';
import { turnedPart } from './turned.ts';
import { weighedBytes } from './weighed.ts';

const fits = ({ page, codedDim }: Fragment, { headDim: D, pageTokens: P }: PageShape) =>
  page.kind === 'mixed' && codedDim === D && D % LANES === 0 && P === 4 * LANES;

const KINDS = Array.from({ length: MOST_BITS }, (_, n) => n + 1);
/** Lanes that share the quads of keys: each has so many times four tokens. */
const WAYS = 2;

interface Plane {
  width: number;
  /** Of its bits in the code. */
  shift: number;
  /** Bytes of the column before it, of P tokens. */
  first: number;
}

/** Planes of so many bits, the lowest bits first. */
function planesOf(bits: number, P: number): Plane[] {
  let [shift, first] = [0, 0];
  return [4, 2, 1]
    .filter(width => bits & width)
    .map(width => {
      const plane = { width, shift, first };
      shift += width;
      first += (P * width) / 8;
      return plane;
    });
}

/** Four codes, counted from the least on, a byte each: of every plane a word that has its bits where the code wants them. */
const joined = (bits: number, planes: readonly Plane[], word: (p: number) => string) =>
  planes
    .map(({ width, shift }, p) => {
      const part = `(${word(p)} & ${fours((2 ** width - 1) << shift)})`;
      return shift + width === bits ? `(${part} ^ ${fours(2 ** (bits - 1))})` : part;
    })
    .join(' | ');

export function mixedKeys(name: string, fragment: Fragment, shape: AttendShape): KeyPart | undefined {
  if (!fits(fragment, shape) || !fragment.turn) return undefined;
  const { headDim: D, pageTokens: P } = shape;
  const own = ownTable(fragment);
  const tables = mixedTables(shape);
  const word = (at: string) => `keyTables[${own} + ${at}]`;
  const described = (at: string) => word(`${tables.heads} + head * ${tables.headWords} + ${at}`);
  const quad = (n: string, k: number) => described(`${tables.firstQuads + k} + ${QUAD_WORDS} * (${n})`);
  const words: Words = {
    most: tables.mostQuads,
    count: `let count = ${described(`${tables.firstQuads - 1}`)};`,
    step: n => `bitcast<f32>(${word(`${tables.steps} + head * ${D} + ${n}`)})`,
    dims: n => `vec4u(${quad(n, 4)} & 0xffff, ${quad(n, 4)} >> 16, ${quad(n, 5)} & 0xffff, ${quad(n, 5)} >> 16)`,
    twice: n => quad(n, 6),
  };
  const turned = turnedPart(words, shape);
  const kind = (Q: number, v: number, bits: number) => {
    const planes = planesOf(bits, P);
    /** Words of a plane that a lane's tokens lie in, from its first word on. */
    const places = ({ width, first }: Plane) =>
      ({ 4: ['8 * upper + side', '8 * upper + side + 4'], 2: ['4 * upper + side'], 1: ['side'] })[width]!.map(
        at => `${first / 4} + ${at}`,
      );
    const all = (text: (p: number, n: number, place: string) => string) =>
      planes
        .map((plane, p) =>
          places(plane)
            .map((place, n) => text(p, n, place))
            .join(' '),
        )
        .join('\n');
    // Single bits are put where they are wanted before they are shifted out.
    const put = (p: number, y: string) => (planes[p].width === 1 ? `(${y} >> (4 * upper)) << ${planes[p].shift}u` : y);
    const turn = (p: number, n: number) => `
        ${each(4, j => `var t${p}_${n}_${j}: u32;`, ' ')}
        { ${each(4, i => `let x${i} = k${p}_${n}_${i};`, ' ')} ${turnAbout} ${each(4, j => `t${p}_${n}_${j} = ${put(p, `y${j}`)};`, ' ')} }`;
    /** Of slot s, byte j. */
    const codes = (s: number, j: number) =>
      joined(bits, planes, p => {
        const { width, shift } = planes[p];
        if (width === 1) return `(t${p}_0_${j} >> slot${s})`;
        const up = shift === 0 ? '' : ` << ${shift}u`;
        if (width === 2) return `((t${p}_0_${j} >> (2 * slot${s}))${up})`;
        return `((select(t${p}_0_${j}, t${p}_1_${j}, slot${s} >= 2) >> (4 * (slot${s} & 1)))${up})`;
      });
    return `for (var n = key_kind${bits - 1} + fourth % ${WAYS}; n < key_kind${bits}; n += ${WAYS}) {
      let quad = room[n];
      let q = ${turned.word(Q, 'n', v)};
      ${all((p, n, place) => each(4, i => `let k${p}_${n}_${i} = pool[keyPage / 4 + quad[${i}] + ${place}];`, ' '))}
      ${all(turn)}
      ${each(WAYS, s => each(4, j => `{ let c = ${codes(s, j)}; d${s}_${j} += vec4i(${each(4, k => `dot4I8Packed(c, q[${k}])`, ', ')}); }`))}
    }`;
  };
  // Slot s of a lane has fours (fourth ^ s) of 16 tokens: what lanes swap is always in the same slot.
  const swaps = [2, 1].filter(by => by < WAYS);
  const swap = (by: number) =>
    each(by, s =>
      each(4, j => `d${s}_${j} += bitcast<vec4i>(across(bitcast<vec4f>(d${s + by}_${j}), ${4 * by}u));`, ' '),
    );
  return {
    name: `mixed ${name}`,
    dim: D,
    turned: words,
    text: turned.text,
    // Where the four columns of a quad begin.
    room: () => tables.mostQuads,
    setup: `for (var n = own; n < ${tables.mostQuads}; n += ${SIZE}) {
    room[n] = vec4u(${each(4, k => quad('n', k), ', ')});
  }`,
    fetch: each(MOST_BITS + 1, n => `let key_kind${n} = ${described(`${tables.firstDims + n}`)};`, ' '),
    // A lane has tokens 64 upper + 16 s + 4 side + 0 to 3, for several s at first, for s = fourth in the end.
    sums: Q => `
  ${turned.begin(Q)}
  let upper = lane / 16;
  let fourth = lane / 4 % 4;
  let side = lane % 4;
  ${each(WAYS, s => `let slot${s} = fourth ^ ${s}u;`, ' ')}
  ${each(
    vectors(Q),
    v => `${each(4, j => `var dots${j}_${v}: vec4f;`, ' ')}
  {
    ${each(WAYS, s => each(4, j => `var d${s}_${j} = vec4i(0);`, ' '))}
    ${KINDS.map(bits => kind(Q, v, bits)).join('\n')}
    ${swaps.map(swap).join('\n')}
    ${each(4, j => `dots${j}_${v} = vec4f(d0_${j});`, ' ')}
  }`,
  )}`,
    score: (_, j, v) => `fma(dots${j}_${v}, turned_scale${v}, turned_added${v})`,
  };
}

export function mixedValues(name: string, fragment: Fragment, shape: PageShape): ValuePart | undefined {
  if (!fits(fragment, shape)) return undefined;
  const { headDim: D, pageTokens: P } = shape;
  const own = ownTable(fragment);
  const tables = mixedTables(shape);
  const weighed = weighedBytes(P);
  const dims = D / LANES;
  const word = (at: string) => `valueTables[${own} + ${at}]`;
  /** A column of so many bits, from vector `at` on: 32 words of four tokens. */
  const column = (Q: number, bits: number) => {
    const planes = planesOf(bits, P);
    // A turn takes a vector of the widest plane; words of others are moved down to where its begin.
    const widest = planes[0].width;
    const words = P / 4 / widest;
    const codes = (n: number) =>
      joined(bits, planes, p => {
        const { width, shift } = planes[p];
        const by = ((width * (n >> 2)) % 8) - shift;
        const of = `c${p}[${n % 4}]`;
        return by === 0 ? of : by > 0 ? `(${of} >> ${by}u)` : `(${of} << ${-by}u)`;
      });
    const read = ({ width, first }: Plane, p: number) => {
      const turns = widest / width;
      const shift = `vec4u(turn % ${turns} * ${8 / turns})`;
      const at = `pool4[at + ${first / 16} + turn / ${turns}]`;
      return `let c${p} = ${turns === 1 ? at : `${at} >> ${shift}`};`;
    };
    return `case ${bits}u: {
      for (var turn = 0u; turn < ${widest} * p.four / 4; turn++) {
        ${planes.map(read).join(' ')}
        ${each(words, n => `{ let x = ${codes(n)}; ${each(vectors(Q), v => `let w${v} = ${weighed.at(Q, `${words} * turn + ${n}`, v)}; u${v} += vec4u(${each(4, q => `dot4U8Packed(x, w${v}[${q}])`, ', ')});`, ' ')} }`)}
      }
    }`;
  };
  return {
    name: `mixed ${name}`,
    dim: D,
    room: weighed.room,
    fetch: each(dims, i => `let dim${i} = ${word(`${tables.sorted} + head * ${D} + lane + ${LANES * i}`)};`),
    sum: Q => `
  ${weighed.put(Q)}
  // What is added to every code counts the sum of all weights, which every lane needs.
  ${each(vectors(Q), v => `let all${v} = all_of(more${v});`, ' ')}
  ${each(dims, i => `let column${i} = ${word(`head * ${D} + dim${i}`)}; let step${i} = bitcast<f32>(${word(`${tables.steps} + head * ${D} + dim${i}`)});`)}
  // A loop, since the text of all numbers of bits is long.
  for (var i = 0u; i < ${dims} * p.four / 4; i++) {
    let column = ${Array.from({ length: dims - 1 }, (_, i) => i).reduceRight((rest, i) => `select(${rest}, column${i}, i == ${i})`, `column${dims - 1}`)};
    let at = (valuePage + column / 8) / 16;
    ${each(vectors(Q), v => `var u${v} = vec4u(0);`, ' ')}
    switch (column & 7) {
      ${KINDS.map(bits => column(Q, bits)).join('\n')}
      default: {}
    }
    let middle = 0.5 - f32((1u << (column & 7)) >> 1u);
    ${each(vectors(Q), v => `let sum${v} = fma(vec4f(middle), all${v}, vec4f(u${v})) * (by${v} * ${float(1 / 255)});`, ' ')}
    ${each(dims, i => `if (i == ${i}) { ${each(vectors(Q), v => `o${i}_${v} = sum${v} * step${i};`, ' ')} }`)}
  }`,
    dims,
    dimOf: i => `dim${i}`,
  };
}
