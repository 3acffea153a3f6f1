/**
 * Keys in rows (tq3, tq4, the uniform siblings, KIVI, OScaR): dot products of int8 queries with integers, which are the
 * codes or come from a lookup table. A channel's step is multiplied into the query, once per group of tokens that share
 * it.
 */
import type { PageLayout, ScalarArray } from '../../page-layout.ts';
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
import {
  addDotInt8,
  dotLaneSumsF32,
  dotSumsI32,
  horizontalSumsI32,
  loadF16x4,
  lowF16ToF32,
  MAX_INT16,
  multiplyAdd,
  reduceAdd,
  reduceMax,
  roundToI32,
  swizzle,
  TINY,
  transpose4x4,
} from '../ops.ts';
import type { AttentionShape, KeyEmitter, PageArgs } from './attend.ts';
import type { Int8Keys } from './attend-int8-tiles.ts';
import { type CodeRows, codeRows, rowAddresses, rowCodes } from './code-rows.ts';
import { quantizeLevels } from './column-sums.ts';
import { blockAddress, type CodecTables } from './dequantize-page.ts';
import { blockBytes, FACTOR_BYTES, quadOffset } from './int8-tiles.ts';
import type { LevelsEncoding } from './level-values.ts';
import { addMeanScores } from './page-means.ts';
import { prefetcher } from './prefetch.ts';
import { applyMatrix } from './transform.ts';

/**
 * Transformed queries: for levels int8 queries and, for centered pages, f32 [head][headDim]; for affine codes f32 only.
 * `scratchOffset` is that of int8DotKeyScratch bytes.
 */
export function int8DotKeys(
  layout: PageLayout,
  shape: AttentionShape,
  tables: CodecTables,
  scratchOffset: number,
): KeyEmitter | undefined {
  const { encoding } = layout;
  const levels = encoding.kind === 'levels';
  if (shape.precise || !(levels || (encoding.kind === 'affine' && encoding.axis === 'channel'))) return undefined;
  const { headDim, group, pageTokens } = shape;
  const rows = codeRows(encoding.codes, pageTokens, headDim);
  if (!rows) return undefined;
  const integers = levels
    ? levelsAsIntegers(encoding.levels, encoding.uniform, headDim)
    : codesAsIntegers(encoding.codes.bits, headDim);
  const floatBytes = 4 * group * headDim;
  const floatsOffset = levels ? int8QueryBytes(shape) : 0;
  const keepsFloats = !levels || layout.meansOffset !== undefined;
  const addMeans = (k: Kernel, args: PageArgs, query: I32, scores: I32) =>
    addMeanScores(k, layout, shape, args, i32.add(query, floatsOffset), scores);
  return {
    ...(levels && { int8: levelTiles(layout, encoding, shape, rows, integers, addMeans) }),
    queryBytes: floatsOffset + (keepsFloats ? floatBytes : 0),
    transformQuery(k, queries, _head, out) {
      const to = k.i32(out);
      const transformed = k.i32(keepsFloats ? i32.add(to, floatsOffset) : i32.add(queries, floatBytes));
      for (let g = 0; g < group; g++) {
        const query = k.i32(i32.add(queries, 4 * headDim * g));
        const target = k.i32(keepsFloats ? i32.add(transformed, 4 * headDim * g) : transformed);
        applyMatrix(k, tables.queryMatrix, headDim, headDim, query, target);
        if (levels) quantizeQuery(k, shape, g, target, integers, undefined, to);
      }
    },
    beginPage() {},
    scorePage(k, args, query, scores, _pageRope, next) {
      const block = k.i32(blockAddress(layout, args));
      const partialSums = k.i32(i32.add(args.scratch, scratchOffset));
      const prefetchNext = prefetcher(k, next, pageTokens / 4);
      const score = (q: I32, token: I32, count: number, norms?: (token: I32) => V128) =>
        scoreCodeRows(k, shape, rows, integers, block, q, partialSums, token, count, norms, scores, prefetchNext);
      if (encoding.kind === 'levels') score(query, 0, pageTokens, normLoader(encoding.norms, block));
      else if (encoding.kind === 'affine') {
        const { norms, groupSize: tokens } = encoding;
        const factors = norms && normLoader(norms, norms.per === 'page' ? args.page : block);
        const ranges = k.i32(i32.add(block, encoding.rangesOffset));
        const pair = (i: Local<'i32'>) => v128.load(i32.add(ranges, i));
        const range = {
          min: (i: Local<'i32'>) => lowF16ToF32(pair(i)),
          step: (i: Local<'i32'>) => lowF16ToF32(i32x4.shrU(pair(i), 16)),
        };
        const int8Query = k.i32(i32.add(partialSums, rowScratch(shape)));
        k.for(0, pageTokens, tokens, t => {
          for (let g = 0; g < group; g++)
            quantizeQuery(k, shape, g, i32.add(query, 4 * headDim * g), integers, range, int8Query);
          score(int8Query, t, tokens, factors);
          k.increment(ranges, 4 * headDim);
        });
      }
      addMeans(k, args, query, scores);
    },
  };
}

/** For many rows (int8-tiles.ts): the integers of a page, and queries as `quantizeQuery` writes them. */
function levelTiles(
  layout: PageLayout,
  { norms }: LevelsEncoding,
  shape: AttentionShape,
  rows: CodeRows,
  integers: CodeIntegers,
  addMeanScores: Int8Keys['int8']['addMeanScores'],
): Int8Keys['int8'] {
  const { headDim, group, pageTokens } = shape;
  return {
    run: VECTORS_PER_PART,
    pack(k, page, tile, normsTo) {
      const block = k.i32(blockAddress(layout, page));
      const loadNorms = normLoader(norms, block);
      const addresses = rowAddresses(k, rows, block, 0);
      const to = k.i32();
      k.for(0, pageTokens, 4, token => {
        k.do(v128.store(index(normsTo, 4, token), loadNorms(token)));
        const half = i32.mul(i32.and(i32.shrU(token, 2), 1), quadOffset(4));
        k.set(to, i32.add(index(tile, blockBytes(headDim), i32.shrU(token, 3)), half));
        const tokens = [0, 1, 2, 3].map(r =>
          readIntegers(k, shape, rows, addresses, r, [0, headDim / 16], integers).map(vector => k.v128(vector)),
        );
        for (let v = 0; v < headDim / 16; v++) {
          const quads = transpose4x4(
            k,
            tokens.map(vectors => vectors[v]),
          );
          for (const [n, quad] of quads.entries()) k.do(v128.store(to, quad, 128 * v + 32 * n));
        }
        for (const [p, address] of addresses.entries()) k.increment(address, rows[p].blockBytes);
      });
    },
    copyQueries(k, query, queries, factors) {
      const from = k.i32(query);
      for (let i = 0; i < group * headDim; i += 16) k.do(v128.store(queries, v128.load(from, i), i));
      for (let g = 0; g < group; g++)
        for (const part of [0, 4])
          k.do(f32.store(factors, f32.load(from, scaleOffset(shape, g) + part), FACTOR_BYTES * g + part));
    },
    addMeanScores,
  };
}

/** The integers of token `r` of the four at the addresses. */
function readIntegers(
  k: Kernel,
  { relaxed }: AttentionShape,
  rows: CodeRows,
  addresses: readonly Local<'i32'>[],
  r: number,
  vectors: readonly [number, number],
  { table, twosComplement }: CodeIntegers,
): V128[] {
  const codes = rowCodes(k, rows, addresses, r, vectors, twosComplement);
  return table ? codes.map(code => swizzle(relaxed)(i8x16.const(...table), code)) : codes;
}

/** The integers that codes are read as: 0 to `max`, where max / 2 stands for zero, in units of `step`. */
interface CodeIntegers {
  max: number;
  step: number;
  /** Integer by code; absent if codes are used directly. */
  table?: number[];
  twosComplement: boolean;
  /** Whether half of the lanes of a row may be added in 16 bits. */
  narrow: boolean;
}

/** Products of this many vectors of a row are added in 16 bits. */
const VECTORS_PER_PART = 4;

/** The largest magnitude in an int8 query. */
const MAX_QUERY = 127;

/**
 * Max sum of the magnitudes of query dims of one sign whose products are added in 16 bits: per half of the lanes of a
 * row, or per lane of a part. undefined if they always fit.
 */
function maxMagnitudeSum(integers: CodeIntegers, headDim: number): number | undefined {
  const dims = integers.narrow ? headDim / 2 : 2 * VECTORS_PER_PART;
  const limit = Math.floor(MAX_INT16 / integers.max);
  // A dim is rounded up by at most a half.
  return dims * MAX_QUERY <= limit ? undefined : limit - dims / 2;
}

/**
 * For ranges per channel: queries change with every group of tokens, so measuring their magnitudes would cost too much.
 */
function codesAsIntegers(bits: number, headDim: number): CodeIntegers {
  const integers = { max: 2 ** bits - 1, step: 1, twosComplement: false, narrow: true };
  return { ...integers, narrow: maxMagnitudeSum(integers, headDim) === undefined };
}

/** Levels are symmetric about zero. The codes of uniform ones are used directly. */
function levelsAsIntegers(levels: Float32Array, uniform: boolean, dims: number): CodeIntegers {
  const max = levels.length - 1;
  if (uniform) return { max, step: (2 * Math.max(...levels)) / max, twosComplement: true, narrow: true };
  const { bytes, step } = quantizeLevels(levels, dims);
  const middle = Math.max(...bytes);
  const table = Array.from({ length: 16 }, (_, code) => bytes[code % levels.length] + middle);
  return { max: 2 * middle, step, table, twosComplement: false, narrow: false };
}

/** The value of code 0 and the step of four dims, by the byte offset of the first dim's f32. */
interface Range {
  min(i: Local<'i32'>): V128;
  step(i: Local<'i32'>): V128;
}

const normLoader =
  ({ offset, bytes }: ScalarArray, base: I32) =>
  (token: I32) =>
    bytes === 2 ? loadF16x4(index(i32.add(base, offset), 2, token)) : v128.load(index(i32.add(base, offset), 4, token));

/** The parts of a row: [first vector, number of vectors]. */
const rowParts = ({ headDim }: AttentionShape) =>
  Array.from({ length: Math.ceil(headDim / 16 / VECTORS_PER_PART) }, (_, p) => [
    p * VECTORS_PER_PART,
    Math.min(VECTORS_PER_PART, headDim / 16 - p * VECTORS_PER_PART),
  ]);

/** Int8 queries: [head][headDim] int8, then a scale and a constant per head. */
const scaleOffset = ({ group, headDim }: AttentionShape, g: number) => group * headDim + 8 * g;
const int8QueryBytes = (shape: AttentionShape) => 16 * Math.ceil(scaleOffset(shape, shape.group) / 16);

/** Partial sums of four tokens: [part][head][token] vectors of eight i16 or four i32. */
const rowScratch = (shape: AttentionShape) => rowParts(shape).length * shape.group * 4 * 16;
export const int8DotKeyScratch = (shape: AttentionShape) => rowScratch(shape) + int8QueryBytes(shape);

/**
 * Quantizes one head's query, multiplied by the step of each dim, to int8 with a scale. The constant is the sum of
 * query x value of code 0. It uses the exact query for the middle of the range and the rounded one for the distance
 * from there, so that rounding errors are multiplied by integers centered at zero.
 */
function quantizeQuery(
  k: Kernel,
  shape: AttentionShape,
  g: number,
  query: I32,
  integers: CodeIntegers,
  range: Range | undefined,
  out: I32,
): void {
  const { headDim } = shape;
  const middle = integers.max / 2;
  const from = k.i32(query);
  const to = k.i32(i32.add(out, g * headDim));
  const [max, constant, sum] = [k.v128(f32x4.const(TINY)), k.v128(v128.zero), k.v128(v128.zero)];
  const [value, step] = [k.v128(), k.v128()];
  const stepOf = (i: Local<'i32'>) => range?.step(i) ?? f32x4.const(integers.step);
  k.for(0, 4 * headDim, 16, i => {
    k.set(value, v128.load(i32.add(from, i)));
    k.set(step, stepOf(i));
    if (range) {
      const center = f32x4.add(range.min(i), f32x4.mul(step, f32x4.const(middle)));
      k.set(constant, f32x4.add(constant, f32x4.mul(value, center)));
    }
    k.set(max, f32x4.max(max, f32x4.abs(f32x4.mul(value, step))));
  });
  k.set(max, f32x4.mul(max, f32x4.const(1 / MAX_QUERY)));
  const limit = maxMagnitudeSum(integers, headDim);
  if (limit) {
    const magnitude = k.v128(integers.narrow ? maxHalfMagnitude(k, shape, from) : maxLaneMagnitude(k, shape, from));
    k.set(max, f32x4.max(max, f32x4.mul(magnitude, f32x4.const(integers.step / limit))));
  }
  const scale = k.f32(reduceMax(k, max));
  const inverse = k.v128(f32x4.splat(f32.div(f32.const(1), scale)));
  const words = [0, 1, 2, 3].map(() => k.v128());
  const part = k.i32();
  k.for(0, 4 * headDim, 64, i => {
    words.forEach((word, n) => {
      k.set(part, i32.add(i, 16 * n));
      const scaled = f32x4.mul(f32x4.mul(v128.load(i32.add(from, part)), stepOf(part)), inverse);
      k.set(word, roundToI32(scaled));
      k.set(sum, i32x4.add(sum, word));
    });
    k.do(v128.store(to, i8x16.narrowS(i16x8.narrowS(words[0], words[1]), i16x8.narrowS(words[2], words[3]))));
    k.increment(to, 16);
  });
  const offset = f32.mul(f32.mul(reduceAdd(k, f32x4.fromI32(sum)), scale), f32.const(middle));
  k.do(f32.store(out, scale, scaleOffset(shape, g)));
  k.do(f32.store(out, f32.sub(reduceAdd(k, constant), offset), scaleOffset(shape, g) + 4));
}

/** Magnitudes of the query dims with this sign, summed by position modulo 16: four vectors of four. */
const magnitudesBySign = (k: Kernel, query: I32, sign: 1 | -1, from: number, to: number) =>
  [0, 1, 2, 3].map(n => {
    const vectors = [];
    for (let dim = from; dim < to; dim += 16) {
      const four = v128.load(query, 4 * (dim + 4 * n));
      vectors.push(f32x4.max(sign > 0 ? four : f32x4.neg(four), v128.zero));
    }
    return k.v128(vectors.reduce(f32x4.add));
  });

/** The largest sum of magnitudes in one lane of a part. */
function maxLaneMagnitude(k: Kernel, { headDim, relaxed }: AttentionShape, query: I32): V128 {
  const max = k.v128(v128.zero);
  for (let first = 0; first < headDim; first += 16 * VECTORS_PER_PART)
    for (const sign of SIGNS) {
      const magnitudes = magnitudesBySign(k, query, sign, first, Math.min(headDim, first + 16 * VECTORS_PER_PART));
      for (const lanes of dotLaneSumsF32(magnitudes, relaxed)) k.set(max, f32x4.max(max, lanes));
    }
  return max;
}
const SIGNS = [1, -1] as const;

/** The larger sum of magnitudes of the lower and the upper half of the lanes. */
function maxHalfMagnitude(k: Kernel, { headDim, relaxed }: AttentionShape, query: I32): V128 {
  const sums = SIGNS.flatMap(sign => {
    const lanes = dotLaneSumsF32(magnitudesBySign(k, query, sign, 0, headDim), relaxed);
    // With relaxed SIMD each sum appears twice.
    const halfSums = relaxed
      ? [f32x4.add(lanes[0], lanes[1]), f32x4.add(lanes[2], lanes[3])].map(x => f32x4.mul(x, f32x4.const(0.5)))
      : lanes;
    return halfSums.map(half => k.f32(reduceAdd(k, half)));
  });
  return f32x4.splat(sums.reduce<F32>(f32.max, sums[0]));
}

/** scores[head][token] = (int8 query . integers x scale + constant) x norm for `count` tokens from `token` on. */
function scoreCodeRows(
  k: Kernel,
  shape: AttentionShape,
  rows: CodeRows,
  integers: CodeIntegers,
  block: I32,
  query: I32,
  partialSums: I32,
  token: I32,
  count: number,
  norms: ((token: I32) => V128) | undefined,
  scores: I32,
  prefetchNext: () => void,
): void {
  const { headDim, group, pageTokens, relaxed } = shape;
  const { table, twosComplement } = integers;
  const ones = i16x8.const(1);
  const addDot = addDotInt8(shape);
  const integerTable = table && k.v128(i8x16.const(...table));
  const parts = rowParts(shape);
  const sumOffset = (part: number, g: number, r: number) => 16 * ((part * group + g) * 4 + r);
  const addresses = rowAddresses(k, rows, block, token);
  const pair = [0, 1].map(() => Array.from({ length: VECTORS_PER_PART }, () => k.v128()));
  const queries = pair[0].map(() => k.v128());
  const norm = k.v128();
  const to = k.i32();
  k.for(token, i32.add(token, count), 4, t => {
    // Two tokens share the loads of a query. Sums go to memory: stores bound how far V8 moves loads ahead.
    for (let r = 0; r < 4; r += 2) {
      parts.forEach(([first, count], part) => {
        const partQueries = queries.slice(0, count);
        for (const [i, codes] of pair.entries())
          for (const [v, code] of rowCodes(k, rows, addresses, r + i, [first, count], twosComplement).entries())
            k.set(codes[v], integerTable ? swizzle(relaxed)(integerTable, code) : code);
        for (let g = 0; g < group; g++) {
          for (const [v, vector] of partQueries.entries())
            k.set(vector, v128.load(query, g * headDim + 16 * (first + v)));
          pair.forEach((codes, i) => {
            const sums = partQueries.reduce<V128 | undefined>(
              (sum, vector, v) => addDot(sum, vector, codes[v]),
              undefined,
            );
            k.do(v128.store(partialSums, sums!, sumOffset(part, g, r + i)));
          });
        }
      });
    }
    prefetchNext();
    k.set(to, index(scores, 4, t));
    if (norms) k.set(norm, norms(t));
    for (let g = 0; g < group; g++) {
      const dots = [0, 1, 2, 3].map(r => {
        const sums = parts.map((_, part) => dotSumsI32(shape, v128.load(partialSums, sumOffset(part, g, r)), ones));
        return k.v128(sums.reduce(i32x4.add));
      });
      const dot = f32x4.fromI32(horizontalSumsI32(k, dots, integers.narrow));
      const [scale, constant] = [0, 4].map(offset => v128.load32Splat(query, scaleOffset(shape, g) + offset));
      const score = multiplyAdd(relaxed)(dot, scale, constant);
      k.do(v128.store(to, norms ? f32x4.mul(score, norm) : score, 4 * g * pageTokens));
    }
    for (const [p, address] of addresses.entries()) k.increment(address, rows[p].blockBytes);
  });
}
