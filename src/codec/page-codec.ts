/**
 * Builds a codec from its parts. Every codec is the same pipeline: a *domain* (center, rotate) that vectors are
 * transformed into, and a *page format* (scale, quantize, pack) that stores them. Families provide the parts.
 */

import type { Outliers } from '../kernel/device.ts';
import { type PageEncoding, tracksError } from '../kernel/page-layout.ts';
import { InputError, ShapeError } from '../util/errors.ts';
import type { Codec, Shape } from './codec.ts';
import { type Field, layoutFields } from './page-fields.ts';
import { toMatrix } from './parts/rotation.ts';

/** The transform that is applied to vectors before they are quantized. */
export interface Domain {
  /** Length of a coded vector; more than headDim if a residual is coded in a second domain. */
  readonly codedDim: number;
  /** Vectors are coded without a transform (RoPE aside). */
  readonly isIdentity: boolean;
  readonly mean?: Float32Array;
  /** The matrices of a transform that is not a rotation, one per head, as in `PageLayout`. */
  readonly matrices?: { decode: Float32Array; encode: Float32Array; blocks: readonly number[] };
  /** Set if vectors are made page-relative first. */
  readonly ropeFrequencies?: Float64Array;
  /** Transforms a vector of a page that starts at position `start`, in place. */
  forward(x: Float64Array, head: number, start: number): void;
  /** Transforms a query, so that its dot product with a coded vector, plus the constant, is that with the original vector. */
  transformQuery(q: Float64Array, head: number, start: number): { vector: Float64Array; constant: number };
  /** Transforms a weighted sum of coded vectors back to headDim. */
  inverse(sum: Float64Array, weightSum: number, head: number, start: number): Float64Array;
}

export interface PageFormat {
  fields: Field[];
  /** The same format as data, for devices. */
  encoding: PageEncoding;
  /** Offset of the means of centered pages (centered.ts). */
  meansOffset?: number;
  /** Packs vectors of the domain, [head][token * headDim + dim], into a page of zero bytes. */
  write(heads: Float64Array[], tokens: number, page: Uint8Array): void;
  /** Number of bytes used, if the lists at the page's end vary in length. */
  usedBytes?(page: Uint8Array): number;
  outliers?(page: Uint8Array): Outliers;
  /** Whether lists of a page of unknown origin stay inside it; absent without lists. */
  isValid?(page: Uint8Array): boolean;
  /** Unpacks one coded vector. */
  read(page: Uint8Array, head: number, token: number, out: Float64Array): void;
}

export interface CodecParts
  extends Pick<Codec, 'spec' | 'shape' | 'budget' | 'bounds' | 'isIdempotent' | 'expectedError'> {
  domain: Domain;
  format: PageFormat;
}

export function pageCodec(parts: CodecParts): Codec {
  const { spec, shape, budget, bounds, isIdempotent, expectedError, domain, format } = parts;
  const { headDim, kvHeads, pageTokens } = shape;
  const { pageBytes, sharedBytes, blockBytes } = layoutFields(format.fields, kvHeads);
  const coded = new Float64Array(domain.codedDim);

  /** Vectors in the domain, [head][token * headDim + dim]. */
  const transform = (x: Float32Array, tokens: number, start: number): Float64Array[] =>
    Array.from({ length: kvHeads }, (_, head) => {
      const vectors = new Float64Array(tokens * headDim);
      for (let t = 0; t < tokens; t++) {
        const vector = vectors.subarray(t * headDim, (t + 1) * headDim);
        const from = (t * kvHeads + head) * headDim;
        // Several times faster than `set`, which has to convert numbers.
        for (let i = 0; i < headDim; i++) vector[i] = x[from + i];
        domain.forward(vector, head, start);
      }
      return vectors;
    });

  const checkPage = (page: Uint8Array, tokens: number) => {
    if (!Number.isInteger(tokens) || tokens < 0 || tokens > pageTokens)
      throw new ShapeError(`${spec}: a page holds 0 to ${pageTokens} tokens; got ${tokens}.`);
    if (page.length < pageBytes)
      throw new ShapeError(`${spec}: a page needs ${pageBytes} bytes; the buffer has ${page.length}.`);
  };

  const squaredError: Codec['squaredError'] = (x, tokens, page, start, firstToken = 0) => {
    checkPage(page, tokens);
    checkVectors(spec, x, tokens, shape);
    let sum = 0;
    transform(x, tokens, start).forEach((vectors, head) => {
      for (let t = firstToken; t < tokens; t++) {
        format.read(page, head, t, coded);
        for (let i = 0; i < headDim; i++) sum += (vectors[t * headDim + i] - coded[i]) ** 2;
      }
    });
    return sum;
  };

  return {
    spec,
    shape,
    pageBytes,
    fields: format.fields,
    layout: {
      codedDim: domain.codedDim,
      queryMatrix: domain.isIdentity
        ? undefined
        : (domain.matrices?.decode ?? toMatrix(q => domain.transformQuery(q, 0, 0).vector, headDim, domain.codedDim)),
      diagonalBlocks: domain.matrices?.blocks,
      encodeMatrix: domain.matrices?.encode,
      mean: domain.mean,
      ropeFrequencies: domain.ropeFrequencies,
      sharedBytes,
      blockBytes,
      meansOffset: format.meansOffset,
      encoding: format.encoding,
    },
    budget,
    bounds,
    isIdempotent,
    expectedError,
    outliers: format.outliers,
    isValid: format.isValid,
    pageRelative: domain.ropeFrequencies !== undefined,
    codedDim: domain.codedDim,

    encode(x, tokens, page, start) {
      checkPage(page, tokens);
      checkVectors(spec, x, tokens, shape);
      page.fill(0, 0, pageBytes);
      format.write(transform(x, tokens, start), tokens, page);
      return format.usedBytes?.(page) ?? pageBytes;
    },

    squaredError: tracksError(format.encoding) ? squaredError : undefined,

    decode(page, tokens, out, start) {
      checkPage(page, tokens);
      for (let t = 0; t < tokens; t++) {
        for (let head = 0; head < kvHeads; head++) {
          format.read(page, head, t, coded);
          const vector = domain.inverse(coded, 1, head, start);
          const at = (t * kvHeads + head) * headDim;
          for (let i = 0; i < headDim; i++) out[at + i] = vector[i];
        }
      }
    },

    transformQuery(query, head, start) {
      const { vector, constant } = domain.transformQuery(Float64Array.from(query), head, start);
      return { vector: Float32Array.from(vector), constant };
    },

    dotKeys({ vector }, page, head, tokens, out) {
      for (let t = 0; t < tokens; t++) {
        format.read(page, head, t, coded);
        let dot = 0;
        for (let i = 0; i < coded.length; i++) dot += vector[i] * coded[i];
        out[t] = dot;
      }
    },

    accumulateValues(weights, page, head, tokens, sum) {
      for (let t = 0; t < tokens; t++) {
        if (weights[t] === 0) continue;
        format.read(page, head, t, coded);
        for (let i = 0; i < coded.length; i++) sum[i] += weights[t] * coded[i];
      }
    },

    transformOutput(sum, weightSum, head, out) {
      out.set(domain.inverse(Float64Array.from(sum), weightSum, head, 0));
    },
  };
}

function checkVectors(spec: string, x: Float32Array, tokens: number, { headDim, kvHeads }: Shape): void {
  const length = tokens * kvHeads * headDim;
  if (x.length < length)
    throw new ShapeError(
      `${spec}: ${tokens} tokens x ${kvHeads} heads x ${headDim} dims need ${length} numbers; got ${x.length}.`,
    );
  for (let i = 0; i < length; i++) {
    if (!Number.isFinite(x[i])) {
      const token = Math.floor(i / (kvHeads * headDim));
      throw new InputError(
        `${spec}: value ${x[i]} at token ${token}, head ${Math.floor(i / headDim) % kvHeads}, dim ${i % headDim}. ` +
          'The cache stores finite numbers only: check the computation before it for overflow or division by zero.',
      );
    }
  }
}
