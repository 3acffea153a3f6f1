/** Measures a codec's round-trip error and compares it with its budget. */
import type { Codec, DistortionBounds, KeyCodec, Side, ValueCodec } from './codec.ts';
import { createRandom, normals, type Random } from './parts/random.ts';

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
  /** The error that the codec's paper bounds, and its ratios to the bounds; absent if the paper states none. */
  bounds?: DistortionBounds & { measured: number; overLower: number; overUpper: number };
}

/** The loss of encoding and decoding vectors [token][head][dim], page by page. */
export const measureLoss = (codec: KeyCodec | ValueCodec, x: Float32Array): Loss =>
  lossBetween(x, roundTrip(codec, x), codec.shape.headDim);

function roundTrip(codec: KeyCodec | ValueCodec, x: Float32Array): Float32Array {
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
  return decoded;
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

/** The squared error of inner products with random unit vectors, times the number of dims, over the squared norm. */
function innerProductError(x: Float32Array, y: Float32Array, dim: number, random: Random): number {
  let [error, energy] = [0, 0];
  for (let start = 0; start < x.length; start += dim) {
    let [dot, queryNorm] = [0, 0];
    for (let i = start; i < start + dim; i++) {
      const q = random.normal();
      dot += q * (x[i] - y[i]);
      queryNorm += q * q;
      energy += x[i] * x[i];
    }
    error += (dim * dot * dot) / queryNorm;
  }
  return error / energy;
}

/** Validates with a few thousand seeded Gaussian vectors. */
export function validateCodec(codec: Codec | KeyCodec | ValueCodec, side: Side, seed = 1): Validation {
  const { spec, budget, bounds } = codec;
  const { headDim, kvHeads, pageTokens } = codec.shape;
  const pages = Math.ceil(2048 / (pageTokens * kvHeads));
  const random = createRandom(seed);
  const x = normals(random, pages * pageTokens * kvHeads * headDim);
  const decoded = roundTrip(codec, x);
  const loss = lossBetween(x, decoded, headDim);
  const validation = { side, spec, ...loss, budget, ok: loss.mse <= budget };
  if (!bounds) return validation;
  const measured = bounds.measure === 'mse' ? loss.mse : innerProductError(x, decoded, headDim, random);
  const ratios = { overLower: measured / bounds.lower, overUpper: measured / bounds.upper };
  return { ...validation, bounds: { ...bounds, measured, ...ratios } };
}
