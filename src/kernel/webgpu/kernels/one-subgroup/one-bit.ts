/**
 * Levels of one bit in columns (tq1), as integers.
 *
 *   keys     whole lines go to workgroup memory, where a lane finds the words of its tokens for four dims side by side. They
 *            are transposed while packed, so that every shifted-out word has four dims for an int8 dot product. Two lanes
 *            share the groups of four dims and exchange in the end: each then has four tokens of all dims
 *   values   a lane reads the columns of its dims, against quantized probabilities that include the norms of tokens
 */

import type { PageLayout } from '../../../page-layout.ts';
import { type TableBytes, tableBytes } from '../levels.ts';
import { blockStart, type Side } from '../names.ts';
import type { PageShape } from '../shape.ts';
import { float, maxOf4, transpose4x4Bytes } from '../snippets.ts';
import { stripsOf } from '../strips.ts';
import { int8Words } from '../transform.ts';
import { addTerm, type KeyStage, type ValueStage, vec4Of } from './attend.ts';
import { products } from './int8-levels.ts';
import { loadQueries, queryDeclaration, queryWord } from './int8-queries.ts';
import { opaque, SCRATCH, vectors } from './names.ts';
import { quantizedProbabilities, sumsOfWords } from './quantized-probabilities.ts';
import { type Lines, stripLoop } from './strip-loop.ts';
import { LANES } from './subgroup.ts';

/** Lines of 16 bytes per dim that a lane loads, and vectors of workgroup memory that all lanes fill with one of them. */
const LINES = 4;
const LINE_VECTORS = LANES;

interface OneBit {
  offset: number;
  norms: number;
  /** A value is (byte - zeroPoint) x scale x the norm of its token. */
  bytes: TableBytes;
}

/** For pages of 128 tokens and 128 dims. */
function oneBitOf(side: Side, layout: PageLayout, { headDim: D, pageTokens: P }: PageShape): OneBit | undefined {
  const { encoding, sharedBytes, blockBytes, ropeFrequencies } = layout;
  if (ropeFrequencies || D !== LINES * LANES || P !== 4 * LANES || encoding.kind !== 'levels') return undefined;
  const { codes, norms, levels } = encoding;
  if (codes.bits !== 1 || codes.order !== 'columns' || norms.bytes !== 2 || norms.offset % 8 !== 0) return undefined;
  if ([sharedBytes, blockBytes, codes.offset].some(n => n % 16 !== 0)) return undefined;
  const bytes = tableBytes(side, levels);
  return bytes && { offset: codes.offset, norms: norms.offset, bytes };
}

/** Packed pairs of f16: they take half the registers. */
const loadNorms = (side: Side, offset: number) => {
  const at = `(${blockStart(side)} + ${offset}) / 4 + 2 * lane`;
  return `let ${side}_packed_norms = vec2u(pool[${at}], pool[${at} + 1]);`;
};
const unpackNorms = (side: Side) =>
  `let ${side}_norms = vec4f(unpack2x16float(${side}_packed_norms.x), unpack2x16float(${side}_packed_norms.y));`;

/** The 4 x 4 bytes of four words, transposed. */
const transposeBytes = /* wgsl */ `
fn transpose_bytes(x: vec4u) -> vec4u {
  @unroll(k, 4) let x$k = x[$k];
  ${transpose4x4Bytes}
  return vec4u(y0, y1, y2, y3);
}`;

export function oneBitKeys(name: string, layout: PageLayout, shape: PageShape): KeyStage | undefined {
  const page = oneBitOf('key', layout, shape);
  if (!page) return undefined;
  const { offset, norms, bytes } = page;
  const D = layout.codedDim;
  const steps = D / 8;
  const sumOfQuery = `dot4I8Packed(queries[query_origin$q + lane], 0x01010101u)`;
  return {
    name: `columns ${name}`,
    dim: D,
    queryWords: int8Words(D),
    int8: true,
    scratchVectors: () => LINE_VECTORS * LINES,
    text: Q => `${transposeBytes}
${queryDeclaration(Q, D)}`,
    // A lane owns tokens 64 upper + 16 s + 4 quarter + 0 to 3: two values of s at first, one in the end.
    load: Q => `${loadQueries(Q, D)}
  let quarter = lane % 4;
  let sharer = lane / 4 % 2;
  @unroll(s, 2) { let bit$s = (lane / 4) ^ $su; let mask$s = 0x01010101u << bit$s; }
  let bit_unit = select(1.0 / f32(1u << bit0), -1.0 / 128.0, bit0 == 7);
  @unroll(s, 4) let to$s = lane / 4 % 8 * 4 + ($s + lane / 8) % 4;
  @unroll(v, ${vectors(Q)}) let middle$v = reduce_add(vec4f(vec4i${vec4Of(Q, sumOfQuery)})) * ${float(-bytes.zeroPoint * bytes.scale)};`,
    loadConstants: () => loadNorms('key', norms),
    // Sums begin at the bits of 1.5 x 2^23, whose lowest bits are integers: bitcast to float, they need no conversion.
    sums: Q => `
    @unroll(k, ${LINES}) let line$k = pool4[${blockStart('key')} / 16 + $(${offset / 16} + ${LANES} * k) + lane];
    @unroll(j, 4) @unroll(v, ${vectors(Q)}) { var d0_$j_$v = vec4i(0x4b400000); var d1_$j_$v = vec4i(0); }
    workgroupBarrier();
    @unroll(k, ${LINES}) @unroll(s, 4) ${SCRATCH}[$(${LINE_VECTORS} * k) + to$s][lane % 4] = line$k[$s];
    workgroupBarrier();
    for (var dim_step = 0u; dim_step < ${opaque(steps)}; dim_step++) {
      // With the modulo compilers know that it is in bounds. Quarters are interleaved to avoid bank conflicts.
      let bits = transpose_bytes(${SCRATCH}[8 * (dim_step % ${steps}) + 4 * sharer + (quarter + dim_step) % 4]);
      @unroll(v, ${vectors(Q)}) let q$v = ${queryWord(Q, `2 * (dim_step % ${steps}) + sharer`)};
      // The byte is the bit in place, which is the same in all words of a lane.
      @unroll(s, 2) @unroll(j, 4) {{
        let c = (bits[$j] & mask$s);
        @unroll(q, ${Q}) d$s_$j_$[q] += dot4I8Packed(c, q$[q]);
      }}
    }
    ${unpackNorms('key')}
    @unroll(j, 4) @unroll(v, ${vectors(Q)}) {
      d0_$j_$v += bitcast<vec4i>(shuffle_xor(bitcast<vec4f>(d1_$j_$v), 4u));
      let bit_dots$j_$v = (bitcast<vec4f>(d0_$j_$v) - 12582912.0) * bit_unit;
      let all$j_$v = fma(middle$v, vec4f(key_norms[$j]),
        fma(bit_dots$j_$v, vec4f(${float(bytes.scale)} * key_norms[$j]), vec4f(0.0)));
    }
    @unroll(q, ${Q}) let dots0_$q = vec4f(@list(j, 4, all$j_$[q]));`,
    score: plus => addTerm('dots$c_$q * vec4f(query_scale$[q])', plus),
  };
}

export function oneBitValues(name: string, layout: PageLayout, shape: PageShape): ValueStage | undefined {
  const page = oneBitOf('value', layout, shape);
  if (!page) return undefined;
  const { offset, norms, bytes } = page;
  const { pageTokens: P } = shape;
  const D = layout.codedDim;
  const quantized = quantizedProbabilities(P);
  const lines: Lines = {
    strips: stripsOf(1, P, D)!,
    id: 'c',
    at: `${blockStart('value')} + ${offset}`,
    lineIndices: [0, 1, 2, 3].map(j => `lane + ${LANES * j}`),
  };
  return {
    name: `columns ${name}`,
    dim: D,
    scratchVectors: quantized.scratchVectors,
    strided: true,
    loadConstants: ({ strided, at }) =>
      strided
        ? `@unroll(c, 1) let value_norms = vec4f(@list(j, 4, read_f16(${blockStart('value')} + ${norms} + 2 * ${at})));`
        : loadNorms('value', norms),
    text: Q => quantized.declare(Q),
    declare: Q => `@unroll(v, ${vectors(Q)}) var correction$v = vec4f(0.0);`,
    // Sums begin at the bits of 2^23, which none exceeds.
    accumulate: (Q, tokens) => `{
    ${tokens.strided ? '' : unpackNorms('value')}
    let max_norm = max(reduce_max(vec4f(${maxOf4('value_norms')})).x, 1e-30);
    let shares = value_norms * (1.0 / max_norm);
    ${quantized.store(Q, tokens, {
      weights: '(prob$c_$q * shares)',
      after: `correction$v = fma(correction$v, rescale$v, ${sumsOfWords} * (page_factor$v * max_norm));`,
    })}
    @unroll(j, 4) @unroll(v, ${vectors(Q)}) var d$j_$v = vec4u(0x4b000000u);
    ${stripLoop(lines, (n, words) => products(Q, 'U', words.map(bytes.of), 'd', quantized.at(Q, n)))}
    @unroll(v, ${vectors(Q)}) let unit$v = page_factor$v * (max_norm * ${float(bytes.scale / 255)});
    @unroll(j, 4) @unroll(v, ${vectors(Q)}) out0_$j_$v = fma(bitcast<vec4f>(d$j_$v) - 8388608.0, unit$v, out0_$j_$v * rescale$v); }`,
    finish: Q => `
    @unroll(v, ${vectors(Q)}) {
      correction$v = reduce_add(correction$v);
      @unroll(j, 4) out0_$j_$v -= correction$v * ${float((bytes.zeroPoint * bytes.scale) / 255)};
    }`,
  };
}
