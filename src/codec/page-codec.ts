/**
 * A codec from its parts. Every method of the zoo is the same pipeline: a *domain* (centre, rotate) in which codes
 * live, and a *page format* (scale, quantize, pack) that writes and reads vectors of that domain. This file joins
 * the two into the contract; a family brings the parts.
 */
import { InputError, ShapeError } from '../errors.ts';
import type { Outliers } from '../kernel/device.ts';
import type { PageFragment } from '../kernel/fragment.ts';
import type { Codec, Shape } from './codec.ts';
import { type Field, layOut } from './layout.ts';
import { matrixOf } from './parts/rotation.ts';

/** How vectors go into the domain where they are coded, and come back. */
export interface Domain {
  /** Length of a coded vector as `read` gives it; more than headDim where a residual has a domain of its own. */
  readonly codedDim: number;
  /** Codes are of the vectors as they are. */
  readonly plain: boolean;
  readonly mean?: Float32Array;
  /** Where every head has a map of its own, and it is no rotation: as a fragment wants it. */
  readonly matrices?: { decode: Float32Array; encode: Float32Array; blocks: readonly number[] };
  /** Vectors are turned to their page's start first, by these angles a position. */
  readonly turn?: Float64Array;
  /** A vector of a page that starts at `start` into the domain, in place. */
  forward(x: Float64Array, head: number, start: number): void;
  /** A query, so that its dot with a coded vector, plus the constant, is the dot with the vector itself. */
  query(q: Float64Array, head: number, start: number): { vector: Float64Array; constant: number };
  /** A weighted sum of coded vectors back to a vector of headDim. */
  back(sum: Float64Array, weightSum: number, head: number, start: number): Float64Array;
}

export interface PageFormat {
  fields: Field[];
  /** The same format as data, for devices that cannot call it. */
  fragment: PageFragment;
  /** Packs vectors of the domain, [head][token * headDim + dim], into a page of zero bytes. */
  write(heads: Float64Array[], tokens: number, page: Uint8Array): void;
  /** Bytes of a page that say something, where what comes last in it may be shorter than its room. */
  used?(page: Uint8Array): number;
  /** Where a page has lists of outliers. */
  outliers?(page: Uint8Array): Outliers;
  /** One coded vector. */
  read(page: Uint8Array, head: number, token: number, out: Float64Array): void;
}

export interface Parts extends Pick<Codec, 'spec' | 'shape' | 'budget' | 'stable'> {
  domain: Domain;
  format: PageFormat;
}

export function pageCodec({ spec, shape, budget, stable, domain, format }: Parts): Codec {
  const { headDim, kvHeads, pageTokens } = shape;
  const { pageBytes, sharedBytes, blockBytes } = layOut(format.fields, kvHeads);
  const coded = new Float64Array(domain.codedDim);

  const checkPage = (page: Uint8Array, tokens: number) => {
    if (!Number.isInteger(tokens) || tokens < 0 || tokens > pageTokens)
      throw new ShapeError(`${spec}: a page holds 0 to ${pageTokens} tokens, not ${tokens}.`);
    if (page.length < pageBytes)
      throw new ShapeError(`${spec}: a page takes ${pageBytes} bytes; the buffer has ${page.length}.`);
  };

  return {
    spec,
    shape,
    pageBytes,
    fields: format.fields,
    fragment: {
      codedDim: domain.codedDim,
      matrix: domain.plain
        ? undefined
        : (domain.matrices?.decode ?? matrixOf(q => domain.query(q, 0, 0).vector, headDim, domain.codedDim)),
      blocks: domain.matrices?.blocks,
      encodeMatrix: domain.matrices?.encode,
      mean: domain.mean,
      turn: domain.turn,
      sharedBytes,
      blockBytes,
      page: format.fragment,
    },
    budget,
    stable,
    outliers: format.outliers,
    pageRelative: domain.turn !== undefined,
    sumLength: domain.codedDim,

    encode(x, tokens, page, start) {
      checkPage(page, tokens);
      checkVectors(spec, x, tokens, shape);
      const heads = Array.from({ length: kvHeads }, (_, head) => {
        const vectors = new Float64Array(tokens * headDim);
        for (let t = 0; t < tokens; t++) {
          const vector = vectors.subarray(t * headDim, (t + 1) * headDim);
          const from = (t * kvHeads + head) * headDim;
          vector.set(x.subarray(from, from + headDim));
          domain.forward(vector, head, start);
        }
        return vectors;
      });
      page.fill(0, 0, pageBytes);
      format.write(heads, tokens, page);
      return format.used?.(page) ?? pageBytes;
    },

    decode(page, tokens, out, start) {
      checkPage(page, tokens);
      for (let t = 0; t < tokens; t++) {
        for (let head = 0; head < kvHeads; head++) {
          format.read(page, head, t, coded);
          out.set(domain.back(coded, 1, head, start), (t * kvHeads + head) * headDim);
        }
      }
    },

    prepareQuery(query, head, start) {
      const { vector, constant } = domain.query(Float64Array.from(query), head, start);
      return { vector: Float32Array.from(vector), constant };
    },

    dots({ vector }, page, head, tokens, out) {
      for (let t = 0; t < tokens; t++) {
        format.read(page, head, t, coded);
        let dot = 0;
        for (let i = 0; i < coded.length; i++) dot += vector[i] * coded[i];
        out[t] = dot;
      }
    },

    accumulate(weights, page, head, tokens, sum) {
      for (let t = 0; t < tokens; t++) {
        if (weights[t] === 0) continue;
        format.read(page, head, t, coded);
        for (let i = 0; i < coded.length; i++) sum[i] += weights[t] * coded[i];
      }
    },

    finishOutput(sum, weightSum, head, out) {
      out.set(domain.back(Float64Array.from(sum), weightSum, head, 0));
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
          'A cache keeps finite numbers only: look for an overflow or a division by zero in what made it.',
      );
    }
  }
}
