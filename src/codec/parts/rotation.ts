/** Random rotations, after which all coordinates of a vector have nearly the same distribution. */
import { hadamard, type Transform } from './hadamard.ts';
import { createRandom } from './random.ts';

export type { Transform } from './hadamard.ts';

/** The row-major matrix of a linear map from d to `rows` values, from its results on unit vectors. */
export function toMatrix(map: (x: Float64Array) => Float64Array, d: number, rows: number): Float32Array {
  const matrix = new Float32Array(rows * d);
  for (let i = 0; i < d; i++) {
    const unit = new Float64Array(d);
    unit[i] = 1;
    const column = map(unit);
    for (let row = 0; row < rows; row++) matrix[row * d + i] = column[row];
  }
  return matrix;
}

export const identity: Transform = { forward() {}, inverse() {} };

/**
 * y = H D x, `rounds` times, where D is a diagonal of seeded signs. Without the signs, a constant offset parallel to a row
 * of H would end up in one coordinate. Three rounds approximate a Haar rotation.
 */
export function signedHadamard(d: number, seed: number, rounds = 1): Transform {
  const h = hadamard(d);
  const random = createRandom(seed);
  const signs = Array.from({ length: rounds }, () =>
    Float64Array.from({ length: d }, () => (random.uint32() & 1 ? -1 : 1)),
  );
  return {
    forward(x) {
      for (const sign of signs) {
        for (let i = 0; i < d; i++) x[i] *= sign[i];
        h.forward(x);
      }
    },
    inverse(x) {
      for (const sign of [...signs].reverse()) {
        h.inverse(x);
        for (let i = 0; i < d; i++) x[i] *= sign[i];
      }
    },
  };
}

/** A uniformly random rotation: the Q of a Gaussian matrix whose R has a positive diagonal. */
export function haar(d: number, seed: number): Transform {
  const rows = haarMatrix(d, seed);
  const scratch = new Float64Array(d);
  return {
    forward(x) {
      for (let i = 0; i < d; i++) {
        let sum = 0;
        for (let j = 0; j < d; j++) sum += rows[i][j] * x[j];
        scratch[i] = sum;
      }
      x.set(scratch);
    },
    inverse(x) {
      scratch.fill(0);
      for (let i = 0; i < d; i++) for (let j = 0; j < d; j++) scratch[j] += rows[i][j] * x[i];
      x.set(scratch);
    },
  };
}

/** Gram-Schmidt, twice for accuracy. It makes the diagonal of R positive. */
function haarMatrix(d: number, seed: number): Float64Array[] {
  const random = createRandom(seed);
  const rows: Float64Array[] = [];
  for (let i = 0; i < d; i++) {
    const row = Float64Array.from({ length: d }, random.normal);
    for (let pass = 0; pass < 2; pass++) {
      for (const other of rows) {
        let dot = 0;
        for (let j = 0; j < d; j++) dot += row[j] * other[j];
        for (let j = 0; j < d; j++) row[j] -= dot * other[j];
      }
    }
    const norm = Math.hypot(...row);
    rows.push(row.map(value => value / norm));
  }
  return rows;
}
