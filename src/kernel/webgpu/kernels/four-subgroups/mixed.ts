/**
 * Columns of codes with a bit width each (mead2u and relatives), as integers. The bit widths are data, so layers share
 * a kernel; tables.ts sorts columns by width, so that neighbouring lanes do the same. A column of 3, 5 or 6 bits is two
 * planes; each plane is a column of 1, 2 or 4 bits (codec/pack.ts). Codes are offset binary.
 *
 *   keys     four columns of equal width are a quad. A lane has tokens of every other quad: words of four tokens are transposed
 *            while packed, so that every shifted-out word has four dims for a dot product with int8 queries, which include
 *            the steps. In the end lanes exchange: each then has four tokens of all quads
 *   values   four tokens per word, against quantized probabilities
 */

import type { PageLayout } from '../../../page-layout.ts';
import type { AttendShape } from '../attend.ts';
import { pageStart } from '../names.ts';
import { LANES } from '../one-subgroup/subgroup.ts';
import type { PageShape } from '../shape.ts';
import { each, float, repeatByte, transpose4x4Bytes } from '../snippets.ts';
import { encodingTableOffset, MAX_COLUMN_BITS, mixedTables, QUAD_WORDS } from '../tables.ts';
import type { KeyStage, QueryWords, ValueStage } from './attend.ts';
import { opaque, output, pageFactor, probabilitySum, queryOffset, queryScale, SCRATCH, vectors } from './names.ts';
import { loadQueryWords } from './page-relative.ts';
import { quantizedProbabilities } from './quantized-probabilities.ts';
import { WORKGROUP_SIZE } from './subgroup.ts';

const isSupported = ({ encoding, codedDim }: PageLayout, { headDim: D, pageTokens: P }: PageShape) =>
  encoding.kind === 'mixed' && codedDim === D && D % LANES === 0 && P === 4 * LANES;

const BIT_WIDTHS = Array.from({ length: MAX_COLUMN_BITS }, (_, n) => n + 1);
/** Lanes that share the quads of keys: each owns this many times four tokens. */
const SHARING_LANES = 2;

interface Plane {
  width: number;
  /** Position of its bits in the code. */
  shift: number;
  /** Offset in the column, for P tokens. */
  first: number;
}

/** Planes of a bit width, lowest bits first. */
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

/** Four codes in offset binary, one per byte: `word(p)` has the bits of plane p in place. */
const joinPlanes = (bits: number, planes: readonly Plane[], word: (p: number) => string) =>
  planes
    .map(({ width, shift }, p) => {
      const part = `(${word(p)} & ${repeatByte((2 ** width - 1) << shift)})`;
      return shift + width === bits ? `(${part} ^ ${repeatByte(2 ** (bits - 1))})` : part;
    })
    .join(' | ');

export function mixedKeys(name: string, layout: PageLayout, shape: AttendShape): KeyStage | undefined {
  if (!isSupported(layout, shape) || !layout.ropeFrequencies) return undefined;
  const { headDim: D, pageTokens: P } = shape;
  const tableStart = encodingTableOffset(layout);
  const tables = mixedTables(shape);
  const word = (at: string) => `keyTables[${tableStart} + ${at}]`;
  const described = (at: string) => word(`${tables.heads} + head * ${tables.headWords} + ${at}`);
  const quad = (n: string, k: number) => described(`${tables.firstQuads + k} + ${QUAD_WORDS} * (${n})`);
  const words: QueryWords = {
    maxWords: tables.maxQuads,
    count: `let count = ${described(`${tables.firstQuads - 1}`)};`,
    step: n => `bitcast<f32>(${word(`${tables.steps} + head * ${D} + ${n}`)})`,
    dims: n => `vec4u(${quad(n, 4)} & 0xffff, ${quad(n, 4)} >> 16, ${quad(n, 5)} & 0xffff, ${quad(n, 5)} >> 16)`,
    twiceOffset: n => quad(n, 6),
  };
  const queries = loadQueryWords(words, shape);
  const kind = (Q: number, v: number, bits: number) => {
    const planes = planesOf(bits, P);
    /** Words of a plane that contain a lane's tokens. */
    const places = ({ width, first }: Plane) =>
      ({ 4: ['8 * upper + quarter', '8 * upper + quarter + 4'], 2: ['4 * upper + quarter'], 1: ['quarter'] })[
        width
      ]!.map(at => `${first / 4} + ${at}`);
    const all = (text: (p: number, n: number, place: string) => string) =>
      planes
        .map((plane, p) =>
          places(plane)
            .map((place, n) => text(p, n, place))
            .join(' '),
        )
        .join('\n');
    // Single bits are moved into place before they are shifted out.
    const put = (p: number, y: string) => (planes[p].width === 1 ? `(${y} >> (4 * upper)) << ${planes[p].shift}u` : y);
    const transpose = (p: number, n: number) => `
        ${each(4, j => `var t${p}_${n}_${j}: u32;`, ' ')}
        { ${each(4, i => `let x${i} = k${p}_${n}_${i};`, ' ')} ${transpose4x4Bytes} ${each(4, j => `t${p}_${n}_${j} = ${put(p, `y${j}`)};`, ' ')} }`;
    /** Byte j of slot s. */
    const codes = (s: number, j: number) =>
      joinPlanes(bits, planes, p => {
        const { width, shift } = planes[p];
        if (width === 1) return `(t${p}_0_${j} >> slot${s})`;
        const up = shift === 0 ? '' : ` << ${shift}u`;
        if (width === 2) return `((t${p}_0_${j} >> (2 * slot${s}))${up})`;
        return `((select(t${p}_0_${j}, t${p}_1_${j}, slot${s} >= 2) >> (4 * (slot${s} & 1)))${up})`;
      });
    return `for (var n = key_kind${bits - 1} + fourth % ${SHARING_LANES}; n < key_kind${bits}; n += ${SHARING_LANES}) {
      let quad = ${SCRATCH}[n];
      let q = ${queries.word(Q, 'n', v)};
      ${all((p, n, place) => each(4, i => `let k${p}_${n}_${i} = pool[${pageStart('key')} / 4 + quad[${i}] + ${place}];`, ' '))}
      ${all(transpose)}
      ${each(SHARING_LANES, s => each(4, j => `{ let c = ${codes(s, j)}; d${s}_${j} += vec4i(${each(4, k => `dot4I8Packed(c, q[${k}])`, ', ')}); }`))}
    }`;
  };
  // Slot s of a lane has group (fourth ^ s) of 16 tokens: what lanes exchange is always in the same slot.
  const exchanges = [2, 1].filter(by => by < SHARING_LANES);
  const exchange = (by: number) =>
    each(by, s =>
      each(4, j => `d${s}_${j} += bitcast<vec4i>(shuffle_xor(bitcast<vec4f>(d${s + by}_${j}), ${4 * by}u));`, ' '),
    );
  return {
    name: `mixed ${name}`,
    dim: D,
    queryWords: words,
    text: queries.text,
    // Where the four columns of a quad begin.
    scratchVectors: () => tables.maxQuads,
    setup: `for (var n = local_index; n < ${tables.maxQuads}; n += ${WORKGROUP_SIZE}) {
    ${SCRATCH}[n] = vec4u(${each(4, k => quad('n', k), ', ')});
  }`,
    loadConstants: each(MAX_COLUMN_BITS + 1, n => `let key_kind${n} = ${described(`${tables.firstDims + n}`)};`, ' '),
    // A lane owns tokens 64 upper + 16 s + 4 quarter + 0 to 3: several s at first, s = fourth in the end.
    sums: Q => `
  ${queries.begin(Q)}
  let upper = lane / 16;
  let fourth = lane / 4 % 4;
  let quarter = lane % 4;
  ${each(SHARING_LANES, s => `let slot${s} = fourth ^ ${s}u;`, ' ')}
  ${each(
    vectors(Q),
    v => `${each(4, j => `var dots${j}_${v}: vec4f;`, ' ')}
  {
    ${each(SHARING_LANES, s => each(4, j => `var d${s}_${j} = vec4i(0);`, ' '))}
    ${BIT_WIDTHS.map(bits => kind(Q, v, bits)).join('\n')}
    ${exchanges.map(exchange).join('\n')}
    ${each(4, j => `dots${j}_${v} = vec4f(d0_${j});`, ' ')}
  }`,
  )}`,
    score: (_, j, v) => `fma(dots${j}_${v}, ${queryScale(v)}, ${queryOffset(v)})`,
  };
}

export function mixedValues(name: string, layout: PageLayout, shape: PageShape): ValueStage | undefined {
  if (!isSupported(layout, shape)) return undefined;
  const { headDim: D, pageTokens: P } = shape;
  const tableStart = encodingTableOffset(layout);
  const tables = mixedTables(shape);
  const quantized = quantizedProbabilities(P);
  const dims = D / LANES;
  const word = (at: string) => `valueTables[${tableStart} + ${at}]`;
  /** A column of `bits` bits, from vector `at` on: 32 words of four tokens. */
  const column = (Q: number, bits: number) => {
    const planes = planesOf(bits, P);
    // A step takes a vector of the widest plane; words of other planes are shifted down.
    const widest = planes[0].width;
    const words = P / 4 / widest;
    const codes = (n: number) =>
      joinPlanes(bits, planes, p => {
        const { width, shift } = planes[p];
        const by = ((width * (n >> 2)) % 8) - shift;
        const of = `c${p}[${n % 4}]`;
        return by === 0 ? of : by > 0 ? `(${of} >> ${by}u)` : `(${of} << ${-by}u)`;
      });
    const read = ({ width, first }: Plane, p: number) => {
      const stepsPerVector = widest / width;
      const shift = `vec4u(plane_step % ${stepsPerVector} * ${8 / stepsPerVector})`;
      const at = `pool4[at + ${first / 16} + plane_step / ${stepsPerVector}]`;
      return `let c${p} = ${stepsPerVector === 1 ? at : `${at} >> ${shift}`};`;
    };
    return `case ${bits}u: {
      for (var plane_step = 0u; plane_step < ${opaque(widest)}; plane_step++) {
        ${planes.map(read).join(' ')}
        ${each(words, n => `{ let x = ${codes(n)}; ${each(vectors(Q), v => `let w${v} = ${quantized.at(Q, `${words} * plane_step + ${n}`, v)}; u${v} += vec4u(${each(4, q => `dot4U8Packed(x, w${v}[${q}])`, ', ')});`, ' ')} }`)}
      }
    }`;
  };
  return {
    name: `mixed ${name}`,
    dim: D,
    scratchVectors: quantized.scratchVectors,
    loadConstants: each(dims, i => `let dim${i} = ${word(`${tables.sorted} + head * ${D} + lane + ${LANES * i}`)};`),
    sum: Q => `
  ${quantized.store(Q)}
  // The offset of the codes counts by the sum of all probabilities, which every lane needs.
  ${each(vectors(Q), v => `let all${v} = reduce_add(${probabilitySum(v)});`, ' ')}
  ${each(dims, i => `let column${i} = ${word(`head * ${D} + dim${i}`)}; let step${i} = bitcast<f32>(${word(`${tables.steps} + head * ${D} + dim${i}`)});`)}
  // A loop, since the code for all bit widths is long.
  for (var i = 0u; i < ${opaque(dims)}; i++) {
    let column = ${Array.from({ length: dims - 1 }, (_, i) => i).reduceRight((rest, i) => `select(${rest}, column${i}, i == ${i})`, `column${dims - 1}`)};
    let at = (${pageStart('value')} + column / 8) / 16;
    ${each(vectors(Q), v => `var u${v} = vec4u(0);`, ' ')}
    switch (column & 7) {
      ${BIT_WIDTHS.map(bits => column(Q, bits)).join('\n')}
      default: {}
    }
    let middle = 0.5 - f32((1u << (column & 7)) >> 1u);
    ${each(vectors(Q), v => `let sum${v} = fma(vec4f(middle), all${v}, vec4f(u${v})) * (${pageFactor(v)} * ${float(1 / 255)});`, ' ')}
    ${each(dims, i => `if (i == ${i}) { ${each(vectors(Q), v => `${output(i, v)} = sum${v} * step${i};`, ' ')} }`)}
  }`,
    dims,
    dimOf: i => `dim${i}`,
  };
}
