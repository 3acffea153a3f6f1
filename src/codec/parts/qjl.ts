/**
 * QJL: one sign bit a dimension of a residual r, through a seeded Hadamard S. With z = sign(S r),
 * |r| sqrt(pi / 2d) S^T z estimates r without bias in every inner product (at the price of variance).
 */
import { matrixOf, signedHadamard } from './rotation.ts';

export interface Qjl {
  /** S x, in place. */
  project(x: Float64Array): void;
  /** S^T z, in place. */
  back(z: Float64Array): void;
  /** What a sign stands for, over |r|. */
  gain: number;
  /** S, row by row. */
  matrix: Float32Array;
}

export function createQjl(d: number, seed: number): Qjl {
  const s = signedHadamard(d, seed);
  const projected = (x: Float64Array) => {
    s.forward(x);
    return x;
  };
  return { project: s.forward, back: s.inverse, gain: Math.sqrt(Math.PI / (2 * d)), matrix: matrixOf(projected, d, d) };
}
