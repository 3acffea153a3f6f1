/**
 * Keys of table codecs in columns (tq1, tq2): for each column a table of query x level as bytes, where one swizzle serves
 * 16 tokens; their sum over all columns is the score. Entries of two columns are added as bytes, so steps are as fine as
 * the largest two together allow: large columns are paired with small ones.
 */
import type { Fragment } from '../../fragment.ts';
import {
  type F32,
  f32,
  f32x4,
  type I32,
  i8x16,
  i16x8,
  i32,
  i32x4,
  type Local,
  lanes16,
  type V128,
  v128,
} from '../emit.ts';
import type { Kernel } from '../module.ts';
import { multiplyAdd, swizzle } from '../ops.ts';
import type { AttendShape, KeyFragment } from './attend.ts';
import { type Columns, columnsOf, spanAt, spanPair, VECTOR } from './columns.ts';
import { applyMatrix, dotMean } from './domain.ts';
import { addConstants } from './generic.ts';
import { loadNorms } from './table-values.ts';
import { touch } from './touch.ts';
import { blockAt, type Tables } from './unpack.ts';

/** Heads that share the codes of a column. */
const HEADS = 4;

export const INTERLEAVE = [lanes16(0, 8, 1, 9, 2, 10, 3, 11), lanes16(4, 12, 5, 13, 6, 14, 7, 15)];

/** Where prepared queries of a group have what. */
function layoutOf({ count }: Columns, { group }: AttendShape) {
  // Tables [place][head][16], where places 2 n and 2 n + 1 are a pair; for each place where its column begins, in bytes.
  const columnsAt = count * group * 16;
  // For each head what 1 is worth, and what is added to a sum of these.
  const scalesAt = columnsAt + 4 * count;
  // What the mean adds.
  const constantsAt = scalesAt + 8 * group;
  return { columnsAt, scalesAt, constantsAt, bytes: 16 * Math.ceil((constantsAt + 4 * group) / 16) };
}

/** While preparing: queries in the domain, then sizes of columns. While scoring: sums of bytes, [pair][16 tokens][head]. */
export function tableKeyScratch({ page }: Fragment, { headDim, pageTokens, group }: AttendShape) {
  const columns = page.kind === 'levels' && columnsOf(page.codes, pageTokens, headDim);
  if (!columns) return { prepare: 0, score: 0 };
  const { count, span } = columns;
  return {
    prepare: 4 * headDim * group + 4 * count,
    score: (count / 2) * (span / 16) * Math.min(group, HEADS) * 16,
  };
}

/** `spare` is behind the queries that are to be prepared. */
export function tableKeys(
  fragment: Fragment,
  shape: AttendShape,
  tables: Tables,
  spare: () => I32,
  sums: () => I32,
): KeyFragment | undefined {
  const page = fragment.page;
  if (page.kind !== 'levels' || shape.precise) return undefined;
  const { headDim, group, pageTokens } = shape;
  const columns = columnsOf(page.codes, pageTokens, headDim);
  // Tables know one plane of codes. Sums of so many bytes fit into 16 bits.
  if (!columns || columns.planes.length > 1 || columns.count % 4 !== 0 || headDim > 256) return undefined;
  const at = layoutOf(columns, shape);
  return {
    queryBytes: at.bytes,
    prepare(k, queries, head, out) {
      const to = k.i32(out);
      const mapped = k.i32(spare());
      const one = k.v128(f32x4.const(1));
      for (let g = 0; g < group; g++) {
        const query = k.i32(i32.add(queries, 4 * headDim * g));
        applyMatrix(k, tables.matrix, headDim, headDim, query, one, i32.add(mapped, 4 * headDim * g));
        const constant = tables.mean === undefined ? f32.const(0) : dotMean(k, tables.mean, head, headDim, query);
        k.do(f32.store(to, constant, at.constantsAt + 4 * g));
      }
      pairColumns(k, columns, shape, mapped, i32.add(to, at.columnsAt));
      for (let g = 0; g < group; g++) {
        const z = k.i32(i32.add(mapped, 4 * headDim * g));
        const places = i32.add(to, at.columnsAt);
        const { step, offset } = buildTables(k, columns, page.levels, z, places, i32.add(to, 16 * g), 16 * group);
        k.do(f32.store(to, step, at.scalesAt + 8 * g), f32.store(to, offset, at.scalesAt + 8 * g + 4));
      }
    },
    open() {},
    scores(k, pageAt, head, query, scores, _turn, ahead) {
      const block = k.i32(blockAt(fragment, pageAt, head));
      const norms = (token: Local<'i32'>, offset: number) => loadNorms(page, block, token, offset);
      const touchNext = touch(k, ahead, (pageTokens / columns.span) * (columns.count / 2));
      for (let first = 0; first < group; first += HEADS) {
        const heads = Array.from({ length: Math.min(HEADS, group - first) }, (_, i) => first + i);
        scoreTables(k, columns, shape, block, query, heads, norms, sums(), scores, first === 0 ? touchNext : () => {});
      }
      if (tables.mean !== undefined) addConstants(k, query, at.constantsAt, group, scores, pageTokens);
    },
  };
}

/** The size of a column in a query, of which a level is a multiple. */
const sizeOf = ({ dims }: Columns, at: I32) =>
  dims === 1 ? f32.abs(f32.load(at)) : f32.add(f32.abs(f32.load(at)), f32.abs(f32.load(at, 4)));

/** places[2 n] and places[2 n + 1]: where the n-th largest and the n-th smallest column begin, by any head of the group. */
function pairColumns(k: Kernel, columns: Columns, { group, headDim }: AttendShape, mapped: I32, places: I32): void {
  const { count, dims } = columns;
  const from = k.i32(mapped);
  const to = k.i32(places);
  const sizes = k.i32(i32.add(from, 4 * headDim * group));
  const totals = Array.from({ length: group }, (_, g) => {
    const total = k.f32(f32.const(1e-30));
    k.for(0, 4 * headDim, 4, i => k.set(total, f32.add(total, f32.abs(f32.load(i32.add(from, i), 4 * headDim * g)))));
    return k.f32(f32.div(f32.const(1), total));
  });
  k.for(0, count, 1, c => {
    const at = k.i32(i32.add(from, i32.mul(c, 4 * dims)));
    const shares = totals.map((inverse, g) => f32.mul(sizeOf(columns, i32.add(at, 4 * headDim * g)), inverse));
    // The last bits of a size are its column's number: no two are alike.
    const bits = i32.and(i32.bits(shares.reduce(f32.max)), -256);
    k.do(i32.store(i32.add(sizes, i32.mul(c, 4)), i32.or(bits, c)));
  });
  const larger = k.v128();
  k.for(0, count, 1, c => {
    const own = k.v128(v128.load32Splat(i32.add(sizes, i32.mul(c, 4))));
    k.set(larger, v128.zero);
    k.for(0, 4 * count, 16, j => k.set(larger, i32x4.sub(larger, i32x4.gtS(v128.load(i32.add(sizes, j)), own))));
    const rank = k.i32([1, 2, 3].reduce((sum, n) => i32.add(sum, i32x4.lane(larger, n)), i32x4.lane(larger, 0)));
    const place = i32.select(i32.ltS(rank, count / 2), i32.mul(rank, 2), i32.sub(2 * count - 1, i32.mul(rank, 2)));
    k.do(i32.store(i32.add(to, i32.mul(place, 4)), i32.mul(c, VECTOR)));
  });
}

/**
 * Bytes query x level for the column of every place, each `stride` apart, counted from the lowest of its column. Gives what
 * one step of them is worth, and what their sum has too much because of that, as a score.
 */
function buildTables(
  k: Kernel,
  columns: Columns,
  levels: Float32Array,
  z: I32,
  places: I32,
  out: I32,
  stride: number,
): { step: F32; offset: F32 } {
  const { count, dims } = columns;
  const most = Math.max(...levels.map(Math.abs));
  const from = k.i32(places);
  const columnAt = (i: I32, offset = 0) =>
    i32.add(z, i32.mul(i32.divU(i32.load(i32.add(from, i), offset), VECTOR), 4 * dims));
  const largest = k.f32(f32.const(1e-30));
  k.for(0, 4 * count, 8, i => {
    const sizes = [0, 4].map(offset => sizeOf(columns, k.i32(columnAt(i, offset))));
    k.set(largest, f32.max(largest, f32.add(sizes[0], sizes[1])));
  });
  // From the lowest to the highest of two columns together is a byte; each may be rounded up by a half at both ends.
  const step = k.f32(f32.mul(largest, f32.const((2 * most) / (255 - 2))));
  const inverse = k.v128(f32x4.splat(f32.div(f32.const(1), step)));
  // The level of entry e for each dim of a column; entries past the levels repeat them.
  const level = (dim: number, e: number) => levels[(dims === 1 ? e : (e >> (2 * dim)) & 3) % levels.length];
  const four = (dim: number, n: number) => f32x4.const(...[0, 1, 2, 3].map(i => level(dim, 4 * n + i)));
  const magic = f32x4.const(12582912);
  const to = k.i32(out);
  const [half, halves] = [k.v128(), k.v128(v128.zero)];
  k.for(0, 4 * count, 4, i => {
    const at = k.i32(columnAt(i));
    const scaled = Array.from({ length: dims }, (_, d) => k.v128(f32x4.mul(v128.load32Splat(at, 4 * d), inverse)));
    const top = f32x4.mul(f32x4.splat(f32.mul(sizeOf(columns, at), f32.const(most))), inverse);
    k.set(half, f32x4.sub(f32x4.add(top, magic), magic));
    k.set(halves, f32x4.add(halves, half));
    const words = [0, 1, 2, 3].map(n => {
      const value = scaled.map((s, d) => f32x4.mul(s, four(d, n))).reduce((a, b) => f32x4.add(a, b));
      // Rounded, in the low bits.
      return k.v128(i32x4.sub(f32x4.add(value, f32x4.add(half, magic)), i32x4.const(0x4b400000)));
    });
    const low = i16x8.narrowS(words[0], words[1]);
    k.do(v128.store(to, i8x16.narrowU(low, i16x8.narrowS(words[2], words[3]))));
    k.increment(to, stride);
  });
  return { step, offset: f32.neg(f32.mul(f32x4.lane(halves, 0), step)) };
}

/** scores[head][token] = (the sum of table entries x scale + offset) x norm. */
function scoreTables(
  k: Kernel,
  columns: Columns,
  shape: AttendShape,
  block: I32,
  query: I32,
  heads: number[],
  norms: (token: Local<'i32'>, offset: number) => V128,
  sums: I32,
  scores: I32,
  touchNext: () => void,
): void {
  const { group, pageTokens, relaxed } = shape;
  const { count, span, planes } = columns;
  const { columnsAt, scalesAt } = layoutOf(columns, shape);
  const vectors = span / 16;
  const room = k.i32(sums);
  const pairBytes = vectors * heads.length * 16;
  const sumAt = (v: number, i: number) => 16 * (v * heads.length + i);
  const pair = [0, 1].map(() => [k.v128(), k.v128()]);
  const tables = pair.map(() => k.v128());
  const addresses = pair.map(() => k.i32());
  const [from, place, to] = [k.i32(), k.i32(), k.i32()];
  k.for(0, pageTokens, span, token => {
    const start = k.i32(spanAt(planes[0], block, token));
    k.set(from, query);
    k.set(place, i32.add(query, columnsAt));
    k.set(to, room);
    k.for(0, count, 2, () => {
      addresses.forEach((address, c) => {
        k.set(address, i32.add(start, i32.load(place, 4 * c)));
      });
      // 32 tokens share the loads of tables. Sums go to memory: what V8 must keep in registers ends at a store.
      for (let v = 0; v < vectors; v += 2) {
        pair.forEach((halves, c) => {
          spanPair(k, columns, addresses[c], v).forEach((codes, half) => {
            k.set(halves[half], codes);
          });
        });
        heads.forEach((head, i) => {
          tables.forEach((table, c) => {
            k.set(table, v128.load(from, 16 * (c * group + head)));
          });
          for (const half of [0, 1]) {
            const [a, b] = tables.map((table, c) => swizzle(relaxed)(table, pair[c][half]));
            k.do(v128.store(to, i8x16.add(a, b), sumAt(v + half, i)));
          }
        });
      }
      touchNext();
      k.increment(from, 2 * group * 16);
      k.increment(place, 8);
      k.increment(to, pairBytes);
    });
    addUp(token);
  });

  function addUp(token: Local<'i32'>): void {
    const [raw, odd, bytes] = [k.v128(), k.v128(), k.v128()];
    const norm = [0, 1, 2, 3].map(() => k.v128());
    const pairs = count / 2;
    const unrolled = [8, 6, 5, 4, 3, 2].find(n => pairs % n === 0)!;
    const out = k.i32(i32.add(scores, i32.mul(token, 4)));
    for (let v = 0; v < vectors; v++) {
      norm.forEach((local, n) => {
        k.set(local, norms(token, 16 * v + 4 * n));
      });
      heads.forEach((head, i) => {
        // Bytes are summed as the even and odd halves of 16-bit lanes: `raw` takes both, `odd` the upper one alone.
        k.set(raw, v128.zero);
        k.set(odd, v128.zero);
        k.set(to, room);
        k.for(0, pairs, unrolled, () => {
          for (let n = 0; n < unrolled; n++) {
            k.set(bytes, v128.load(to, n * pairBytes + sumAt(v, i)));
            k.set(raw, i16x8.add(raw, bytes));
            k.set(odd, i16x8.add(odd, i16x8.shrU(bytes, 8)));
          }
          k.increment(to, unrolled * pairBytes);
        });
        k.set(raw, i16x8.sub(raw, i16x8.shl(odd, 8)));
        const [scale, offset] = [0, 4].map(o => k.v128(v128.load32Splat(query, scalesAt + 8 * head + o)));
        INTERLEAVE.forEach((lanes, half) => {
          const eight = k.v128(v128.shuffle(raw, odd, lanes));
          [i32x4.extendLowU(eight), i32x4.extendHighU(eight)].forEach((four, quarter) => {
            const n = 2 * half + quarter;
            const score = multiplyAdd(relaxed)(f32x4.fromI32(four), scale, offset);
            k.do(v128.store(out, f32x4.mul(score, norm[n]), 4 * (head * pageTokens + 16 * v + 4 * n)));
          });
        });
      });
    }
  }
}
