/**
 * The fast orthonormal Hadamard transform, for every dimension.
 *
 * d = m 2^k with m in {1, 12, 20} has a true Hadamard matrix, H_m (Paley) x H_2^k (Sylvester): 64, 80 = 20 x 4,
 * 96 = 12 x 8, 128, 192 = 12 x 16, 256. Any other d (112) is split into blocks of powers of two, transformed, interleaved
 * and transformed again. This is orthogonal, too, and the interleave spreads energy over all blocks.
 */
import { createRandom } from './random.ts';

export interface Transform {
  /** In place. */
  forward(x: Float64Array): void;
  /** Inverse of `forward`, in place. */
  inverse(x: Float64Array): void;
}

const PALEY_PRIMES: Record<number, number> = { 12: 11, 20: 19 };

/** The Hadamard matrix of order p + 1 by Paley's construction, p a prime of the form 4n + 3. Rows of +-1. */
export function paley(order: number): Int8Array[] {
  const p = PALEY_PRIMES[order];
  const residues = new Set(Array.from({ length: p - 1 }, (_, i) => ((i + 1) * (i + 1)) % p));
  const character = (a: number) => (a % p === 0 ? 0 : residues.has(((a % p) + p) % p) ? 1 : -1);
  const entry = (i: number, j: number) => {
    if (i === j) return 1;
    if (i === 0) return 1;
    if (j === 0) return -1;
    return character(i - j);
  };
  return Array.from({ length: order }, (_, i) => Int8Array.from({ length: order }, (_, j) => entry(i, j)));
}

/** The factor m of a dimension that has a true Hadamard matrix. */
function order(d: number): 1 | 12 | 20 | undefined {
  return ([1, 12, 20] as const).find(m => d % m === 0 && isPowerOfTwo(d / m));
}

const isPowerOfTwo = (n: number) => n >= 1 && (n & (n - 1)) === 0;

export function hadamard(d: number): Transform {
  const m = order(d);
  if (m !== undefined) return trueHadamard(d, m, 0);
  const blocks = splitIntoBlocks(d);
  const passes = blocks.map(({ start, size }) => trueHadamard(size, order(size) ?? 1, start));
  const shuffle = interleave(d);
  // Fixed signs between the passes: otherwise the second pass would partly undo the first.
  const random = createRandom(d);
  const sign = Float64Array.from({ length: d }, () => (random.uint32() & 1 ? -1 : 1));
  const scratch = new Float64Array(d);
  return {
    forward(x) {
      for (const pass of passes) pass.forward(x);
      for (let i = 0; i < d; i++) scratch[shuffle[i]] = sign[i] * x[i];
      x.set(scratch);
      for (const pass of passes) pass.forward(x);
    },
    inverse(x) {
      for (const pass of passes) pass.inverse(x);
      for (let i = 0; i < d; i++) scratch[i] = sign[i] * x[shuffle[i]];
      x.set(scratch);
      for (const pass of passes) pass.inverse(x);
    },
  };
}

/** Equal blocks of a power of two: llama.cpp's rotation of the cache. */
export function blockHadamard(d: number, block: number): Transform {
  const passes = Array.from({ length: d / block }, (_, i) => trueHadamard(block, 1, i * block));
  return {
    forward(x) {
      for (const pass of passes) pass.forward(x);
    },
    inverse(x) {
      for (const pass of passes) pass.inverse(x);
    },
  };
}

/** Powers of two, largest first: 112 = 64 + 32 + 16. */
function splitIntoBlocks(d: number): { start: number; size: number }[] {
  const blocks = [];
  for (let start = 0; start < d; start += blocks[blocks.length - 1].size) {
    blocks.push({ start, size: 2 ** Math.floor(Math.log2(d - start)) });
  }
  return blocks;
}

/** A permutation with a stride near sqrt(d) and coprime to d, so that the elements of a block go to all blocks. */
function interleave(d: number): Uint32Array {
  const gcd = (a: number, b: number): number => (b === 0 ? a : gcd(b, a % b));
  let stride = Math.ceil(Math.sqrt(d));
  while (gcd(stride, d) !== 1) stride++;
  return Uint32Array.from({ length: d }, (_, i) => (i * stride) % d);
}

function trueHadamard(d: number, m: 1 | 12 | 20, start: number): Transform {
  const inner = d / m;
  const scale = 1 / Math.sqrt(d);
  const matrix = m === 1 ? undefined : paley(m);
  const column = new Float64Array(m);
  const outer = (x: Float64Array, transposed: boolean) => {
    if (!matrix) return;
    for (let i = 0; i < inner; i++) {
      for (let r = 0; r < m; r++) column[r] = x[start + r * inner + i];
      for (let r = 0; r < m; r++) {
        let sum = 0;
        for (let c = 0; c < m; c++) sum += (transposed ? matrix[c][r] : matrix[r][c]) * column[c];
        x[start + r * inner + i] = sum;
      }
    }
  };
  const butterflies = (x: Float64Array) => {
    for (let half = 1; half < inner; half *= 2) {
      for (let i = start; i < start + d; i += 2 * half) {
        for (let j = i; j < i + half; j++) {
          const a = x[j];
          const b = x[j + half];
          x[j] = a + b;
          x[j + half] = a - b;
        }
      }
    }
    for (let i = start; i < start + d; i++) x[i] *= scale;
  };
  // The factors commute (they act on different axes), and Sylvester's is symmetric.
  return {
    forward(x) {
      outer(x, false);
      butterflies(x);
    },
    inverse(x) {
      outer(x, true);
      butterflies(x);
    },
  };
}
