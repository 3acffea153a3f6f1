/** What a codec loses, measured: squared error and direction, and whether that is within its budget. */
import type { Codec, KeyCodec, Side, ValueCodec } from './codec.ts';
import { createRandom, normals } from './parts/random.ts';

export interface Loss {
  /** Squared error over squared norm. */
  mse: number;
  /** Mean cosine between a vector and what comes back. */
  cosine: number;
}

export interface Validation extends Loss {
  side: Side;
  spec: string;
  budget: number;
  ok: boolean;
}

/** Encodes and decodes whole pages of vectors [token][head][dim] and compares. */
export function measureLoss(codec: KeyCodec | ValueCodec, x: Float32Array): Loss {
  const { headDim, kvHeads, pageTokens } = codec.shape;
  const vector = headDim * kvHeads;
  const tokens = x.length / vector;
  const page = new Uint8Array(codec.pageBytes);
  const decoded = new Float32Array(x.length);
  for (let start = 0; start < tokens; start += pageTokens) {
    const end = Math.min(tokens, start + pageTokens);
    const range = [start * vector, end * vector] as const;
    codec.encode(x.subarray(...range), end - start, page, start);
    codec.decode(page, end - start, decoded.subarray(...range), start);
  }
  return compare(x, decoded, headDim);
}

export function compare(x: Float32Array, y: Float32Array, dim: number): Loss {
  let [error, energy, cosines] = [0, 0, 0];
  for (let start = 0; start < x.length; start += dim) {
    let [xx, yy, xy] = [0, 0, 0];
    for (let i = start; i < start + dim; i++) {
      xx += x[i] * x[i];
      yy += y[i] * y[i];
      xy += x[i] * y[i];
      error += (x[i] - y[i]) ** 2;
    }
    energy += xx;
    cosines += xx > 0 && yy > 0 ? xy / Math.sqrt(xx * yy) : xx === yy ? 1 : 0;
  }
  return { mse: energy > 0 ? error / energy : error, cosine: cosines / (x.length / dim) };
}

/** A few thousand seeded Gaussian vectors against the budget. */
export function validateCodec(codec: Codec | KeyCodec | ValueCodec, side: Side, seed = 1): Validation {
  const { headDim, kvHeads, pageTokens } = codec.shape;
  const pages = Math.ceil(2048 / (pageTokens * kvHeads));
  const x = normals(createRandom(seed), pages * pageTokens * kvHeads * headDim);
  const loss = measureLoss(codec, x);
  return { side, spec: codec.spec, ...loss, budget: codec.budget, ok: loss.mse <= codec.budget };
}
