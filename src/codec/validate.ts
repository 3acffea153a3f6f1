/** Measures a codec's round-trip error and compares it with its budget. */
import type { Codec, KeyCodec, Side, ValueCodec } from './codec.ts';
import { createRandom, normals } from './parts/random.ts';

export interface Loss {
  /** Relative squared error: squared error over squared norm. */
  mse: number;
  /** Mean cosine similarity between original and decoded vectors. */
  cosine: number;
}

export interface Validation extends Loss {
  side: Side;
  spec: string;
  budget: number;
  ok: boolean;
}

/** The loss of encoding and decoding vectors [token][head][dim], page by page. */
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
  return lossBetween(x, decoded, headDim);
}

export function lossBetween(x: Float32Array, y: Float32Array, dim: number): Loss {
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

/** Validates with a few thousand seeded Gaussian vectors. */
export function validateCodec(codec: Codec | KeyCodec | ValueCodec, side: Side, seed = 1): Validation {
  const { headDim, kvHeads, pageTokens } = codec.shape;
  const pages = Math.ceil(2048 / (pageTokens * kvHeads));
  const x = normals(createRandom(seed), pages * pageTokens * kvHeads * headDim);
  const loss = measureLoss(codec, x);
  return { side, spec: codec.spec, ...loss, budget: codec.budget, ok: loss.mse <= codec.budget };
}
