/**
 * QJL: one sign bit per dimension of a residual r, after a seeded Hadamard rotation S. With z = sign(S r), inner products
 * with |r| sqrt(pi / 2d) S^T z are unbiased estimates of those with r, with a higher variance.
 */
import { signedHadamard, toMatrix } from './rotation.ts';

export interface Qjl {
  /** S x, in place. */
  project(x: Float64Array): void;
  /** S^T z, in place. */
  projectBack(z: Float64Array): void;
  /** The magnitude of a decoded sign, over |r|. */
  gain: number;
  /** S, row-major. */
  matrix: Float32Array;
}

export function createQjl(d: number, seed: number): Qjl {
  const s = signedHadamard(d, seed);
  const projected = (x: Float64Array) => {
    s.forward(x);
    return x;
  };
  return {
    project: s.forward,
    projectBack: s.inverse,
    gain: Math.sqrt(Math.PI / (2 * d)),
    matrix: toMatrix(projected, d, d),
  };
}
