/**
 * Keys coded by levels in columns (tq1, tq2). Each column has a lookup table of query x level as bytes; a token's score
 * is the sum of its table entries over all columns, and one swizzle looks up 16 tokens. Entries of two columns are
 * added as bytes, so the step depends on the largest pair: large columns are paired with small ones.
 */
import type { PageLayout } from '../../page-layout.ts';
import {
  type F32,
  f32,
  f32x4,
  type I32,
  i8x16,
  i16x8,
  i32,
  i32x4,
  index,
  type Local,
  type V128,
  v128,
} from '../emit.ts';
import type { Kernel } from '../module.ts';
import { HEADS_PER_PASS, headPasses, ROUND, roundedToI32, swizzle, TINY } from '../ops.ts';
import type { AttentionShape, KeyEmitter } from './attend.ts';
import { addBytes, byteSums, clearByteSums, scoreByteSums } from './byte-sums.ts';
import { type CodeColumns, codeColumns, spanAddress, spanPair, VECTOR_BYTES } from './code-columns.ts';
import { blockAddress, type CodecTables } from './dequantize-page.ts';
import { loadNorms } from './level-values.ts';
import { addMeanScores } from './page-means.ts';
import { prefetcher } from './prefetch.ts';
import { applyMatrix } from './transform.ts';

/** Byte offsets in the transformed queries of a group. */
function queryLayout({ count }: CodeColumns, { group, headDim }: AttentionShape, isCentered: boolean) {
  // Tables [slot][head][16], where slots 2 n and 2 n + 1 are a pair; then the byte offset of each slot's column.
  const columns = count * group * 16;
  // Per head a scale and an offset for the sums of table entries.
  const scales = columns + 4 * count;
  // For centered pages, the transformed queries in f32.
  const floats = 16 * Math.ceil((scales + 8 * group) / 16);
  return { columns, scales, floats, bytes: floats + (isCentered ? 4 * group * headDim : 0) };
}

/**
 * In `transformQuery`: transformed queries, then magnitudes of columns. In `scorePage`: byte sums,
 * [pair][vector of 16 tokens][head].
 */
export function lookupTableKeyScratch({ encoding }: PageLayout, { headDim, pageTokens, group }: AttentionShape) {
  const columns = encoding.kind === 'levels' && codeColumns(encoding.codes, pageTokens, headDim);
  if (!columns) return { transform: 0, score: 0 };
  const { count, span } = columns;
  return {
    transform: 4 * headDim * group + 4 * count,
    score: (count / 2) * (span / 16) * Math.min(group, HEADS_PER_PASS) * 16,
  };
}

/** Both scratches are offsets in the thread's; `transformScratch` must follow the queries that are transformed. */
export function lookupTableKeys(
  layout: PageLayout,
  shape: AttentionShape,
  tables: CodecTables,
  transformScratch: number,
  scoreScratch: number,
): KeyEmitter | undefined {
  const { encoding } = layout;
  if (encoding.kind !== 'levels' || shape.precise) return undefined;
  const { headDim, group, pageTokens } = shape;
  const columns = codeColumns(encoding.codes, pageTokens, headDim);
  // Codes must be in one plane, and sums of up to 256 / 2 byte pairs fit into 16 bits.
  if (!columns || columns.planes.length > 1 || columns.count % 4 !== 0 || headDim > 256) return undefined;
  const isCentered = layout.meansOffset !== undefined;
  const offsets = queryLayout(columns, shape, isCentered);
  return {
    queryBytes: offsets.bytes,
    transformQuery(k, queries, _head, out, scratch) {
      const to = k.i32(out);
      const transformed = k.i32(i32.add(scratch, transformScratch));
      for (let g = 0; g < group; g++) {
        const query = k.i32(i32.add(queries, 4 * headDim * g));
        applyMatrix(k, tables.queryMatrix, headDim, headDim, query, i32.add(transformed, 4 * headDim * g));
      }
      if (isCentered) {
        k.for(0, 4 * group * headDim, 16, i => {
          k.do(v128.store(i32.add(to, i), v128.load(i32.add(transformed, i)), offsets.floats));
        });
      }
      const columnOffsets = i32.add(to, offsets.columns);
      pairColumns(k, columns, shape, transformed, columnOffsets);
      for (let g = 0; g < group; g++) {
        const z = k.i32(i32.add(transformed, 4 * headDim * g));
        const table = i32.add(to, 16 * g);
        const { step, offset } = buildTables(k, columns, encoding.levels, z, columnOffsets, table, 16 * group);
        k.do(f32.store(to, step, offsets.scales + 8 * g), f32.store(to, offset, offsets.scales + 8 * g + 4));
      }
    },
    beginPage() {},
    scorePage(k, page, query, scores, _pageRope, next) {
      const block = k.i32(blockAddress(layout, page));
      const norms = (token: Local<'i32'>, offset: number) => loadNorms(encoding, block, token, offset);
      const prefetchNext = prefetcher(k, next, (pageTokens / columns.span) * (columns.count / 2));
      for (const heads of headPasses(group)) {
        const prefetch = heads[0] === 0 ? prefetchNext : () => {};
        const scratch = i32.add(page.scratch, scoreScratch);
        scoreTables(k, columns, shape, block, query, heads, norms, scratch, scores, prefetch);
      }
      addMeanScores(k, layout, shape, page, i32.add(query, offsets.floats), scores);
    },
  };
}

/** The magnitude of a column's dims in a query; table entries are at most this x the largest level. */
const columnMagnitude = ({ dims }: CodeColumns, at: I32) =>
  dims === 1 ? f32.abs(f32.load(at)) : f32.add(f32.abs(f32.load(at)), f32.abs(f32.load(at, 4)));

/**
 * Writes the column offsets: slots 2 n and 2 n + 1 get the n-th largest and the n-th smallest column, by their largest
 * relative magnitude in any head of the group.
 */
function pairColumns(
  k: Kernel,
  columns: CodeColumns,
  { group, headDim }: AttentionShape,
  transformed: I32,
  columnOffsets: I32,
): void {
  const { count, dims } = columns;
  const from = k.i32(transformed);
  const to = k.i32(columnOffsets);
  const magnitudes = k.i32(i32.add(from, 4 * headDim * group));
  const totals = Array.from({ length: group }, (_, g) => {
    const total = k.f32(f32.const(TINY));
    k.for(0, 4 * headDim, 4, i => k.set(total, f32.add(total, f32.abs(f32.load(i32.add(from, i), 4 * headDim * g)))));
    return k.f32(f32.div(f32.const(1), total));
  });
  k.for(0, count, 1, c => {
    const at = k.i32(index(from, 4 * dims, c));
    const shares = totals.map((inverse, g) => f32.mul(columnMagnitude(columns, i32.add(at, 4 * headDim * g)), inverse));
    // The low bits of a magnitude are the column's index, so all magnitudes differ.
    const bits = i32.and(i32.bits(shares.reduce(f32.max)), -256);
    k.do(i32.store(index(magnitudes, 4, c), i32.or(bits, c)));
  });
  const larger = k.v128();
  k.for(0, count, 1, c => {
    const magnitude = k.v128(v128.load32Splat(index(magnitudes, 4, c)));
    k.set(larger, v128.zero);
    k.for(0, 4 * count, 16, j =>
      k.set(larger, i32x4.sub(larger, i32x4.gtS(v128.load(i32.add(magnitudes, j)), magnitude))),
    );
    const rank = k.i32([1, 2, 3].reduce((sum, n) => i32.add(sum, i32x4.lane(larger, n)), i32x4.lane(larger, 0)));
    const slot = i32.select(i32.ltS(rank, count / 2), i32.mul(rank, 2), i32.sub(2 * count - 1, i32.mul(rank, 2)));
    k.do(i32.store(index(to, 4, slot), i32.mul(c, VECTOR_BYTES)));
  });
}

/**
 * Writes the table of every slot, `stride` bytes apart: query x level in steps, relative to the column's lowest.
 * Returns the step, and the offset that the sum of all lowest entries adds to a score.
 */
function buildTables(
  k: Kernel,
  columns: CodeColumns,
  levels: Float32Array,
  z: I32,
  columnOffsets: I32,
  out: I32,
  stride: number,
): { step: F32; offset: F32 } {
  const { count, dims } = columns;
  const maxLevel = Math.max(...levels.map(Math.abs));
  const from = k.i32(columnOffsets);
  const columnAddress = (i: I32, offset = 0) =>
    index(z, 4 * dims, i32.divU(i32.load(i32.add(from, i), offset), VECTOR_BYTES));
  const maxPair = k.f32(f32.const(TINY));
  k.for(0, 4 * count, 8, i => {
    const pair = [0, 4].map(offset => columnMagnitude(columns, k.i32(columnAddress(i, offset))));
    k.set(maxPair, f32.max(maxPair, f32.add(pair[0], pair[1])));
  });
  // The range of a pair is one byte; each column may be rounded up by a half at both ends.
  const step = k.f32(f32.mul(maxPair, f32.const((2 * maxLevel) / (255 - 2))));
  const inverse = k.v128(f32x4.splat(f32.div(f32.const(1), step)));
  // The level of entry e for each dim of a column; extra entries repeat the levels.
  const level = (dim: number, e: number) => levels[(dims === 1 ? e : (e >> (2 * dim)) & 3) % levels.length];
  const four = (dim: number, n: number) => f32x4.const(...[0, 1, 2, 3].map(i => level(dim, 4 * n + i)));
  const to = k.i32(out);
  const [amplitude, amplitudes] = [k.v128(), k.v128(v128.zero)];
  k.for(0, 4 * count, 4, i => {
    const at = k.i32(columnAddress(i));
    const scaled = Array.from({ length: dims }, (_, d) => k.v128(f32x4.mul(v128.load32Splat(at, 4 * d), inverse)));
    const top = f32x4.mul(f32x4.splat(f32.mul(columnMagnitude(columns, at), f32.const(maxLevel))), inverse);
    k.set(amplitude, f32x4.sub(f32x4.add(top, f32x4.const(ROUND)), f32x4.const(ROUND)));
    k.set(amplitudes, f32x4.add(amplitudes, amplitude));
    const words = [0, 1, 2, 3].map(n => {
      const value = scaled.map((s, d) => f32x4.mul(s, four(d, n))).reduce((a, b) => f32x4.add(a, b));
      return k.v128(roundedToI32(f32x4.add(value, f32x4.add(amplitude, f32x4.const(ROUND)))));
    });
    const low = i16x8.narrowS(words[0], words[1]);
    k.do(v128.store(to, i8x16.narrowU(low, i16x8.narrowS(words[2], words[3]))));
    k.increment(to, stride);
  });
  return { step, offset: f32.neg(f32.mul(f32x4.lane(amplitudes, 0), step)) };
}

/** scores[head][token] = (the sum of table entries x scale + offset) x norm. */
function scoreTables(
  k: Kernel,
  columns: CodeColumns,
  shape: AttentionShape,
  block: I32,
  query: I32,
  heads: number[],
  norms: (token: Local<'i32'>, offset: number) => V128,
  scratch: I32,
  scores: I32,
  prefetchNext: () => void,
): void {
  const { group, pageTokens, relaxed } = shape;
  const { count, span, planes } = columns;
  // The tables and scales are at the same place with and without floats after them.
  const offsets = queryLayout(columns, shape, false);
  const vectors = span / 16;
  const pairSums = k.i32(scratch);
  const pairBytes = vectors * heads.length * 16;
  const sumOffset = (v: number, i: number) => 16 * (v * heads.length + i);
  const pair = [0, 1].map(() => [k.v128(), k.v128()]);
  const tables = pair.map(() => k.v128());
  const addresses = pair.map(() => k.i32());
  const [from, slot, to] = [k.i32(), k.i32(), k.i32()];
  k.for(0, pageTokens, span, token => {
    const start = k.i32(spanAddress(planes[0], block, token));
    k.set(from, query);
    k.set(slot, i32.add(query, offsets.columns));
    k.set(to, pairSums);
    k.for(0, count, 2, () => {
      for (const [c, address] of addresses.entries()) k.set(address, i32.add(start, i32.load(slot, 4 * c)));
      // 32 tokens share the loads of tables. Sums go to memory: stores bound how far V8 moves loads ahead.
      for (let v = 0; v < vectors; v += 2) {
        for (const [c, columnCodes] of pair.entries())
          for (const [half, codes] of spanPair(k, columns, addresses[c], v).entries()) k.set(columnCodes[half], codes);
        heads.forEach((head, i) => {
          for (const [c, table] of tables.entries()) k.set(table, v128.load(from, 16 * (c * group + head)));
          for (const half of [0, 1]) {
            const [a, b] = tables.map((table, c) => swizzle(relaxed)(table, pair[c][half]));
            k.do(v128.store(to, i8x16.add(a, b), sumOffset(v + half, i)));
          }
        });
      }
      prefetchNext();
      k.increment(from, 2 * group * 16);
      k.increment(slot, 8);
      k.increment(to, pairBytes);
    });
    reduceSums(token);
  });

  function reduceSums(token: Local<'i32'>): void {
    const sums = byteSums(k);
    const bytes = k.v128();
    const norm = [0, 1, 2, 3].map(() => k.v128());
    const pairs = count / 2;
    const unrolled = [8, 6, 5, 4, 3, 2].find(n => pairs % n === 0)!;
    const out = k.i32(index(scores, 4, token));
    for (let v = 0; v < vectors; v++) {
      for (const [n, local] of norm.entries()) k.set(local, norms(token, 16 * v + 4 * n));
      heads.forEach((head, i) => {
        clearByteSums(k, sums);
        k.set(to, pairSums);
        k.for(0, pairs, unrolled, () => {
          for (let n = 0; n < unrolled; n++) {
            k.set(bytes, v128.load(to, n * pairBytes + sumOffset(v, i)));
            addBytes(k, sums, bytes);
          }
          k.increment(to, unrolled * pairBytes);
        });
        scoreByteSums(k, relaxed, sums, query, offsets.scales + 8 * head, (score, n) =>
          k.do(v128.store(out, f32x4.mul(score, norm[n]), 4 * (head * pageTokens + 16 * v + 4 * n))),
        );
      });
    }
  }
}
