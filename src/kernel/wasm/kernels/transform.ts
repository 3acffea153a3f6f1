/** Transforms between vectors and what a codec stores: its matrix, its mean, the rotation to a page's start. */
import type { PageLayout } from '../../page-layout.ts';
import { type f32, f32x4, type I32, i32, index, lanes32, v128 } from '../emit.ts';
import type { Kernel } from '../module.ts';
import { horizontalSums, mapVectors, reduceAdd } from '../ops.ts';

/** Address of a head's matrix: there is one per head, or one for all. */
export function headMatrix(
  { codedDim }: PageLayout,
  matrix: Float32Array,
  address: number,
  headDim: number,
  head: I32,
): I32 {
  const size = codedDim * headDim;
  return matrix.length > size ? index(address, 4 * size, head) : address;
}

/**
 * out[r] = matrix row r . x; rows and dims are multiples of 4. Without a matrix, a copy. Only the diagonal `blocks` of
 * the matrix are read.
 */
export function applyMatrix(
  k: Kernel,
  matrix: I32 | undefined,
  rows: number,
  dims: number,
  x: I32,
  out: I32,
  blocks: readonly number[] = [dims],
): void {
  const [from, to] = [k.i32(x), k.i32(out)];
  if (matrix === undefined) {
    mapVectors(k, 4 * dims, from, to);
    return;
  }
  const acc = [0, 1, 2, 3].map(() => k.v128());
  const value = k.v128();
  const row = k.i32(matrix);
  for (const { first, end, size } of blockRuns(blocks, rows)) {
    k.for(4 * first, 4 * end, 16, r => {
      for (const sum of acc) k.set(sum, v128.zero);
      const start =
        blocks.length === 1 || end - first === size
          ? 4 * first
          : k.i32(i32.sub(r, i32.remU(i32.sub(r, 4 * first), 4 * size)));
      k.for(start, i32.add(start, 4 * size), 16, i => {
        k.set(value, v128.load(i32.add(from, i)));
        for (const [n, sum] of acc.entries())
          k.set(sum, f32x4.add(sum, f32x4.mul(value, v128.load(i32.add(row, i), 4 * dims * n))));
      });
      k.do(v128.store(i32.add(to, r), horizontalSums(k, acc, f32x4.add)));
      k.increment(row, 16 * dims);
    });
  }
}

/** Runs of equal-sized diagonal blocks. A matrix that is one block need not be square. */
function blockRuns(blocks: readonly number[], rows: number): { first: number; end: number; size: number }[] {
  if (blocks.length === 1) return [{ first: 0, end: rows, size: blocks[0] }];
  const runs: { first: number; end: number; size: number }[] = [];
  let first = 0;
  for (const size of blocks) {
    const last = runs.at(-1);
    if (last?.size === size) last.end += size;
    else runs.push({ first, end: first + size, size });
    first += size;
  }
  return runs;
}

/** out[j] = sum of matrix[r][j] x y[r], the inverse transform. Without a matrix, a copy. */
export function applyTranspose(k: Kernel, matrix: I32 | undefined, rows: number, dims: number, y: I32, out: I32): void {
  const [from, to] = [k.i32(y), k.i32(out)];
  if (matrix === undefined) {
    mapVectors(k, 4 * dims, from, to);
    return;
  }
  // Several independent sums hide the latency of additions.
  const sums = Array.from({ length: dims % 16 === 0 ? 4 : 1 }, () => k.v128());
  const value = k.v128();
  k.for(0, 4 * dims, 16 * sums.length, j => {
    for (const sum of sums) k.set(sum, v128.zero);
    const entry = k.i32(i32.add(matrix, j));
    k.for(0, 4 * rows, 4, r => {
      k.set(value, v128.load32Splat(i32.add(from, r)));
      for (const [n, sum] of sums.entries()) k.set(sum, f32x4.add(sum, f32x4.mul(value, v128.load(entry, 16 * n))));
      k.increment(entry, 4 * dims);
    });
    for (const [n, sum] of sums.entries()) k.do(v128.store(i32.add(to, j), sum, 16 * n));
  });
}

/** x . the head's mean. */
export function dotMean(k: Kernel, mean: number, head: I32, dims: number, x: I32) {
  const [from, m] = [k.i32(x), k.i32(index(mean, 4 * dims, head))];
  const sum = k.v128(v128.zero);
  k.for(0, 4 * dims, 16, i => {
    k.set(sum, f32x4.add(sum, f32x4.mul(v128.load(i32.add(from, i)), v128.load(i32.add(m, i)))));
  });
  return k.f32(reduceAdd(k, sum));
}

/** x += factor x the head's mean. */
export function addMean(
  k: Kernel,
  mean: number,
  head: I32,
  dims: number,
  factor: ReturnType<typeof f32.const>,
  x: I32,
): void {
  const [to, m] = [k.i32(x), k.i32(index(mean, 4 * dims, head))];
  const scale = k.v128(f32x4.splat(factor));
  k.for(0, 4 * dims, 16, i => {
    k.do(v128.store(i32.add(to, i), f32x4.add(v128.load(i32.add(to, i)), f32x4.mul(scale, v128.load(i32.add(m, i))))));
  });
}

/** out = x rotated by RoPE to its page's start. `pageRope` is a table of page-rope.ts. */
export function makePageRelative(k: Kernel, dims: number, pageRope: I32, x: I32, out: I32): void {
  const [from, to, rope] = [k.i32(x), k.i32(out), k.i32(pageRope)];
  const v = k.v128();
  k.for(0, 4 * dims, 16, i => {
    k.set(v, v128.load(i32.add(from, i)));
    const swapped = v128.shuffle(v, v, lanes32(1, 0, 3, 2));
    const rotated = f32x4.add(f32x4.mul(v, v128.load(rope)), f32x4.mul(swapped, v128.load(rope, 16)));
    k.do(v128.store(i32.add(to, i), rotated));
    k.increment(rope, 32);
  });
}
