/** Linear algebra on small dense row-major f64 matrices, for calibrated transforms. */
import { assert } from '../../util/errors.ts';

/** L of M = L L^T, lower triangular. M must be positive definite. */
export function cholesky(m: Float64Array, n: number): Float64Array {
  const l = new Float64Array(n * n);
  for (let i = 0; i < n; i++) {
    for (let j = 0; j <= i; j++) {
      let sum = m[i * n + j];
      for (let k = 0; k < j; k++) sum -= l[i * n + k] * l[j * n + k];
      if (i === j) {
        assert(sum > 0, 'a matrix that is not positive definite has no Cholesky factor');
        l[i * n + i] = Math.sqrt(sum);
      } else l[i * n + j] = sum / l[j * n + j];
    }
  }
  return l;
}

/**
 * Eigenvectors of a symmetric matrix as columns, largest eigenvalue first, each with its largest component positive.
 * Jacobi's method: slow for large n, but accurate and short.
 */
export function eigenvectors(symmetric: Float64Array, n: number): Float64Array {
  const a = symmetric.slice();
  const v = new Float64Array(n * n);
  for (let i = 0; i < n; i++) v[i * n + i] = 1;
  for (let sweep = 0; sweep < 64; sweep++) {
    let off = 0;
    let all = 0;
    for (let i = 0; i < n; i++) {
      for (let j = 0; j < n; j++) {
        all += a[i * n + j] ** 2;
        if (i !== j) off += a[i * n + j] ** 2;
      }
    }
    if (off <= 1e-24 * all) break;
    for (let p = 0; p < n; p++) for (let q = p + 1; q < n; q++) rotate(a, v, n, p, q);
  }
  const order = Array.from({ length: n }, (_, i) => i).sort((i, j) => a[j * n + j] - a[i * n + i]);
  const out = new Float64Array(n * n);
  order.forEach((from, to) => {
    let largest = 0;
    for (let i = 0; i < n; i++) if (Math.abs(v[i * n + from]) > Math.abs(largest)) largest = v[i * n + from];
    const sign = largest < 0 ? -1 : 1;
    for (let i = 0; i < n; i++) out[i * n + to] = sign * v[i * n + from];
  });
  return out;
}

/** A Jacobi rotation that makes a[p][q] zero. */
function rotate(a: Float64Array, v: Float64Array, n: number, p: number, q: number): void {
  const apq = a[p * n + q];
  if (apq === 0) return;
  const theta = (a[q * n + q] - a[p * n + p]) / (2 * apq);
  const t = (theta < 0 ? -1 : 1) / (Math.abs(theta) + Math.sqrt(theta * theta + 1));
  const c = 1 / Math.sqrt(t * t + 1);
  const s = t * c;
  for (let k = 0; k < n; k++) {
    const [kp, kq] = [a[k * n + p], a[k * n + q]];
    a[k * n + p] = c * kp - s * kq;
    a[k * n + q] = s * kp + c * kq;
  }
  for (let k = 0; k < n; k++) {
    const [pk, qk] = [a[p * n + k], a[q * n + k]];
    a[p * n + k] = c * pk - s * qk;
    a[q * n + k] = s * pk + c * qk;
    const [vp, vq] = [v[k * n + p], v[k * n + q]];
    v[k * n + p] = c * vp - s * vq;
    v[k * n + q] = s * vp + c * vq;
  }
}

/** Gauss-Jordan elimination with row pivots; undefined if the matrix is singular. */
export function inverse(matrix: ArrayLike<number>, n: number): Float64Array | undefined {
  const a = Float64Array.from(matrix);
  const out = new Float64Array(n * n);
  for (let i = 0; i < n; i++) out[i * n + i] = 1;
  for (let col = 0; col < n; col++) {
    let pivot = col;
    for (let r = col + 1; r < n; r++) if (Math.abs(a[r * n + col]) > Math.abs(a[pivot * n + col])) pivot = r;
    const size = a[pivot * n + col];
    if (!(Math.abs(size) > 1e-30)) return undefined;
    for (const m of [a, out]) {
      for (let j = 0; j < n; j++) {
        const swapped = m[pivot * n + j];
        m[pivot * n + j] = m[col * n + j];
        m[col * n + j] = swapped / size;
      }
    }
    for (let r = 0; r < n; r++) {
      const factor = a[r * n + col];
      if (r === col || factor === 0) continue;
      for (let j = 0; j < n; j++) {
        a[r * n + j] -= factor * a[col * n + j];
        out[r * n + j] -= factor * out[col * n + j];
      }
    }
  }
  return out;
}

export function multiply(a: Float64Array, b: Float64Array, n: number): Float64Array {
  const out = new Float64Array(n * n);
  for (let i = 0; i < n; i++) {
    for (let k = 0; k < n; k++) {
      const factor = a[i * n + k];
      for (let j = 0; j < n; j++) out[i * n + j] += factor * b[k * n + j];
    }
  }
  return out;
}
