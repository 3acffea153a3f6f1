/**
 * Weighted sums over pages of additive codebooks as they are packed (mead): the entries of a quad's books as bytes are
 * added up before weights meet them.
 *
 * `bytes` has 64 a column: its book as [dim][entry] int8; `steps` four f32 a quad: what 1 is worth in each dim.
 */
import type { Fragment } from '../../fragment.ts';
import { f32x4, type I32, i8x16, i16x8, i32, type V128, v128 } from '../emit.ts';
import type { Kernel } from '../module.ts';
import { beforeLoop, dotBytes, swizzle } from '../ops.ts';
import { type Additive, forQuads } from './additive.ts';
import type { AttendShape, ValueFragment } from './attend.ts';
import { stateBytes, takePage } from './softmax.ts';
import { takeSums, WORTH_ROOM } from './sums.ts';
import type { Tables } from './unpack.ts';
import { POWERS_ROOM, pageBytes, pagePowers } from './weights.ts';

const BOOK_BYTES = 64;
/** Bytes of a quad's sum stay within this. */
const MOST_BYTE = 127;
/** Tokens whose products are added in 16 bits. */
const runOf = (pageTokens: number) => (pageTokens % 64 === 0 ? 64 : 32);
/** Heads whose sums are kept in registers together. */
const HEADS = 4;
/** Tokens a turn of the loop: more of them, and what is loaded does not fit into registers. */
const TURN = 32;

/** Books as the loops here want them. */
export function valueTables({ counts, books }: Additive) {
  const bytes = new Int8Array(books.length);
  const steps = new Float32Array(4 * counts.length);
  let first = 0;
  counts.forEach((count, quad) => {
    const own = Array.from({ length: count }, (_, n) => books.subarray(64 * (first + n), 64 * (first + n + 1)));
    // The largest and the least that a sum of one entry of each book can be.
    const sizes = [0, 1, 2, 3].map(d => {
      const along = own.map(book => book.filter((_, i) => (i & 3) === d));
      const ends = [Math.max, Math.min].map(end => along.reduce((sum, entries) => sum + end(...entries), 0));
      return Math.max(ends[0], -ends[1]);
    });
    const step = sizes.map(size => size / (MOST_BYTE - count));
    steps.set(step, 4 * quad);
    own.forEach((book, n) => {
      for (let d = 0; d < 4; d++) {
        const wanted = Array.from({ length: 16 }, (_, e) => (step[d] > 0 ? book[4 * e + d] / step[d] : 0));
        bytes.set(roundTogether(wanted), BOOK_BYTES * (first + n) + 16 * d);
      }
    });
    first += count;
  });
  return { bytes: new Uint8Array(bytes.buffer), steps };
}

/** Rounded so that as little as possible is lost over all of them: averages stay true. */
function roundTogether(wanted: number[]): number[] {
  const rounded = wanted.map(Math.round);
  const missed = () => wanted.reduce((sum, x, i) => sum + x - rounded[i], 0);
  for (let all = missed(); Math.abs(all) > 0.5; all = missed()) {
    const way = Math.sign(all);
    // The one that was nearest to being rounded the other way.
    const rests = wanted.map((x, i) => way * (x - rounded[i]));
    rounded[rests.indexOf(Math.max(...rests))] += way;
  }
  return rounded;
}

/** Room: a group's weights as bytes, a few vectors, sums of all heads and dims, and a quad's codes, a byte each. */
const roomAt = ({ group, pageTokens }: AttendShape) => group * pageTokens;
const sumsAt = (shape: AttendShape) => roomAt(shape) + Math.max(POWERS_ROOM, WORTH_ROOM);
const sumsBytes = (shape: AttendShape, heads: number) =>
  16 * (shape.pageTokens / runOf(shape.pageTokens)) * heads * shape.headDim;
const codesAt = (shape: AttendShape) => sumsAt(shape) + sumsBytes(shape, shape.group);
export const additiveValueScratch = ({ page }: Fragment, shape: AttendShape): number =>
  page.kind === 'additive' ? codesAt(shape) + Math.max(...page.counts) * shape.pageTokens : 0;

export function additiveValues(
  { page }: Fragment,
  shape: AttendShape,
  tables: Tables,
  spare: () => I32,
): ValueFragment | undefined {
  const { headDim, group, pageTokens, precise } = shape;
  if (page.kind !== 'additive' || precise || pageTokens % 32 !== 0) return undefined;
  const additive = tables.additive!;
  const stride = stateBytes(headDim);
  const occurring = [...new Set(page.counts)];
  const run = runOf(pageTokens);
  const limit = { lanes: 1, most: Math.floor(32767 / MOST_BYTE), run } as const;
  return {
    codedDim: headDim,
    open() {},
    sum(k, pageAt, head, scores, state) {
      const weights = k.i32(spare());
      const room = k.i32(i32.add(weights, roomAt(shape)));
      const sums = k.i32(i32.add(weights, sumsAt(shape)));
      const codes = k.i32(i32.add(weights, codesAt(shape)));
      const powers = pagePowers(k, shape, scores, room);
      const made = pageBytes(k, shape, scores, weights, { limit });
      const worth = powers.map(({ top, sum }, g) => {
        const { correction, step } = takePage(k, i32.add(state, g * stride), top, sum);
        return { correction, unit: k.v128(f32x4.mul(step, made[g].step)) };
      });
      const chunks = Array.from({ length: Math.ceil(group / HEADS) }, (_, n) => ({
        first: n * HEADS,
        heads: worth.slice(n * HEADS, (n + 1) * HEADS),
        sums: k.i32(i32.add(sums, sumsBytes(shape, n * HEADS))),
      }));
      const [nibble] = beforeLoop(k, room, [i8x16.const(15)]);
      const to = k.i32();
      forQuads(k, additive, headDim, head, (offset, count, column) => {
        const book = k.i32(i32.add(additive.bytes, i32.mul(column, BOOK_BYTES)));
        unpackColumns(k, pageTokens, i32.add(pageAt, i32.mul(column, pageTokens / 2)), count, nibble, codes);
        for (const { first, heads, sums } of chunks) {
          const bytes = k.i32(i32.add(weights, first * pageTokens));
          k.set(to, i32.add(sums, i32.mul(offset, sumsBytes(shape, heads.length) / (4 * headDim))));
          for (const n of occurring)
            k.if(i32.eqz(i32.sub(count, n)), () => sumQuad(k, shape, codes, book, bytes, n, heads.length, to));
        }
      });
      const steps = k.i32(i32.add(additive.steps, i32.mul(head, 4 * headDim)));
      const all = { room, runs: pageTokens / run, narrow: false, from: 0, to: headDim, steps };
      for (const { first, heads, sums } of chunks) takeSums(k, headDim, sums, heads, state, { ...all, first });
    },
  };
}

/** A byte for every nibble of `count` columns, in the order of tokens. */
function unpackColumns(k: Kernel, pageTokens: number, page: I32, count: I32, nibble: V128, out: I32): void {
  const [from, to] = [k.i32(page), k.i32(out)];
  const pair = k.v128();
  k.for(0, count, 1, () => {
    for (let i = 0; i < pageTokens / 2; i += 16) {
      k.set(pair, v128.load(from, i));
      k.do(v128.store(to, v128.and(pair, nibble), 2 * i));
      k.do(v128.store(to, v128.and(i16x8.shrU(pair, 4), nibble), 2 * i + 16));
    }
    k.increment(from, pageTokens / 2);
    k.increment(to, pageTokens);
  });
}

/** sums[dim][run][head] = weights . a quad's bytes, over the tokens of each run: eight i16 to be added up. */
function sumQuad(
  k: Kernel,
  { pageTokens, relaxed }: AttendShape,
  codes: I32,
  book: I32,
  weights: I32,
  n: number,
  heads: number,
  sums: I32,
): void {
  const bytes = k.v128();
  const run = runOf(pageTokens);
  const line = (16 * heads * pageTokens) / run;
  const tables = Array.from({ length: n }, () => k.v128());
  const own = Array.from({ length: heads }, () => k.v128());
  const [table, to] = [k.i32(book), k.i32(sums)];
  const [at, w] = [k.i32(), k.i32()];
  k.for(0, 4, 1, () => {
    tables.forEach((local, b) => {
      k.set(local, v128.load(table, BOOK_BYTES * b));
    });
    k.set(at, codes);
    k.set(w, weights);
    for (let r = 0; r < pageTokens / run; r++) {
      for (const sum of own) k.set(sum, v128.zero);
      const turn = () => {
        for (let v = 0; v < TURN; v += 16) {
          tables.forEach((local, b) => {
            const entry = swizzle(relaxed)(local, v128.load(at, b * pageTokens + v));
            k.set(bytes, b === 0 ? entry : i8x16.add(bytes, entry));
          });
          own.forEach((sum, i) => {
            k.set(sum, i16x8.add(sum, dotBytes(relaxed)(bytes, v128.load(w, i * pageTokens + v))));
          });
        }
        k.increment(at, TURN);
        k.increment(w, TURN);
      };
      // A quad that has no columns is zero.
      if (n > 0) k.for(0, run, TURN, turn);
      own.forEach((sum, i) => {
        k.do(v128.store(to, sum, 16 * (heads * r + i)));
      });
    }
    k.increment(table, 16);
    k.increment(to, line);
  });
}
