/**
 * Quads (four neighbouring numbers) and books of 16 entries: the nearest entry for four quads at once, and the steps
 * of fitting a book, which codecs with additive codebooks are trained by.
 *
 * A book is 16 x 4 f32, followed by 16 f32: half the squared length of each entry.
 */
import { f32, f32x4, type I32, i32, i32x4, type Local, lanes32, type V128, v128 } from '../emit.ts';
import { Kernel, moduleBytes } from '../module.ts';

const ENTRIES = 16;
export const BOOK_BYTES = 4 * (4 * ENTRIES + ENTRIES);

/** Books of [16][4] as kernels want them, each with its half lengths behind it. */
export function withHalves(books: Float32Array): Float32Array {
  const out = new Float32Array((books.length / (4 * ENTRIES)) * (BOOK_BYTES / 4));
  for (let from = 0, to = 0; from < books.length; from += 4 * ENTRIES, to += BOOK_BYTES / 4) {
    out.set(books.subarray(from, from + 4 * ENTRIES), to);
    for (let e = 0; e < ENTRIES; e++) {
      const [a, b, c, d] = books.subarray(from + 4 * e, from + 4 * e + 4);
      out[to + 4 * ENTRIES + e] = (a * a + b * b + c * c + d * d) / 2;
    }
  }
  return out;
}

/** Four quads as four vectors, one a dim. */
export function transpose(k: Kernel, rows: readonly V128[]): Local<'v128'>[] {
  const [a, b, c, d] = rows;
  const low = [k.v128(v128.shuffle(a, b, lanes32(0, 4, 1, 5))), k.v128(v128.shuffle(c, d, lanes32(0, 4, 1, 5)))];
  const high = [k.v128(v128.shuffle(a, b, lanes32(2, 6, 3, 7))), k.v128(v128.shuffle(c, d, lanes32(2, 6, 3, 7)))];
  return [low, high].flatMap(([ab, cd]) => [
    k.v128(v128.shuffle(ab, cd, lanes32(0, 1, 4, 5))),
    k.v128(v128.shuffle(ab, cd, lanes32(2, 3, 6, 7))),
  ]);
}

/** For each group of four quads (four vectors, one a dim) the numbers of the entries nearest to them; the first of equals. */
export function nearestEntries(k: Kernel, groups: readonly (readonly V128[])[], book: I32): Local<'v128'>[] {
  const found = groups.map(dims => ({
    dims,
    gain: k.v128(),
    most: k.v128(f32x4.const(Number.NEGATIVE_INFINITY)),
    entry: k.v128(v128.zero),
  }));
  const [c, better] = [k.v128(), k.v128()];
  const at = k.i32(book);
  for (let e = 0; e < ENTRIES; e++) {
    // A number of the book is loaded once for all groups.
    for (let d = 0; d < 4; d++) {
      k.set(c, v128.load32Splat(at, 16 * e + 4 * d));
      for (const { dims, gain } of found) {
        const product = f32x4.mul(dims[d], c);
        k.set(gain, d === 0 ? product : f32x4.add(gain, product));
      }
    }
    k.set(c, v128.load32Splat(at, 16 * ENTRIES + 4 * e));
    for (const { gain, most, entry } of found) {
      k.set(gain, f32x4.sub(gain, c));
      k.set(better, f32x4.gt(gain, most));
      k.set(most, f32x4.max(most, gain));
      k.set(entry, v128.xor(entry, v128.and(v128.xor(entry, i32x4.const(e)), better)));
    }
  }
  return found.map(({ entry }) => entry);
}

/**
 * choose(rows, codes, book, count): the nearest entry of each row of four floats, a byte each. count is a multiple of 8.
 * move(rows, codes, book, count, sign): rows += sign x their entries.
 * sum(rows, codes, weights, sums, count): sums[16][4] of weight x row by code, then 16 sums of weights as [16][4].
 */
export function trainingModule(memory: { maxPages: number; shared: boolean }): Uint8Array<ArrayBuffer> {
  const choose = new Kernel('choose', Array(4).fill('i32'));
  {
    const k = choose;
    const [rows, codes, book, count] = k.params.map((_, i) => k.i32Param(i));
    k.for(0, count, 8, i => {
      const from = k.i32(i32.add(rows, i32.mul(i, 16)));
      const groups = [0, 4].map(g =>
        transpose(
          k,
          [0, 1, 2, 3].map(r => k.v128(v128.load(from, 16 * (g + r)))),
        ),
      );
      const to = k.i32(i32.add(codes, i));
      nearestEntries(k, groups, book).forEach((entry, g) => {
        for (let lane = 0; lane < 4; lane++) k.do(i32.store8(to, i32x4.lane(entry, lane), 4 * g + lane));
      });
    });
  }

  const entryOf = (codes: I32, book: I32, i: I32) =>
    v128.load(i32.add(book, i32.mul(i32.load8U(i32.add(codes, i)), 16)));
  const move = new Kernel('move', ['i32', 'i32', 'i32', 'i32', 'f32']);
  {
    const k = move;
    const [rows, codes, book, count] = [0, 1, 2, 3].map(i => k.i32Param(i));
    const sign = k.v128(f32x4.splat(k.f32Param(4)));
    k.for(0, count, 1, i => {
      const at = k.i32(i32.add(rows, i32.mul(i, 16)));
      k.do(v128.store(at, f32x4.add(v128.load(at), f32x4.mul(sign, entryOf(codes, book, i)))));
    });
  }

  const sum = new Kernel('sum', Array(5).fill('i32'));
  {
    const k = sum;
    const [rows, codes, weights, sums, count] = k.params.map((_, i) => k.i32Param(i));
    k.for(0, count, 1, i => {
      const weight = k.v128(f32x4.splat(f32.load(i32.add(weights, i32.mul(i, 4)))));
      const to = k.i32(i32.add(sums, i32.mul(i32.load8U(i32.add(codes, i)), 16)));
      const value = f32x4.mul(weight, v128.load(i32.add(rows, i32.mul(i, 16))));
      k.do(v128.store(to, f32x4.add(v128.load(to), value)));
      k.do(v128.store(to, f32x4.add(v128.load(to, 16 * ENTRIES), weight), 16 * ENTRIES));
    });
  }
  return moduleBytes([choose, move, sum], memory);
}
