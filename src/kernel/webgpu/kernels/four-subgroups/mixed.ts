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
import { float, repeatByte, transpose4x4Bytes } from '../snippets.ts';
import { encodingTableOffset, MAX_COLUMN_BITS, mixedTables, QUAD_WORDS } from '../tables.ts';
import type { KeyStage, QueryWords, ValueStage } from './attend.ts';
import { opaque, SCRATCH, vectors } from './names.ts';
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
  const kind = (Q: number, bits: number) => {
    const planes = planesOf(bits, P);
    /** Words of a plane that contain a lane's tokens. */
    const places = ({ width, first }: Plane) =>
      ({ 4: ['8 * upper + quarter', '8 * upper + quarter + 4'], 2: ['4 * upper + quarter'], 1: ['quarter'] })[
        width
      ]!.map(at => `${first / 4} + ${at}`);
    const all = (text: (p: number, n: number, place: string) => string) =>
      planes.flatMap((plane, p) => places(plane).map((place, n) => text(p, n, place))).join('\n');
    // Single bits are moved into place before they are shifted out.
    const put = (p: number) => (planes[p].width === 1 ? `(y$j >> (4 * upper)) << ${planes[p].shift}u` : 'y$j');
    const transpose = (p: number, n: number) => `
      @unroll(j, 4) var t${p}_${n}_$j: u32;
      {
        @unroll(i, 4) let x$i = k${p}_${n}_$i;
        ${transpose4x4Bytes}
        @unroll(j, 4) t${p}_${n}_$j = ${put(p)};
      }`;
    /** Byte j of slot s. */
    const codes = joinPlanes(bits, planes, p => {
      const { width, shift } = planes[p];
      if (width === 1) return `(t${p}_0_$j >> slot$s)`;
      const up = shift === 0 ? '' : ` << ${shift}u`;
      if (width === 2) return `((t${p}_0_$j >> (2 * slot$s))${up})`;
      return `((select(t${p}_0_$j, t${p}_1_$j, slot$s >= 2) >> (4 * (slot$s & 1)))${up})`;
    });
    return `for (var n = key_kind${bits - 1} + fourth % ${SHARING_LANES}; n < key_kind${bits}; n += ${SHARING_LANES}) {
      let quad = ${SCRATCH}[n];
      let q = ${queries.word(Q, 'n')};
      ${all((p, n, place) => `@unroll(i, 4) let k${p}_${n}_$i = pool[${pageStart('key')} / 4 + quad[$i] + ${place}];`)}
      ${all(transpose)}
      @unroll(s, ${SHARING_LANES}) @unroll(j, 4) {{
        let c = ${codes};
        d$s_$j += vec4i(@list(k, 4, dot4I8Packed(c, q[$k])));
      }}
    }`;
  };
  return {
    name: `mixed ${name}`,
    dim: D,
    queryWords: words,
    text: queries.text,
    // Where the four columns of a quad begin.
    scratchVectors: () => tables.maxQuads,
    setup: `for (var n = local_index; n < ${tables.maxQuads}; n += ${WORKGROUP_SIZE}) {
    ${SCRATCH}[n] = vec4u(${[0, 1, 2, 3].map(k => quad('n', k)).join(', ')});
  }`,
    loadConstants: `@unroll(n, ${MAX_COLUMN_BITS + 1}) let key_kind$n = ${described(`$(${tables.firstDims} + n)`)};`,
    // A lane owns tokens 64 upper + 16 s + 4 quarter + 0 to 3: s is (fourth ^ slot) at first, fourth in the end.
    sums: Q => `
  ${queries.begin(Q)}
  let upper = lane / 16;
  let fourth = lane / 4 % 4;
  let quarter = lane % 4;
  @unroll(s, ${SHARING_LANES}) let slot$s = fourth ^ $su;
  @unroll(v, ${vectors(Q)}) {
    @unroll(j, 4) var dots$j_$v: vec4f;
    {
      @unroll(s, ${SHARING_LANES}) @unroll(j, 4) var d$s_$j = vec4i(0);
      ${BIT_WIDTHS.map(bits => kind(Q, bits)).join('\n')}
      @unroll(j, 4) d0_$j += bitcast<vec4i>(shuffle_xor(bitcast<vec4f>(d1_$j), 4u));
      @unroll(j, 4) dots$j_$v = vec4f(d0_$j);
    }
  }`,
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
  /** Adds the four codes of word n. */
  const addWord = (Q: number, codes: string, n: string) => `{
        let x = ${codes};
        @unroll(v, ${vectors(Q)}) {
          let w$v = ${quantized.at(Q, n)};
          u$v += vec4u(@list(q, 4, dot4U8Packed(x, w$v[$q])));
        }
      }`;
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
        ${Array.from({ length: words }, (_, n) => addWord(Q, codes(n), `${words} * plane_step + ${n}`)).join('\n')}
      }
    }`;
  };
  return {
    name: `mixed ${name}`,
    dim: D,
    scratchVectors: quantized.scratchVectors,
    loadConstants: `@unroll(i, ${dims}) let dim$i = ${word(`${tables.sorted} + head * ${D} + lane + $(${LANES} * i)`)};`,
    sum: Q => `
  ${quantized.store(Q)}
  // The offset of the codes counts by the sum of all probabilities, which every lane needs.
  @unroll(v, ${vectors(Q)}) let all$v = reduce_add(prob_sum$v);
  @unroll(i, ${dims}) {
    let column$i = ${word(`head * ${D} + dim$i`)};
    let step$i = bitcast<f32>(${word(`${tables.steps} + head * ${D} + dim$i`)});
  }
  // A loop, since the code for all bit widths is long.
  for (var i = 0u; i < ${opaque(dims)}; i++) {
    let column = ${Array.from({ length: dims - 1 }, (_, i) => i).reduceRight((rest, i) => `select(${rest}, column${i}, i == ${i})`, `column${dims - 1}`)};
    let at = (${pageStart('value')} + column / 8) / 16;
    @unroll(v, ${vectors(Q)}) var u$v = vec4u(0);
    switch (column & 7) {
      ${BIT_WIDTHS.map(bits => column(Q, bits)).join('\n')}
      default: {}
    }
    let middle = 0.5 - f32((1u << (column & 7)) >> 1u);
    @unroll(v, ${vectors(Q)}) let sum$v = fma(vec4f(middle), all$v, vec4f(u$v)) * (page_factor$v * ${float(1 / 255)});
    @unroll(i, ${dims}) if (i == $i) { @unroll(v, ${vectors(Q)}) out$i_$v = sum$v * step$i; }
  }`,
    dims,
  };
}
