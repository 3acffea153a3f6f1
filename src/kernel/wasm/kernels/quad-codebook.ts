/**
 * Codebooks of 16 entries for quads (four consecutive dims): nearest-entry search, and the kernels that train additive
 * codebooks.
 *
 * A book is 16 x 4 f32, followed by 16 f32: half the squared norm of each entry.
 */
import { ADDITIVE_STARTS } from '../../page-layout.ts';
import { f32, f32x4, type I32, i32, i32x4, index, type Local, type V128, v128 } from '../emit.ts';
import { Kernel, signature } from '../module.ts';
import { transpose4x4 } from '../ops.ts';

const ENTRIES = 16;
export const CODEBOOK_BYTES = 4 * (4 * ENTRIES + ENTRIES);

/** Appends the half squared norms to each book of [16][4]. */
export function withHalfNorms(books: Float32Array): Float32Array {
  const out = new Float32Array((books.length / (4 * ENTRIES)) * (CODEBOOK_BYTES / 4));
  for (let from = 0, to = 0; from < books.length; from += 4 * ENTRIES, to += CODEBOOK_BYTES / 4) {
    out.set(books.subarray(from, from + 4 * ENTRIES), to);
    for (let e = 0; e < ENTRIES; e++) {
      const [a, b, c, d] = books.subarray(from + 4 * e, from + 4 * e + 4);
      out[to + 4 * ENTRIES + e] = (a * a + b * b + c * c + d * d) / 2;
    }
  }
  return out;
}

/** Four quads to four vectors, one per dim. */
export const transposeQuads = (k: Kernel, rows: readonly V128[]): Local<'v128'>[] =>
  transpose4x4(k, rows).map(dim => k.v128(dim));

/** The nearest entries of groups of four quads, each given as four vectors, one per dim. Ties go to the first entry. */
export function nearestEntries(k: Kernel, groups: readonly (readonly V128[])[], book: I32): Local<'v128'>[] {
  const searches = groups.map(dims => ({
    dims,
    score: k.v128(),
    max: k.v128(f32x4.const(Number.NEGATIVE_INFINITY)),
    entry: k.v128(v128.zero),
  }));
  const [c, better] = [k.v128(), k.v128()];
  const at = k.i32(book);
  for (let e = 0; e < ENTRIES; e++) {
    // Each value of the book is loaded once for all groups.
    for (let d = 0; d < 4; d++) {
      k.set(c, v128.load32Splat(at, 16 * e + 4 * d));
      for (const { dims, score } of searches) {
        const product = f32x4.mul(dims[d], c);
        k.set(score, d === 0 ? product : f32x4.add(score, product));
      }
    }
    k.set(c, v128.load32Splat(at, 16 * ENTRIES + 4 * e));
    for (const { score, max, entry } of searches) {
      k.set(score, f32x4.sub(score, c));
      k.set(better, f32x4.gt(score, max));
      k.set(max, f32x4.max(max, score));
      k.set(entry, v128.xor(entry, v128.and(v128.xor(entry, i32x4.const(e)), better)));
    }
  }
  return searches.map(({ entry }) => entry);
}

/** The ADDITIVE_STARTS nearest entries of four quads, given as four vectors, one per dim; the nearest first. */
function nearestStarts(k: Kernel, dims: readonly V128[], book: I32): Local<'v128'>[] {
  const found = Array.from({ length: ADDITIVE_STARTS }, () => ({
    max: k.v128(f32x4.const(Number.NEGATIVE_INFINITY)),
    entry: k.v128(v128.zero),
  }));
  const [score, code, better, other] = [k.v128(), k.v128(), k.v128(), k.v128()];
  const at = k.i32(book);
  for (let e = 0; e < ENTRIES; e++) {
    for (let d = 0; d < 4; d++) {
      const product = f32x4.mul(dims[d], v128.load32Splat(at, 16 * e + 4 * d));
      k.set(score, d === 0 ? product : f32x4.add(score, product));
    }
    k.set(score, f32x4.sub(score, v128.load32Splat(at, 16 * ENTRIES + 4 * e)));
    k.set(code, i32x4.const(e));
    // Insertion: what is better takes the place, and what was there moves on.
    for (const { max, entry } of found) {
      k.set(better, f32x4.gt(score, max));
      k.set(other, f32x4.min(max, score));
      k.set(max, f32x4.max(max, score));
      k.set(score, other);
      k.set(other, v128.and(v128.xor(entry, code), better));
      k.set(entry, v128.xor(entry, other));
      k.set(code, v128.xor(code, other));
    }
  }
  return found.map(({ entry }) => entry);
}

/** starts [ADDITIVE_STARTS][count] bytes: the nearest entries of each row of four floats; count is a multiple of 4. */
export function findStarts(k: Kernel, rows: I32, starts: I32, book: I32, count: I32 | number): void {
  k.for(0, count, 4, i => {
    const from = k.i32(index(rows, 16, i));
    const dims = transposeQuads(
      k,
      [0, 1, 2, 3].map(r => k.v128(v128.load(from, 16 * r))),
    );
    const to = k.i32(i32.add(starts, i));
    for (const entry of nearestStarts(k, dims, book)) {
      for (let lane = 0; lane < 4; lane++) k.do(i32.store8(to, i32x4.lane(entry, lane), lane));
      k.increment(to, count);
    }
  });
}

/**
 * Compares encodings: where |row|^2 is below the error of `codes`, [column][count] bytes, the candidate's codes and its
 * error take their place.
 */
export function keepBetter(
  k: Kernel,
  { rows, errors, codes, candidate }: Record<'rows' | 'errors' | 'codes' | 'candidate', I32>,
  columns: I32,
  count: I32 | number,
): void {
  const row = k.v128();
  const [error, at] = [k.f32(), k.i32()];
  k.for(0, count, 1, i => {
    k.set(row, v128.load(index(rows, 16, i)));
    k.set(row, f32x4.mul(row, row));
    k.set(
      error,
      f32.add(f32.add(f32x4.lane(row, 0), f32x4.lane(row, 1)), f32.add(f32x4.lane(row, 2), f32x4.lane(row, 3))),
    );
    const known = k.i32(index(errors, 4, i));
    k.if(f32.lt(error, f32.load(known)), () => {
      k.do(f32.store(known, error));
      k.set(at, i);
      k.for(0, columns, 1, () => {
        k.do(i32.store8(i32.add(codes, at), i32.load8U(i32.add(candidate, at))));
        k.increment(at, count);
      });
    });
  });
}

/** codes = the nearest entry of each row of four floats; count is a multiple of 8. */
function assignKernel() {
  const k = new Kernel(signature('assign', 'rows', 'codes', 'book', 'count'));
  const { rows, codes, book, count } = k.params;
  k.for(0, count, 8, i => {
    const from = k.i32(index(rows, 16, i));
    const groups = [0, 4].map(g =>
      transposeQuads(
        k,
        [0, 1, 2, 3].map(r => k.v128(v128.load(from, 16 * (g + r)))),
      ),
    );
    const to = k.i32(i32.add(codes, i));
    for (const [g, entry] of nearestEntries(k, groups, book).entries())
      for (let lane = 0; lane < 4; lane++) k.do(i32.store8(to, i32x4.lane(entry, lane), 4 * g + lane));
  });
  return k;
}

/** rows += sign x their entries; `sign` is the bits of an f32. */
function addEntriesKernel() {
  const k = new Kernel(signature('addEntries', 'rows', 'codes', 'book', 'count', 'sign'));
  const { rows, codes, book, count } = k.params;
  const sign = k.v128(f32x4.splat(f32.fromBits(k.params.sign)));
  k.for(0, count, 1, i => {
    const at = k.i32(index(rows, 16, i));
    const entry = v128.load(index(book, 16, i32.load8U(i32.add(codes, i))));
    k.do(v128.store(at, f32x4.add(v128.load(at), f32x4.mul(sign, entry))));
  });
  return k;
}

/** sums[16][4] += weight x row by code, then [16][4] sums of weights. */
function sumByCodeKernel() {
  const k = new Kernel(signature('sumByCode', 'rows', 'codes', 'weights', 'sums', 'count'));
  const { rows, codes, weights, sums, count } = k.params;
  k.for(0, count, 1, i => {
    const weight = k.v128(f32x4.splat(f32.load(index(weights, 4, i))));
    const to = k.i32(index(sums, 16, i32.load8U(i32.add(codes, i))));
    const value = f32x4.mul(weight, v128.load(index(rows, 16, i)));
    k.do(v128.store(to, f32x4.add(v128.load(to), value)));
    k.do(v128.store(to, f32x4.add(v128.load(to, 16 * ENTRIES), weight), 16 * ENTRIES));
  });
  return k;
}

function findStartsKernel() {
  const k = new Kernel(signature('findStarts', 'rows', 'starts', 'book', 'count'));
  const { rows, starts, book, count } = k.params;
  findStarts(k, rows, starts, book, count);
  return k;
}

function keepBetterKernel() {
  const k = new Kernel(signature('keepBetter', 'rows', 'errors', 'codes', 'candidate', 'columns', 'count'));
  keepBetter(k, k.params, k.params.columns, k.params.count);
  return k;
}

/** What trains additive codebooks. */
export const codebookTrainingKernels = () => ({
  assign: assignKernel(),
  addEntries: addEntriesKernel(),
  sumByCode: sumByCodeKernel(),
  findStarts: findStartsKernel(),
  keepBetter: keepBetterKernel(),
});
