/**
 * Attention on pages of additive codebooks as they are packed (mead). Keys: page by page, the queries are turned to the
 * page's start and mapped, and each column gets a table of query x entry as bytes; then it is the loop of tables.ts.
 * Values: the entries of a quad's books as bytes are added up before weights meet them.
 *
 * `dots` has DOT_BYTES a column: its book as [dim][entry] f32, the largest length of an entry, and where in a vector its
 * quad lies, in bytes. `bytes` has 64 a column: its book as [dim][entry] int8; `steps` four f32 a quad: what 1 is worth in
 * each dim.
 */
import type { Fragment } from '../../fragment.ts';
import { f32, f32x4, type I32, i8x16, i16x8, i32, i32x4, type Local, v128 } from '../emit.ts';
import type { Kernel } from '../module.ts';
import { dotBytes, swizzle, transposeSum } from '../ops.ts';
import { forQuads } from './additive.ts';
import type { AttendShape, KeyFragment, ValueFragment } from './attend.ts';
import { codesAt } from './columns.ts';
import { applyMatrix, dotMean, matrixAt, turnBack } from './domain.ts';
import { addConstants } from './generic.ts';
import { pageSoftmax, STATE_HEAD, stateBytes } from './softmax.ts';
import { byteWeights } from './sums.ts';
import { HEADS, scoreColumns, TURN } from './tables.ts';
import type { Tables } from './unpack.ts';

export const DOT_BYTES = 4 * 64 + 16;
const BYTE_BOOK = 64;
const MOST_NIBBLES = 6;
/** Bytes of a quad's sum stay within this. */
export const MOST_BYTE = 127;

/** Books as the loops here want them; `counts` is columns a quad. */
export function attendTables(counts: Uint8Array, books: Float32Array, headDim: number) {
  const columns = books.length / 64;
  const dots = new DataView(new ArrayBuffer(DOT_BYTES * columns));
  const bytes = new Int8Array(BYTE_BOOK * columns);
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
      const at = DOT_BYTES * (first + n);
      let longest = 0;
      // What rounding takes from an entry is given to the next: over all of them nothing is lost, so averages stay true.
      const rest = [0, 0, 0, 0];
      for (let e = 0; e < 16; e++) {
        const entry = book.subarray(4 * e, 4 * e + 4);
        longest = Math.max(longest, Math.hypot(...entry));
        entry.forEach((value, d) => {
          dots.setFloat32(at + 4 * (16 * d + e), value, true);
          const wanted = (step[d] > 0 ? value / step[d] : 0) + rest[d];
          bytes[BYTE_BOOK * (first + n) + 16 * d + e] = Math.round(wanted);
          rest[d] = wanted - Math.round(wanted);
        });
      }
      dots.setFloat32(at + 256, longest, true);
      dots.setInt32(at + 260, 16 * (quad % (headDim / 4)), true);
    });
    first += count;
  });
  return { dots: new Uint8Array(dots.buffer), bytes: new Uint8Array(bytes.buffer), steps };
}

/** Whether the loops here fit; the generic ones take any page. */
const fits = ({ page }: Fragment, { precise, pageTokens }: AttendShape) =>
  page.kind === 'additive' && !precise && pageTokens % 32 === 0;

const columnsOf = (pageTokens: number) => ({
  span: 32,
  planes: [{ width: 4, shift: 0, offset: 0, lineBytes: pageTokens / 2 }],
});

/** Room while a page is scored: turned queries, mapped ones, tables of all columns, then scales and constants. */
function scratchOf({ group, headDim }: AttendShape) {
  const mapped = 4 * group * headDim;
  const tables = 2 * mapped;
  const scales = tables + (MOST_NIBBLES * (headDim / 4) + TURN) * group * 16;
  const constants = scales + 4 * group;
  return { mapped, tables, scales, constants, bytes: constants + 4 * group };
}

export const additiveScratch = (keys: Fragment, shape: AttendShape): number =>
  keys.page.kind === 'additive' ? scratchOf(shape).bytes : 0;

export function additiveKeys(
  fragment: Fragment,
  shape: AttendShape,
  tables: Tables,
  scratch: () => I32,
): KeyFragment | undefined {
  if (!fits(fragment, shape) || !tables.additive) return undefined;
  const { group, headDim, pageTokens } = shape;
  const { firsts, counts, dots } = tables.additive;
  const at = scratchOf(shape);
  const queryBytes = 4 * group * headDim;
  return {
    queryBytes,
    prepare(k, queries, _head, out) {
      const to = k.i32(out);
      k.for(0, queryBytes, 16, i => k.do(v128.store(i32.add(to, i), v128.load(i32.add(queries, i)))));
    },
    open() {},
    scores(k, page, head, query, scores, turn) {
      const room = k.i32(scratch());
      const one = k.v128(f32x4.const(1));
      const matrix = k.i32(matrixAt(fragment, fragment.matrix!, tables.matrix!, headDim, head));
      for (let g = 0; g < group; g++) {
        const [from, turned] = [i32.add(query, 4 * headDim * g), k.i32(i32.add(room, 4 * headDim * g))];
        if (fragment.turn) turnBack(k, headDim, turn, from, turned);
        else applyMatrix(k, undefined, headDim, headDim, from, one, turned);
        applyMatrix(k, matrix, headDim, headDim, turned, one, i32.add(turned, at.mapped), fragment.blocks);
        k.do(f32.store(room, dotMean(k, tables.mean!, head, headDim, turned), at.constants + 4 * g));
      }
      const first = k.i32(i32.load(i32.mul(head, 4), firsts));
      const count = k.i32(columnCount(k, counts, headDim, head));
      const books = k.i32(i32.add(dots, i32.mul(first, DOT_BYTES)));
      buildTables(k, shape, books, count, room);
      const padded = k.i32(i32.and(i32.add(count, TURN - 1), -TURN));
      const block = k.i32(i32.add(page, i32.mul(first, pageTokens / 2)));
      for (let head = 0; head < group; head += HEADS) {
        const heads = Array.from({ length: Math.min(HEADS, group - head) }, (_, i) => head + i);
        const query = i32.add(room, at.tables);
        scoreColumns(k, columnsOf(pageTokens), shape, block, query, heads, at.scales - at.tables, scores, {
          count: padded,
        });
      }
      addConstants(k, room, at.constants, group, scores, pageTokens);
    },
  };
}

/** All columns of a head. */
function columnCount(k: Kernel, counts: number, headDim: number, head: I32): Local<'i32'> {
  const sum = k.i32(0);
  const from = k.i32(i32.add(counts, i32.mul(head, headDim)));
  k.for(0, headDim, 4, i => k.increment(sum, i32.load(i32.add(from, i))));
  return sum;
}

/** Tables [column][head][16] of bytes biased by 128, padded to whole turns by tables of zeros; and their scales. */
function buildTables(k: Kernel, shape: AttendShape, books: I32, count: I32, room: I32): void {
  const { group, headDim } = shape;
  const at = scratchOf(shape);
  for (let g = 0; g < group; g++) {
    const z = k.i32(i32.add(room, at.mapped + 4 * headDim * g));
    // No entry's dot is larger than its length times the query's.
    const largest = k.f32(f32.const(1e-30));
    const from = k.i32(books);
    k.for(0, count, 1, () => {
      const quad = k.v128(v128.load(i32.add(z, i32.load(from, 260))));
      const squares = k.v128(f32x4.mul(quad, quad));
      const sum = [1, 2, 3].reduce((s, lane) => f32.add(s, f32x4.lane(squares, lane)), f32x4.lane(squares, 0));
      k.set(largest, f32.max(largest, f32.mul(f32.sqrt(sum), f32.load(from, 256))));
      k.increment(from, DOT_BYTES);
    });
    const step = k.f32(f32.mul(largest, f32.const(1 / 127)));
    k.do(f32.store(room, step, at.scales + 4 * g));
    const inverse = k.v128(f32x4.splat(f32.div(f32.const(1), step)));
    const to = k.i32(i32.add(room, at.tables + 16 * g));
    k.set(from, books);
    const words = [0, 1, 2, 3].map(() => k.v128());
    const scaled = [0, 1, 2, 3].map(() => k.v128());
    k.for(0, count, 1, () => {
      const quad = k.i32(i32.add(z, i32.load(from, 260)));
      scaled.forEach((s, d) => {
        k.set(s, f32x4.mul(v128.load32Splat(quad, 4 * d), inverse));
      });
      words.forEach((word, n) => {
        k.set(word, f32x4.mul(scaled[0], v128.load(from, 16 * n)));
        for (let d = 1; d < 4; d++)
          k.set(word, f32x4.add(word, f32x4.mul(scaled[d], v128.load(from, 64 * d + 16 * n))));
        // Rounded, and biased by 128, in the low bits.
        k.set(word, i32x4.sub(f32x4.add(word, f32x4.const(12582912)), i32x4.const(0x4b400000 - 128)));
      });
      const low = i16x8.narrowS(words[0], words[1]);
      k.do(v128.store(to, i8x16.narrowU(low, i16x8.narrowS(words[2], words[3]))));
      k.increment(from, DOT_BYTES);
      k.increment(to, 16 * group);
    });
    for (let pad = 0; pad < TURN - 1; pad++) k.do(v128.store(to, i8x16.const(-128), 16 * group * pad));
  }
}

export function additiveValues(
  fragment: Fragment,
  shape: AttendShape,
  tables: Tables,
  spare: () => I32,
): ValueFragment | undefined {
  const { additive } = tables;
  if (!fits(fragment, shape) || !additive) return undefined;
  const { headDim, group, pageTokens } = shape;
  const stride = stateBytes(headDim);
  return {
    codedDim: headDim,
    open() {},
    sum(k, page, head, scores, state) {
      const weights = k.i32(spare());
      const worth = Array.from({ length: group }, (_, g) => {
        const from = k.i32(i32.add(scores, 4 * g * pageTokens));
        const own = i32.add(state, g * stride);
        const { correction, share } = pageSoftmax(k, from, pageTokens, own, shape.relaxed);
        const unit = byteWeights(k, shape, from, f32.const(1), i32.add(weights, g * pageTokens));
        return { correction: k.v128(f32x4.splat(correction)), unit: k.v128(f32x4.splat(f32.mul(share, unit))) };
      });
      const steps = k.i32(i32.add(additive.steps, i32.mul(head, 4 * headDim)));
      forQuads(k, additive, headDim, head, (offset, count, column) => {
        const step = k.v128(v128.load(i32.add(steps, offset)));
        const place = k.i32(i32.add(state, offset));
        const at = k.i32(i32.add(page, i32.mul(column, pageTokens / 2)));
        const book = k.i32(i32.add(additive.bytes, i32.mul(column, BYTE_BOOK)));
        for (let first = 0; first < group; first += HEADS) {
          const heads = worth.slice(first, first + HEADS);
          const sums = heads.map(() => [0, 1, 2, 3].map(() => k.v128(v128.zero)));
          const own = k.i32(i32.add(weights, first * pageTokens));
          for (let n = 1; n <= MOST_NIBBLES; n++) {
            k.if(i32.eqz(i32.sub(count, n)), () => sumQuad(k, shape, at, book, own, n, sums));
          }
          heads.forEach(({ correction, unit }, i) => {
            const to = (first + i) * stride + STATE_HEAD;
            const total = f32x4.fromI32(transposeSum(k, sums[i], i32x4.add));
            const value = f32x4.mul(total, f32x4.mul(unit, step));
            k.do(v128.store(place, f32x4.add(f32x4.mul(v128.load(place, to), correction), value), to));
          });
        }
      });
    },
  };
}

/** sums[head][dim] += weights . a quad's bytes, over all tokens of a page. */
function sumQuad(
  k: Kernel,
  { pageTokens, relaxed }: AttendShape,
  page: I32,
  book: I32,
  weights: I32,
  n: number,
  sums: readonly Local<'v128'>[][],
): void {
  const columns = columnsOf(pageTokens);
  const ones = i16x8.const(1);
  const bytes = k.v128();
  const tables = Array.from({ length: n }, () => k.v128());
  for (let d = 0; d < 4; d++) {
    tables.forEach((table, b) => {
      k.set(table, v128.load(book, BYTE_BOOK * b + 16 * d));
    });
    const at = k.i32(page);
    const w = k.i32(weights);
    k.for(0, pageTokens, 32, () => {
      for (const half of [0, 1]) {
        tables.forEach((table, b) => {
          const codes = codesAt(columns, [at], () => (b * pageTokens) / 2, half);
          const entry = swizzle(relaxed)(table, codes);
          k.set(bytes, b === 0 ? entry : i8x16.add(bytes, entry));
        });
        sums.forEach((of, i) => {
          const products = dotBytes(relaxed)(bytes, v128.load(w, i * pageTokens + 16 * half));
          k.set(of[d], i32x4.add(of[d], i32x4.dot(products, ones)));
        });
      }
      k.increment(at, 16);
      k.increment(w, 32);
    });
  }
}
