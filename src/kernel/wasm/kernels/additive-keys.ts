/**
 * Scores on pages of additive codebooks as they are packed (mead). Page by page, the queries are turned to the page's
 * start and mapped; each column gets a table of query x entry as bytes, and the sum of a token's entries over all
 * columns is its score: one swizzle serves 16 tokens.
 *
 * `maps` is [kv head][block][dim of the query][dim of the block] f32, blocks of the fragment's sizes; each quad of what it
 * gives is multiplied by its books' longest entry, so that the quads can be compared. `dots` has DOT_BYTES a column: its book over that length as
 * [dims 0 and 1, dims 2 and 3][entry][2] int16, then where its quad lies in a mapped query, in bytes.
 */
import type { Fragment } from '../../fragment.ts';
import { f32, f32x4, type I32, i8x16, i16x8, i32, i32x4, type Local, lanes16, lanes32, v128 } from '../emit.ts';
import type { Kernel } from '../module.ts';
import { max4, multiplyAdd, sum4, swizzle } from '../ops.ts';
import { type Additive, mostColumns } from './additive.ts';
import type { AttendShape, KeyFragment } from './attend.ts';
import type { Tables } from './unpack.ts';

const DOT_BYTES = 2 * 64 + 16;
/** Dims of a mapped query that are made together; blocks are of whole ones. */
const OCTET = 8;
/** Heads whose sums are kept in registers together, and columns a turn. */
const HEADS = 4;
const TURN = 2;

/** An entry of the longest length, and a query of the largest; their dot is 127 once it is moved down. */
const BOOK_ONE = 32767;
const QUERY_ONE = 127 * 256;
const DOWN = 23;

/**
 * Entries of two columns are added as bytes before they are widened, which leaves each 7 bits. The more columns there are,
 * the more of their rounding adds up: past two and a half bits a value each has a byte of its own.
 */
const inPairs = (page: Additive, headDim: number) =>
  mostColumns(page, { kvHeads: (4 * page.counts.length) / headDim }) <= (5 * headDim) / 8;

/** Books and maps as the loops here want them. */
export function keyTables(page: Additive, matrix: Float32Array, blocks: readonly number[]) {
  const { counts, books } = page;
  const headDim = blocks.reduce((sum, size) => sum + size, 0);
  const pairs = inPairs(page, headDim);
  const quads = headDim / 4;
  const mapSize = mapNumbers(blocks);
  const blockOf = placesOf(blocks);
  const columns = books.length / 64;
  let sum = 0;
  const ends = Array.from(counts, count => (sum += count));
  const dots = new DataView(new ArrayBuffer(DOT_BYTES * (columns + 1)));
  const maps = new Float32Array((counts.length / quads) * mapSize);
  const stretches = Array.from(counts, (count, unit) =>
    stretchOf(books.subarray(64 * (ends[unit] - count), 64 * ends[unit])),
  );
  const longest = Array.from({ length: columns }, (_, column) =>
    longestOf(books.subarray(64 * column, 64 * column + 64), stretches[ends.findIndex(end => column < end)]),
  );
  counts.forEach((count, unit) => {
    const first = ends[unit] - count;
    const head = unit - (unit % quads);
    const [start, end] = [ends[head] - counts[head], ends[head + quads - 1]];
    const together = (column: number) => {
      const other = start + ((column - start) ^ 1);
      return longest[column] + (pairs && other < end ? longest[other] : 0);
    };
    const most = Math.max(1e-30, ...Array.from({ length: count }, (_, n) => together(first + n)));
    for (let d = 0; d < 4; d++) {
      const [kvHead, dim] = [Math.floor(unit / quads), (4 * unit + d) % headDim];
      const { start, size, map } = blockOf[dim];
      const row = (4 * unit + d) * headDim + start;
      for (let i = 0; i < size; i++) {
        maps[kvHead * mapSize + map + i * size + dim - start] = matrix[row + i] * most * stretches[unit][d];
      }
    }
    for (let column = first; column < first + count; column++) {
      for (let i = 0; i < 64; i++) {
        const [entry, dim] = [i >> 2, i & 3];
        const value = Math.round((books[64 * column + i] / stretches[unit][dim] / most) * BOOK_ONE);
        dots.setInt16(DOT_BYTES * column + 64 * (dim >> 1) + 4 * entry + 2 * (dim & 1), value, true);
      }
      dots.setInt32(DOT_BYTES * column + 128, 8 * (unit % quads), true);
    }
  });
  return { dots: new Uint8Array(dots.buffer), maps };
}

/** What a head's maps take, in numbers. */
const mapNumbers = (blocks: readonly number[]) => blocks.reduce((sum, size) => sum + size * size, 0);

/** Of each dim: where its block starts, its size, and where its map starts among a head's. */
function placesOf(blocks: readonly number[]): { start: number; size: number; map: number }[] {
  const places: { start: number; size: number; map: number }[] = [];
  let map = 0;
  for (const size of blocks) {
    const place = { start: places.length, size, map };
    for (let i = 0; i < size; i++) places.push(place);
    map += size * size;
  }
  return places;
}

/** How far a quad's entries spread in each dim. */
function stretchOf(entries: Float32Array): number[] {
  const squares = [0, 0, 0, 0];
  entries.forEach((x, i) => {
    squares[i & 3] += x * x;
  });
  const most = Math.max(...squares, 1e-30);
  return squares.map(square => Math.sqrt(Math.max(square, 1e-6 * most)));
}

/** The longest entry of a book, with every dim over its stretch. */
function longestOf(book: Float32Array, stretch: number[]): number {
  const lengths = Array.from({ length: 16 }, (_, e) => Math.hypot(...stretch.map((by, d) => book[4 * e + d] / by)));
  return Math.max(...lengths);
}

/** Room while a page is scored: turned queries, mapped ones, these as int16, tables, then scales and constants. */
function scratchOf(shape: AttendShape, page: Additive) {
  const { group, headDim } = shape;
  const most = mostColumns(page, shape);
  const mapped = 4 * group * headDim;
  const whole = 2 * mapped;
  const tables = whole + 2 * group * headDim;
  const scales = tables + (most + TURN) * group * 16;
  const constants = scales + 4 * group;
  return { mapped, whole, tables, scales, constants, bytes: constants + 4 * group };
}

export const additiveKeyScratch = ({ page }: Fragment, shape: AttendShape): number =>
  page.kind === 'additive' ? scratchOf(shape, page).bytes : 0;

export function additiveKeys(
  fragment: Fragment,
  shape: AttendShape,
  tables: Tables,
  scratch: () => I32,
): KeyFragment | undefined {
  const { page } = fragment;
  const { group, headDim, pageTokens, precise } = shape;
  if (page.kind !== 'additive' || precise || pageTokens % 32 !== 0) return undefined;
  const blocks = fragment.blocks ?? [headDim];
  if (blocks.some(size => size % OCTET !== 0)) return undefined;
  const at = scratchOf(shape, page);
  const additive = tables.additive!;
  const pairs = inPairs(page, headDim);
  const queryBytes = 4 * group * headDim;
  return {
    queryBytes,
    prepare(k, queries, _head, out) {
      const to = k.i32(out);
      k.for(0, queryBytes, 16, i => k.do(v128.store(i32.add(to, i), v128.load(i32.add(queries, i)))));
    },
    open() {},
    scores(k, pageAt, head, query, scores, turn) {
      const room = k.i32(scratch());
      const first = k.i32(i32.load(i32.mul(head, 4), additive.firsts));
      const count = k.i32(i32.sub(i32.load(i32.mul(head, 4), additive.firsts + 4), first));
      const mean = k.i32(i32.add(tables.mean!, i32.mul(head, 4 * headDim)));
      const maps = k.i32(i32.add(additive.maps, i32.mul(head, 4 * mapNumbers(blocks))));
      for (let from = 0; from < group; from += HEADS) {
        const heads = Array.from({ length: Math.min(HEADS, group - from) }, (_, i) => from + i);
        const constants = turnQueries(k, shape, heads, query, fragment.turn && turn, mean, room);
        const sizes = mapQueries(k, shape, heads, room, maps, at.mapped, blocks);
        heads.forEach((g, i) => {
          const step = k.f32(f32.max(f32.mul(f32.sqrt(max4(k, sizes[i])), f32.const(1 / 127)), f32.const(1e-30)));
          roundQuery(
            k,
            headDim,
            i32.add(room, at.mapped + 4 * headDim * g),
            step,
            i32.add(room, at.whole + 2 * headDim * g),
          );
          const bias = f32.add(
            f32.mul(f32.fromI32(pairs ? i32.shrU(i32.add(count, 1), 1) : count), f32.const(-128)),
            f32.mul(f32.fromI32(count), f32.const(0.5)),
          );
          const lost = f32.mul(bias, step);
          k.do(f32.store(room, step, at.scales + 4 * g));
          k.do(f32.store(room, f32.add(sum4(k, constants[i]), lost), at.constants + 4 * g));
        });
        buildTables(k, shape, heads, i32.add(additive.dots, i32.mul(first, DOT_BYTES)), count, room, at, pairs);
        const block = i32.add(pageAt, i32.mul(first, pageTokens / 2));
        scoreColumns(k, shape, heads, block, count, room, at, additive.nibble, scores, pairs);
      }
    },
  };
}

/** Queries turned back to the page's start; gives each one's dot with the mean, a sum of four. */
function turnQueries(
  k: Kernel,
  { headDim, relaxed }: AttendShape,
  heads: number[],
  query: I32,
  turn: I32 | undefined,
  mean: I32,
  out: I32,
) {
  const add = multiplyAdd(relaxed);
  const sums = heads.map(() => k.v128(v128.zero));
  const [from, to, m] = [k.i32(query), k.i32(out), k.i32(mean)];
  const by = k.i32(turn ?? 0);
  const [x, cos, sin, own] = [k.v128(), k.v128(), k.v128(), k.v128()];
  k.for(0, 4 * headDim, 16, () => {
    if (turn !== undefined) {
      k.set(cos, v128.load(by));
      k.set(sin, v128.load(by, 16));
    }
    k.set(own, v128.load(m));
    heads.forEach((g, i) => {
      k.set(x, v128.load(from, 4 * headDim * g));
      if (turn !== undefined) k.set(x, add(v128.shuffle(x, x, lanes32(1, 0, 3, 2)), sin, f32x4.mul(x, cos)));
      k.set(sums[i], add(x, own, sums[i]));
      k.do(v128.store(to, x, 4 * headDim * g));
    });
    for (const address of [from, to, m]) k.increment(address, 16);
    k.increment(by, 32);
  });
  return sums;
}

/** Maps turned queries, block by block; gives each one's largest squared length of a quad, in one of four. */
function mapQueries(
  k: Kernel,
  { headDim, relaxed }: AttendShape,
  heads: number[],
  room: I32,
  maps: I32,
  mapped: number,
  blocks: readonly number[],
) {
  const add = multiplyAdd(relaxed);
  const sizes = heads.map(() => k.v128(v128.zero));
  const sums = heads.map(() => [0, 1].map(() => k.v128()));
  const [from, map, to] = [k.i32(room), k.i32(maps), k.i32(i32.add(room, mapped))];
  const [dims, rows] = [k.i32(), k.i32()];
  const columns = [0, 1].map(() => k.v128());
  const x = k.v128();
  const times = (n: number, body: () => void) => (n === 1 ? body() : k.for(0, n, 1, body));
  /** Eight dims of a mapped query from all `size` dims of its block. */
  const octet = (size: number) => {
    k.set(dims, from);
    k.set(rows, map);
    for (const sum of sums.flat()) k.set(sum, v128.zero);
    times(size / OCTET, () => {
      for (let dim = 0; dim < OCTET; dim++) {
        columns.forEach((column, half) => {
          k.set(column, v128.load(rows, 4 * (size * dim + 4 * half)));
        });
        heads.forEach((g, i) => {
          k.set(x, v128.load32Splat(dims, 4 * (headDim * g + dim)));
          sums[i].forEach((sum, half) => {
            k.set(sum, add(columns[half], x, sum));
          });
        });
      }
      k.increment(dims, 4 * OCTET);
      k.increment(rows, 4 * OCTET * size);
    });
    heads.forEach((g, i) => {
      const [a, b] = sums[i].map(sum => k.v128(f32x4.mul(sum, sum)));
      const halves = k.v128(
        f32x4.add(v128.shuffle(a, b, lanes32(0, 1, 4, 5)), v128.shuffle(a, b, lanes32(2, 3, 6, 7))),
      );
      k.set(sizes[i], f32x4.max(sizes[i], f32x4.add(halves, v128.shuffle(halves, halves, lanes32(1, 0, 3, 2)))));
      sums[i].forEach((sum, half) => {
        k.do(v128.store(to, sum, 4 * headDim * g + 16 * half));
      });
    });
    k.increment(map, 4 * OCTET);
    k.increment(to, 4 * OCTET);
  };
  for (let first = 0; first < blocks.length; ) {
    const size = blocks[first];
    let count = 1;
    while (blocks[first + count] === size) count++;
    times(count, () => {
      times(size / OCTET, () => octet(size));
      // The map's pointer has gone along its first row; the next map is behind the last.
      k.increment(map, 4 * (size * size - size));
      k.increment(from, 4 * size);
    });
    first += count;
  }
  return sizes;
}

/** A mapped query over 127 steps as int16. */
function roundQuery(k: Kernel, headDim: number, query: I32, step: Local<'f32'>, out: I32): void {
  const [from, to] = [k.i32(query), k.i32(out)];
  const scale = k.v128(f32x4.splat(f32.div(f32.const(QUERY_ONE / 127), step)));
  const words = [0, 1].map(n => {
    const shifted = f32x4.add(f32x4.mul(v128.load(from, 16 * n), scale), f32x4.const(12582912));
    return i32x4.sub(shifted, i32x4.const(0x4b400000));
  });
  k.for(0, 4 * headDim, 32, () => {
    k.do(v128.store(to, i16x8.narrowS(words[0], words[1])));
    k.increment(from, 32);
    k.increment(to, 16);
  });
}

/** Tables [column][head][16] of bytes, padded to whole turns by tables of zeros. */
function buildTables(
  k: Kernel,
  { group, headDim }: AttendShape,
  heads: number[],
  books: I32,
  count: I32,
  room: I32,
  at: ReturnType<typeof scratchOf>,
  pairs: boolean,
): void {
  const from = k.i32(books);
  const to = k.i32(i32.add(room, at.tables));
  const whole = k.i32(i32.add(room, at.whole));
  const entries = Array.from({ length: 8 }, () => k.v128());
  const [low, high] = [k.v128(), k.v128()];
  const sign = k.v128(i8x16.const(-128));
  const column = (second: number) => {
    const quad = k.i32(i32.add(whole, i32.load(from, 128 + DOT_BYTES * second)));
    entries.forEach((entry, n) => {
      k.set(entry, v128.load(from, 16 * n + DOT_BYTES * second));
    });
    for (const g of heads) {
      k.set(low, v128.load32Splat(quad, 2 * headDim * g));
      k.set(high, v128.load32Splat(quad, 2 * headDim * g + 4));
      const words = [0, 1, 2, 3].map(n =>
        i32x4.shrS(i32x4.add(i32x4.dot(entries[n], low), i32x4.dot(entries[4 + n], high)), DOWN),
      );
      const bytes = i8x16.narrowS(i16x8.narrowS(words[0], words[1]), i16x8.narrowS(words[2], words[3]));
      k.do(v128.store(to, second && pairs ? bytes : v128.xor(bytes, sign), 16 * (second * group + g)));
    }
  };
  k.for(0, count, 2, () => {
    column(0);
    column(1);
    k.increment(from, 2 * DOT_BYTES);
    k.increment(to, 2 * 16 * group);
  });
  k.if(i32.and(count, 1), () => k.increment(to, -16 * group));
  for (let pad = 0; pad < TURN - 1; pad++)
    for (const g of heads) k.do(v128.store(to, v128.zero, 16 * (group * pad + g)));
}

const INTERLEAVE = [lanes16(0, 8, 1, 9, 2, 10, 3, 11), lanes16(4, 12, 5, 13, 6, 14, 7, 15)];

/** Scores of a page: the sums of table entries, times the scale of a head's tables, and its constant. */
function scoreColumns(
  k: Kernel,
  { group, pageTokens, relaxed }: AttendShape,
  heads: number[],
  block: I32,
  count: I32,
  room: I32,
  at: ReturnType<typeof scratchOf>,
  nibble: number,
  scores: I32,
  pairs: boolean,
): void {
  const lookUp = swizzle(relaxed);
  const column = pageTokens / 2;
  const mask = k.v128(v128.load(nibble));
  // Bytes are summed as the even and odd halves of 16-bit lanes: `raw` takes both, `odd` the upper one alone.
  const sums = heads.map(() => ({ raw: k.v128(), odd: k.v128() }));
  const index = Array.from({ length: TURN }, () => k.v128());
  const entry = k.v128();
  const first = k.i32(block);
  const [from, table] = [k.i32(), k.i32()];
  k.for(0, pageTokens, 32, token => {
    for (const half of [0, 1]) {
      k.set(from, i32.add(first, i32.shrU(token, 1)));
      k.set(table, i32.add(room, at.tables));
      for (const { raw, odd } of sums) {
        k.set(raw, v128.zero);
        k.set(odd, v128.zero);
      }
      k.for(0, count, TURN, () => {
        index.forEach((codes, c) => {
          const bytes = v128.load(from, c * column);
          k.set(codes, v128.and(half ? i16x8.shrU(bytes, 4) : bytes, mask));
        });
        heads.forEach((g, i) => {
          const { raw, odd } = sums[i];
          for (let c = 0; c < TURN; c += 2) {
            const [a, b] = [c, c + 1].map(n => lookUp(v128.load(table, 16 * (n * group + g)), index[n]));
            for (const bytes of pairs ? [i8x16.add(a, b)] : [a, b]) {
              k.set(entry, bytes);
              k.set(raw, i16x8.add(raw, entry));
              k.set(odd, i16x8.add(odd, i16x8.shrU(entry, 8)));
            }
          }
        });
        k.increment(from, TURN * column);
        k.increment(table, TURN * group * 16);
      });
      heads.forEach((g, i) => {
        const { raw, odd } = sums[i];
        k.set(raw, i16x8.sub(raw, i16x8.shl(odd, 8)));
        const scale = k.v128(v128.load32Splat(room, at.scales + 4 * g));
        const constant = k.v128(v128.load32Splat(room, at.constants + 4 * g));
        const to = k.i32(i32.add(scores, i32.mul(token, 4)));
        INTERLEAVE.forEach((lanes, eighth) => {
          const eight = k.v128(v128.shuffle(raw, odd, lanes));
          [i32x4.extendLowU(eight), i32x4.extendHighU(eight)].forEach((four, quarter) => {
            const score = multiplyAdd(relaxed)(f32x4.fromI32(four), scale, constant);
            k.do(v128.store(to, score, 4 * (g * pageTokens + 16 * half + 8 * eighth + 4 * quarter)));
          });
        });
      });
    }
  });
}
