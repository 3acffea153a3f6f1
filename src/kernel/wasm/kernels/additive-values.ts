/**
 * Weighted sums over pages of additive codebooks as they are packed (mead): the entries of a quad's books as bytes are
 * added up before weights meet them.
 *
 * `bytes` has 64 a column: its book as [dim][entry] int8; `steps` four f32 a quad: what 1 is worth in each dim.
 */
import type { Fragment } from '../../fragment.ts';
import { type F32, f32, f32x4, type I32, i8x16, i16x8, i32, i32x4, lanes32, type V128, v128 } from '../emit.ts';
import type { Kernel } from '../module.ts';
import { dotBytes, max4, multiplyAdd, swizzle, transposeSum } from '../ops.ts';
import { forQuads } from './additive.ts';
import type { AttendShape, ValueFragment } from './attend.ts';
import { pageSoftmax, STATE_HEAD, stateBytes } from './softmax.ts';
import { behindWeights, byteWeights } from './sums.ts';
import type { Tables } from './unpack.ts';

const BOOK_BYTES = 64;
/** Bytes of a quad's sum stay within this, and so does the largest weight, less what rounding may add. */
const MOST_BYTE = 127;
const MOST_WEIGHT = 126.5;
/** Heads whose sums are kept in registers together. */
const HEADS = 4;

type Additive = Fragment['page'] & { kind: 'additive' };

/** Books as the loops here want them. */
export function valueTables({ counts, books }: Additive) {
  const bytes = new Int8Array(books.length);
  const steps = new Float32Array(4 * counts.length);
  let first = 0;
  counts.forEach((count, quad) => {
    const own = Array.from({ length: count }, (_, n) => books.subarray(64 * (first + n), 64 * (first + n + 1)));
    // The largest that a sum of one entry of each book can be.
    const sizes = [0, 1, 2, 3].map(d =>
      own.reduce((sum, book) => sum + Math.max(...Array.from({ length: 16 }, (_, e) => Math.abs(book[4 * e + d]))), 0),
    );
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

/** Vectors of 16 tokens whose products are added up in 16 bits. */
const togetherOf = (pageTokens: number) => (pageTokens % 64 === 0 ? 4 : 2);

export function additiveValues(
  { page }: Fragment,
  shape: AttendShape,
  tables: Tables,
  spare: () => I32,
  room: () => I32,
): ValueFragment | undefined {
  const { headDim, group, pageTokens, relaxed, precise } = shape;
  if (page.kind !== 'additive' || precise || pageTokens % 32 !== 0) return undefined;
  const additive = tables.additive!;
  const stride = stateBytes(headDim);
  const occurring = [...new Set(page.counts)].filter(n => n > 0);
  return {
    codedDim: headDim,
    open() {},
    sum(k, pageAt, head, scores, state) {
      const weights = k.i32(spare());
      const sums = k.i32(i32.add(weights, behindWeights(shape)));
      const codes = k.i32(room());
      const nibble = k.v128(v128.load(additive.nibble));
      const ones = k.v128(v128.load(additive.nibble, 16));
      const worth = Array.from({ length: group }, (_, g) => {
        const from = k.i32(i32.add(scores, 4 * g * pageTokens));
        const own = i32.add(state, g * stride);
        const { correction, share } = pageSoftmax(k, from, pageTokens, own, relaxed);
        const unit = byteWeights(k, shape, from, scaleOf(k, shape, from), i32.add(weights, g * pageTokens));
        return { correction: k.v128(f32x4.splat(correction)), unit: k.v128(f32x4.splat(f32.mul(share, unit))) };
      });
      const steps = k.i32(i32.add(additive.steps, i32.mul(head, 4 * headDim)));
      forQuads(k, additive, headDim, head, (offset, count, column) => {
        const place = k.i32(i32.add(state, offset));
        const old = (g: number) => f32x4.mul(v128.load(place, g * stride + STATE_HEAD), worth[g].correction);
        const keep = (g: number, value: V128) => k.do(v128.store(place, value, g * stride + STATE_HEAD));
        const summed = () => {
          const step = k.v128(v128.load(i32.add(steps, offset)));
          const book = k.i32(i32.add(additive.bytes, i32.mul(column, BOOK_BYTES)));
          const from = i32.add(pageAt, i32.mul(column, pageTokens / 2));
          unpackCodes(k, from, i32.mul(count, pageTokens / 2), nibble, codes);
          for (let first = 0; first < group; first += HEADS) {
            const heads = worth.slice(first, first + HEADS);
            const own = k.i32(i32.add(weights, first * pageTokens));
            for (const n of occurring) {
              k.if(i32.eqz(i32.sub(count, n)), () => sumQuad(k, shape, codes, book, own, n, heads.length, ones, sums));
            }
            heads.forEach(({ unit }, i) => {
              const dims = [0, 1, 2, 3].map(d => k.v128(v128.load(sums, 16 * (HEADS * d + i))));
              const total = f32x4.fromI32(transposeSum(k, dims, i32x4.add));
              keep(first + i, multiplyAdd(relaxed)(total, f32x4.mul(unit, step), old(first + i)));
            });
          }
        };
        k.if(count, summed, () => worth.forEach((_, g) => keep(g, old(g))));
      });
    },
  };
}

/**
 * What byteWeights is to take for the largest of a head's weights, which is 1: more where products of so many tokens as
 * meet in one lane would not fit into 16 bits. Then many weights are large, and the smaller steps are not missed.
 */
function scaleOf(k: Kernel, { pageTokens, relaxed }: AttendShape, weights: I32): F32 {
  const together = togetherOf(pageTokens);
  // Each weight may be rounded up by a half, and two of them begin with as much.
  const most = Math.floor(32767 / MOST_BYTE) - together - 1;
  const from = k.i32(weights);
  const largest = k.v128(v128.zero);
  const lanes = [0, 1, 2, 3].map(() => k.v128());
  k.for(0, pageTokens, 16 * together, () => {
    lanes.forEach((lane, n) => {
      const parts = Array.from({ length: together }, (_, j) => v128.load(from, 64 * j + 16 * n));
      k.set(
        lane,
        parts.reduce((a, b) => f32x4.add(a, b)),
      );
    });
    // As dotBytes pairs them.
    const pairs = relaxed
      ? lanes.map(lane => f32x4.add(lane, v128.shuffle(lane, lane, lanes32(1, 0, 3, 2))))
      : [f32x4.add(lanes[0], lanes[2]), f32x4.add(lanes[1], lanes[3])];
    for (const pair of pairs) k.set(largest, f32x4.max(largest, pair));
    k.increment(from, 64 * together);
  });
  return f32.max(f32.const(1), f32.mul(max4(k, largest), f32.const(MOST_WEIGHT / most)));
}

/** A byte for every nibble of `bytes` bytes, in the order of tokens. */
function unpackCodes(k: Kernel, page: I32, bytes: I32, nibble: V128, out: I32): void {
  const [from, to] = [k.i32(page), k.i32(out)];
  const pair = k.v128();
  k.for(0, bytes, 16, () => {
    k.set(pair, v128.load(from));
    k.do(v128.store(to, v128.and(pair, nibble)));
    k.do(v128.store(to, v128.and(i16x8.shrU(pair, 4), nibble), 16));
    k.increment(from, 16);
    k.increment(to, 32);
  });
}

/** sums[dim][head] = weights . a quad's bytes, over all tokens of a page: four i32 to be added up. */
function sumQuad(
  k: Kernel,
  { pageTokens, relaxed }: AttendShape,
  codes: I32,
  book: I32,
  weights: I32,
  n: number,
  heads: number,
  ones: V128,
  sums: I32,
): void {
  const together = togetherOf(pageTokens);
  const bytes = k.v128();
  const tables = Array.from({ length: n }, () => k.v128());
  const own = Array.from({ length: heads }, () => ({ sum: k.v128(), short: k.v128() }));
  const [table, to] = [k.i32(book), k.i32(sums)];
  const [at, w] = [k.i32(), k.i32()];
  k.for(0, 4, 1, () => {
    tables.forEach((local, b) => {
      k.set(local, v128.load(table, BOOK_BYTES * b));
    });
    for (const { sum } of own) k.set(sum, v128.zero);
    k.set(at, codes);
    k.set(w, weights);
    k.for(0, pageTokens, 16 * together, () => {
      for (let v = 0; v < together; v++) {
        tables.forEach((local, b) => {
          const entry = swizzle(relaxed)(local, v128.load(at, b * pageTokens + 16 * v));
          k.set(bytes, b === 0 ? entry : i8x16.add(bytes, entry));
        });
        own.forEach(({ short }, i) => {
          const products = dotBytes(relaxed)(bytes, v128.load(w, i * pageTokens + 16 * v));
          k.set(short, v === 0 ? products : i16x8.add(short, products));
        });
      }
      for (const { sum, short } of own) k.set(sum, i32x4.add(sum, i32x4.dot(short, ones)));
      k.increment(at, 16 * together);
      k.increment(w, 16 * together);
    });
    own.forEach(({ sum }, i) => k.do(v128.store(to, sum, 16 * i)));
    k.increment(table, 16);
    k.increment(to, 16 * HEADS);
  });
}
