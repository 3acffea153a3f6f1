/**
 * TurboQuant (Zandieh et al., arXiv 2504.19874) and its uniform siblings: tq1 tq2 tq3 tq4, tq2u tq3u tq4u.
 *
 *   keys: x - mean of the page  ->  norm s = |x|  ->  y = R x / s  ->  each coordinate of sqrt(d) y to the nearest level of
 *   a codebook for N(0, 1)
 *
 * After a random rotation every coordinate of a unit vector is nearly N(0, 1/d), so that one codebook fits all vectors and
 * no calibration is needed. The levels are Lloyd-Max's (tqN), or evenly spaced (tqNu): then a code is an int8 after a
 * mask, without a lookup table.
 */
import { SpecError } from '../../util/errors.ts';
import { centerKeys } from '../centered.ts';
import type { Shape, Side } from '../codec.ts';
import { rotatedDomain } from '../domain.ts';
import { type CodecRequest, type Family, SEED } from '../family.ts';
import { createGrid } from '../pack.ts';
import { type PageFormat, pageCodec } from '../page-codec.ts';
import { type Field, layoutFields } from '../page-fields.ts';
import { lloydMaxTable, nearest, uniformStep } from '../parts/lloyd-max.ts';
import { haar, signedHadamard, type Transform } from '../parts/rotation.ts';
import { norm } from '../parts/vector.ts';
import { f16, f32, type Scalars } from '../scalars.ts';
import { mseBounds } from './bounds.ts';

/** Maximum mean squared error of 10,000 random unit vectors, by bits. */
const BUDGET: Record<string, number> = {
  '1': 0.37,
  '2': 0.119,
  '3': 0.035,
  '4': 0.0096,
  '2u': 0.12,
  '3u': 0.038,
  '4u': 0.0117,
};

export const turbo: Family = {
  title: 'TurboQuant',
  pattern: /^tq(?:([1-4])|([2-4])u)$/,
  bases: ['tq4', 'tq3', 'tq2', 'tq1', 'tq4u', 'tq3u', 'tq2u'],
  variants: [
    { name: 'raw', about: 'as published: keys are not centered, norms not corrected' },
    { name: 'n32', about: 'norms in f32 instead of f16' },
    { name: 'haar', about: 'a dense random rotation instead of the signed Hadamard' },
    { name: 'r#', about: 'rounds of the signed Hadamard (1)' },
    SEED,
  ],
  conflicts: [['haar', 'r#']],
  create(request) {
    const { spec, match, side, shape } = request;
    const raw = request.has('raw');
    const bits = Number(match[1] ?? match[2]);
    const uniform = match[2] !== undefined;
    // Decoded vectors keep their length. At 1 and 2 bits that costs more error than it gains.
    const normCorrected = !raw && bits > 2;
    const format = turboFormat(bits, uniform, side, shape, request.has('n32') ? f32 : f16, normCorrected);
    return pageCodec({
      spec,
      shape,
      // Norm correction increases the squared error slightly.
      budget: BUDGET[uniform ? `${bits}u` : bits] * (normCorrected ? 1.02 : 1),
      bounds: raw && !uniform ? mseBounds(bits) : undefined,
      isIdempotent: false,
      domain: rotatedDomain(shape.headDim, createRotation(request, shape.headDim)),
      format: centerKeys(request, format),
    });
  },
};

/** The rotation of a spec, for vectors of `dims` dims. */
export function createRotation({ spec, has, numberOf }: CodecRequest, dims: number): Transform {
  const rounds = numberOf('r#', 1);
  if (rounds < 1 || rounds > 8) throw new SpecError(`${spec}: r${rounds} is out of range. Use r1 to r8.`);
  // Small and odd dimensions have no suitable Hadamard matrix.
  const dense = has('haar') || dims < 16 || dims % 2 === 1;
  return dense ? haar(dims, numberOf('seed#', 0)) : signedHadamard(dims, numberOf('seed#', 0), rounds);
}

/**
 * One head's block:
 *   codes   headDim x pageTokens codes of `bits` (see pack.ts). Values are in columns; keys of tq3, tq4 and tqNu in rows;
 *           keys of tq1 in columns; both of tq2 in pairs. A code of tqN is an index into the ascending levels; a code of
 *           tqNu is two's complement, with value (code + 1/2) step.
 *   norms   pageTokens x f16 (f32): |x|, or |x| / |decoded unit vector| with norm correction.
 */
function turboFormat(
  bits: number,
  uniform: boolean,
  side: Side,
  { headDim, kvHeads, pageTokens }: Shape,
  scalars: Scalars,
  normCorrected: boolean,
): PageFormat {
  const order = side === 'key' && (uniform || bits > 2) ? 'rows' : !uniform && bits === 2 ? 'pairs' : 'columns';
  const grid = createGrid(pageTokens, headDim, bits, order);
  const fields: Field[] = [
    {
      name: 'codes',
      bytes: grid.bytes,
      per: 'head',
      about: `${headDim} x ${pageTokens} codes of ${bits} bits in ${order}, ${
        uniform ? 'two’s complement, value (code + 1/2) step' : 'index into the ascending Lloyd-Max table'
      }`,
    },
    {
      name: 'norms',
      bytes: pageTokens * scalars.bytes,
      per: 'head',
      about: `${pageTokens} x ${scalars.name}, ${normCorrected ? '|x| / |decoded direction|' : '|x|'}`,
    },
  ];
  const layout = layoutFields(fields, kvHeads);
  const quantizer = uniform ? uniformQuantizer(bits, headDim) : tableQuantizer(bits, headDim);

  return {
    fields,
    encoding: {
      kind: 'levels',
      codes: { offset: layout.offset('codes'), bits, order },
      levels: quantizerLevels(quantizer, bits),
      uniform,
      norms: { offset: layout.offset('norms'), bytes: scalars.bytes },
      normCorrection: normCorrected,
    },
    write(heads, tokens, page) {
      heads.forEach((vectors, head) => {
        const codes = layout.field(page, 'codes', head);
        const norms = layout.field(page, 'norms', head);
        for (let t = 0; t < tokens; t++) {
          const x = vectors.subarray(t * headDim, (t + 1) * headDim);
          const length = norm(x);
          let decoded = 0;
          for (let i = 0; i < headDim; i++) {
            const code = quantizer.encode(length > 0 ? x[i] / length : 0);
            decoded += quantizer.decode(code) ** 2;
            grid.write(codes, t, i, code);
          }
          scalars.write(norms, t, normCorrected ? length / Math.sqrt(decoded) : length);
        }
      });
    },
    read(page, head, token, out) {
      const codes = layout.field(page, 'codes', head);
      const length = scalars.read(layout.field(page, 'norms', head), token);
      for (let i = 0; i < headDim; i++) out[i] = length * quantizer.decode(grid.read(codes, token, i));
    },
  };
}

/** A scalar quantizer for one coordinate of a unit vector. */
export interface Quantizer {
  encode(y: number): number;
  decode(code: number): number;
}

/** The value of each code. */
export const quantizerLevels = ({ decode }: Quantizer, bits: number): Float32Array =>
  Float32Array.from({ length: 2 ** bits }, (_, code) => decode(code));

/** The Lloyd-Max table for N(0, 1/d), times `scale`. */
export function tableQuantizer(bits: number, d: number, scale = 1): Quantizer {
  const table = lloydMaxTable(bits, d).map(c => (c / Math.sqrt(d)) * scale);
  return { encode: y => nearest(table, y), decode: code => table[code] };
}

function uniformQuantizer(bits: number, d: number): Quantizer {
  const step = uniformStep(bits, d) / Math.sqrt(d);
  const half = 2 ** (bits - 1);
  return {
    encode: y => Math.max(-half, Math.min(half - 1, Math.floor(y / step))) & (2 * half - 1),
    decode: code => ((code ^ half) - half + 0.5) * step,
  };
}
