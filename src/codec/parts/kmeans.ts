/** k-means on flat arrays: Lloyd's rounds until they no longer pay, and the search for the nearest entry of a book. */
import { nearestModule, POINT_BLOCK } from '../../kernel/wasm/kernels/nearest.ts';
import type { Random } from './random.ts';

/** Rounds end when one lowers the error by less than this part of it. */
const PAYS = 2e-3;

/** `entries` centres for points [point][dims] in no particular order. The start is a draw of the points; empty cells keep their place. */
export function kmeans(
  points: Float32Array,
  dims: number,
  entries: number,
  random: Random,
  rounds = 30,
): Float32Array<ArrayBuffer> {
  const count = points.length / dims;
  const book = new Float32Array(entries * dims);
  // Fewer points than entries leave copies; of equals the first is nearest, so those stay empty.
  const start = draw(count, Math.min(count, entries), random);
  for (let e = 0; e < entries; e++) {
    const from = start[e % start.length] * dims;
    book.set(points.subarray(from, from + dims), e * dims);
  }
  // The first points alone bring the centres near their places; all of them need few rounds more.
  const few = Math.min(count, Math.max(32 * entries, Math.ceil(count / 8)));
  const cellsOf = createAssigner(points, dims, entries);
  let left = rounds;
  for (const used of few < count ? [few, count] : [count]) {
    let last = Number.POSITIVE_INFINITY;
    while (left > 0) {
      left--;
      const error = improve(points, dims, book, cellsOf(book, used));
      if (error >= last * (1 - PAYS)) break;
      last = error;
    }
  }
  return book;
}

/** Every centre to the mean of the points whose nearest it is. Gives the error before. */
function improve(points: Float32Array, dims: number, book: Float32Array, cells: Uint16Array): number {
  const entries = book.length / dims;
  const sums = new Float64Array(entries * dims);
  const counts = new Uint32Array(entries);
  let error = 0;
  cells.forEach((cell, point) => {
    counts[cell]++;
    for (let i = 0; i < dims; i++) {
      const value = points[point * dims + i];
      sums[cell * dims + i] += value;
      error += (value - book[cell * dims + i]) ** 2;
    }
  });
  for (let e = 0; e < entries; e++) {
    if (counts[e] === 0) continue;
    for (let i = e * dims; i < (e + 1) * dims; i++) book[i] = sums[i] / counts[e];
  }
  return error;
}

/** The nearest entries of a book for the first `used` points, by the kernel; what it gives is good until it is asked again. */
export function createAssigner(points: Float32Array, dims: number, entries: number) {
  const blocks = Math.ceil(points.length / dims / POINT_BLOCK);
  const at = { points: 0, codes: 4 * dims * POINT_BLOCK * blocks, book: 0 };
  at.book = at.codes + 2 * POINT_BLOCK * blocks;
  const pages = Math.ceil((at.book + 4 * (dims + 1) * entries) / 65536);
  const memory = new WebAssembly.Memory({ initial: pages, maximum: pages });
  const module = new WebAssembly.Module(nearestModule(dims, { maxPages: pages, shared: false }));
  const { nearest } = new WebAssembly.Instance(module, { env: { memory } }).exports as unknown as {
    nearest(points: number, codes: number, book: number, blocks: number, entries: number): void;
  };
  const placed = new Float32Array(memory.buffer, 0, dims * POINT_BLOCK * blocks);
  for (let point = 0, from = 0; from < points.length; point++) {
    const to = (point - (point % POINT_BLOCK)) * dims + (point % POINT_BLOCK);
    for (let i = 0; i < dims; i++, from++) placed[to + i * POINT_BLOCK] = points[from];
  }
  const own = new Float32Array(memory.buffer, at.book, (dims + 1) * entries);
  return (book: Float32Array, used: number): Uint16Array => {
    for (let e = 0; e < entries; e++) {
      let half = 0;
      for (let i = 0; i < dims; i++) {
        const c = book[e * dims + i];
        own[e * (dims + 1) + i] = c;
        half += (c * c) / 2;
      }
      own[e * (dims + 1) + dims] = half;
    }
    nearest(at.points, at.codes, at.book, Math.ceil(used / POINT_BLOCK), entries);
    return new Uint16Array(memory.buffer, at.codes, used);
  };
}

/** The entry nearest to the vector that starts at `at`; of equals the first. */
export type Search = (x: Float32Array | Float64Array, at: number) => number;

/**
 * Nearest is where |entry|^2 / 2 - x . entry is least: half the work of a distance. Everything is padded with zeros to
 * whole fours of dims, which are unrolled.
 */
export function createSearch(book: Float32Array, dims: number): Search {
  const entries = book.length / dims;
  const width = 4 * Math.ceil(dims / 4);
  const centres = new Float64Array(entries * width);
  const halves = new Float64Array(entries);
  book.forEach((c, i) => {
    const e = Math.floor(i / dims);
    centres[e * width + (i % dims)] = c;
    halves[e] += (c * c) / 2;
  });
  const v = new Float64Array(width);
  return (x, at) => {
    for (let i = 0; i < dims; i++) v[i] = x[at + i];
    const [v0, v1, v2, v3] = v;
    let best = 0;
    let least = Number.POSITIVE_INFINITY;
    for (let e = 0, b = 0; e < entries; e++) {
      let off = halves[e] - v0 * centres[b] - v1 * centres[b + 1] - v2 * centres[b + 2] - v3 * centres[b + 3];
      b += 4;
      for (let i = 4; i < width; i += 4, b += 4) {
        off -= v[i] * centres[b] + v[i + 1] * centres[b + 1] + v[i + 2] * centres[b + 2] + v[i + 3] * centres[b + 3];
      }
      if (off < least) {
        least = off;
        best = e;
      }
    }
    return best;
  };
}

/** `n` different numbers below `count`, in random order. */
export function draw(count: number, n: number, random: Random): Uint32Array {
  const all = Uint32Array.from({ length: count }, (_, i) => i);
  for (let i = 0; i < n; i++) {
    const j = i + Math.floor(random.uniform() * (count - i));
    [all[i], all[j]] = [all[j], all[i]];
  }
  return all.subarray(0, n);
}
