/**
 * Keys in rows (tq3, tq4, the uniform siblings, KIVI, OScaR): int8 queries times whole numbers, which are the codes or
 * what a table makes of them. A channel's step is multiplied into the query, once for every group of tokens that
 * shares it.
 */
import type { Fragment, ScalarsFragment } from '../../fragment.ts';
import { type F32, f32, f32x4, type I32, i8x16, i16x8, i32, i32x4, type Local, type V128, v128 } from '../emit.ts';
import type { Kernel } from '../module.ts';
import { dotBytes, halfToFloat, laneSums, loadHalf4, max4, multiplyAdd, sum4, sumOfFours, swizzle } from '../ops.ts';
import type { AttendShape, KeyFragment } from './attend.ts';
import { type CodeRows, codeRowsOf, rowAddresses, rowCodes } from './code-rows.ts';
import { applyMatrix, dotMean } from './domain.ts';
import { addConstants } from './generic.ts';
import { byteLevels } from './sums.ts';
import { touch } from './touch.ts';
import { blockAt, type Tables } from './unpack.ts';

/**
 * Prepared queries: f32 in the codec's domain, [head][headDim], then what the mean adds. `spare` has room for int8
 * queries of a group, and a scale and a constant a head.
 */
export function linearKeys(
  fragment: Fragment,
  shape: AttendShape,
  tables: Tables,
  spare: () => I32,
): KeyFragment | undefined {
  const { page } = fragment;
  const levels = page.kind === 'levels';
  if (shape.precise || !(levels || (page.kind === 'affine' && page.axis === 'channel'))) return undefined;
  const { headDim, group, pageTokens } = shape;
  const rows = codeRowsOf(page.codes, pageTokens, headDim);
  if (!rows) return undefined;
  const numbers = levels ? levelNumbers(page.levels, page.uniform, headDim) : codeNumbers(page.codes.bits, headDim);
  const floats = 4 * group * headDim;
  const constantsAt = levels ? byteQueryBytes(shape) : floats;
  return {
    queryBytes: constantsAt + 16 * Math.ceil(group / 4),
    prepare(k, queries, head, out) {
      const to = k.i32(out);
      const mapped = k.i32(levels ? i32.add(queries, floats) : to);
      const one = k.v128(f32x4.const(1));
      for (let g = 0; g < group; g++) {
        const query = k.i32(i32.add(queries, 4 * headDim * g));
        const own = k.i32(levels ? mapped : i32.add(mapped, 4 * headDim * g));
        applyMatrix(k, tables.matrix, headDim, headDim, query, one, own);
        if (levels) byteQuery(k, shape, g, own, numbers, undefined, to);
        const constant = tables.mean === undefined ? f32.const(0) : dotMean(k, tables.mean, head, headDim, query);
        k.do(f32.store(to, constant, constantsAt + 4 * g));
      }
    },
    open() {},
    scores(k, pageAt, head, query, scores, _turn, ahead) {
      const block = k.i32(blockAt(fragment, pageAt, head));
      const room = k.i32(spare());
      const touchNext = touch(k, ahead, pageTokens / 4);
      const score = (integers: I32, token: I32, count: number, norms?: (token: I32) => V128) =>
        scoreCodeRows(k, shape, rows, numbers, block, integers, room, token, count, norms, scores, touchNext);
      if (page.kind === 'levels') score(query, 0, pageTokens, normsOf(page.norms, block));
      else if (page.kind === 'affine') {
        const { norms, group: tokens } = page;
        const factors = norms && normsOf(norms, norms.per === 'page' ? pageAt : block);
        const ranges = k.i32(i32.add(block, page.ranges));
        const pair = (i: Local<'i32'>) => v128.load(i32.add(ranges, i));
        const range = {
          least: (i: Local<'i32'>) => halfToFloat(pair(i)),
          step: (i: Local<'i32'>) => halfToFloat(i32x4.shrU(pair(i), 16)),
        };
        const integers = k.i32(i32.add(room, rowScratch(shape)));
        k.for(0, pageTokens, tokens, t => {
          for (let g = 0; g < group; g++)
            byteQuery(k, shape, g, i32.add(query, 4 * headDim * g), numbers, range, integers);
          score(integers, t, tokens, factors);
          k.increment(ranges, 4 * headDim);
        });
      }
      if (tables.mean !== undefined) addConstants(k, query, constantsAt, group, scores, pageTokens);
    },
  };
}

/** What codes are read as: whole numbers from 0 to `most`, of which the middle stands for zero; 1 is worth `step`. */
interface Numbers {
  most: number;
  step: number;
  /** By code; absent where a code is its number, or with `complement` will be. */
  table?: number[];
  complement: boolean;
  /** Half of the lanes of a row may be added in 16 bits. */
  narrow: boolean;
}

/** Vectors of a row whose products are added in 16 bits. */
const PART = 4;

/** The largest number of an int8 query. */
const TOP = 127;

/**
 * The most that sizes of queries of one sign may be together that are added in 16 bits: of half of the lanes of a row, or
 * of a lane of a part. None if they always fit.
 */
function sizeLimit(numbers: Numbers, headDim: number): number | undefined {
  const dims = numbers.narrow ? headDim / 2 : 2 * PART;
  const limit = Math.floor(32767 / numbers.most);
  // A query is rounded up by no more than a half.
  return dims * TOP <= limit ? undefined : limit - dims / 2;
}

/** Codes with a range a channel: queries change with every group of tokens, and are not to be measured anew. */
function codeNumbers(bits: number, headDim: number): Numbers {
  const numbers = { most: 2 ** bits - 1, step: 1, complement: false, narrow: true };
  return { ...numbers, narrow: sizeLimit(numbers, headDim) === undefined };
}

/** Levels are even about zero; those that are evenly spaced, too, are told apart by counting them. */
function levelNumbers(levels: Float32Array, uniform: boolean, dims: number): Numbers {
  const most = levels.length - 1;
  if (uniform) return { most, step: (2 * Math.max(...levels)) / most, complement: true, narrow: true };
  const { bytes, step } = byteLevels(levels, dims);
  const middle = Math.max(...bytes);
  const table = Array.from({ length: 16 }, (_, code) => bytes[code % levels.length] + middle);
  return { most: 2 * middle, step, table, complement: false, narrow: false };
}

/** Of each dim, by the byte offset of four dims' floats: the value of code 0, and of one step. */
interface Range {
  least(i: Local<'i32'>): V128;
  step(i: Local<'i32'>): V128;
}

const normsOf =
  ({ offset, bytes }: ScalarsFragment, base: I32) =>
  (token: I32) =>
    bytes === 2
      ? loadHalf4(i32.add(i32.add(base, offset), i32.mul(token, 2)))
      : v128.load(i32.add(i32.add(base, offset), i32.mul(token, 4)));

/** Vectors of a row, part by part: [first, count]. */
const partsOf = ({ headDim }: AttendShape) =>
  Array.from({ length: Math.ceil(headDim / 16 / PART) }, (_, p) => [p * PART, Math.min(PART, headDim / 16 - p * PART)]);

/** Where a head's int8 query lies, and its scale and its constant. */
const scaleAt = ({ group, headDim }: AttendShape, g: number) => group * headDim + 8 * g;
const byteQueryBytes = (shape: AttendShape) => 16 * Math.ceil(scaleAt(shape, shape.group) / 16);

/** Sums of products of four tokens, [part][head][token] of eight each. */
const rowScratch = (shape: AttendShape) => partsOf(shape).length * shape.group * 4 * 16;
export const linearKeyScratch = (shape: AttendShape) => rowScratch(shape) + byteQueryBytes(shape);

/**
 * One head's query times the step of each dim, as int8 with a scale; and a constant: the sum of query x the value of
 * code 0. There the rounded query is used for the middle of the codes: its errors then meet numbers about zero.
 */
function byteQuery(
  k: Kernel,
  shape: AttendShape,
  g: number,
  query: I32,
  numbers: Numbers,
  range: Range | undefined,
  out: I32,
): void {
  const { headDim } = shape;
  const middle = numbers.most / 2;
  const from = k.i32(query);
  const to = k.i32(i32.add(out, g * headDim));
  const [largest, constant, sum] = [k.v128(f32x4.const(1e-30)), k.v128(v128.zero), k.v128(v128.zero)];
  const [value, each] = [k.v128(), k.v128()];
  const stepOf = (i: Local<'i32'>) => range?.step(i) ?? f32x4.const(numbers.step);
  k.for(0, 4 * headDim, 16, i => {
    k.set(value, v128.load(i32.add(from, i)));
    k.set(each, stepOf(i));
    if (range) {
      const centre = f32x4.add(range.least(i), f32x4.mul(each, f32x4.const(middle)));
      k.set(constant, f32x4.add(constant, f32x4.mul(value, centre)));
    }
    k.set(largest, f32x4.max(largest, f32x4.abs(f32x4.mul(value, each))));
  });
  k.set(largest, f32x4.mul(largest, f32x4.const(1 / TOP)));
  const limit = sizeLimit(numbers, headDim);
  if (limit) {
    const sizes = k.v128(numbers.narrow ? halfSizes(k, shape, from) : laneSizes(k, shape, from));
    k.set(largest, f32x4.max(largest, f32x4.mul(sizes, f32x4.const(numbers.step / limit))));
  }
  const scale = k.f32(max4(k, largest));
  const inverse = k.v128(f32x4.splat(f32.div(f32.const(1), scale)));
  const words = [0, 1, 2, 3].map(() => k.v128());
  const part = k.i32();
  k.for(0, 4 * headDim, 64, i => {
    words.forEach((word, n) => {
      k.set(part, i32.add(i, 16 * n));
      const scaled = f32x4.mul(f32x4.mul(v128.load(i32.add(from, part)), stepOf(part)), inverse);
      k.set(word, i32x4.sub(f32x4.add(scaled, f32x4.const(12582912)), i32x4.const(0x4b400000)));
      k.set(sum, i32x4.add(sum, word));
    });
    k.do(v128.store(to, i8x16.narrowS(i16x8.narrowS(words[0], words[1]), i16x8.narrowS(words[2], words[3]))));
    k.increment(to, 16);
  });
  const offset = f32.mul(f32.mul(sum4(k, f32x4.fromI32(sum)), scale), f32.const(middle));
  k.do(f32.store(out, scale, scaleAt(shape, g)));
  k.do(f32.store(out, f32.sub(sum4(k, constant), offset), scaleAt(shape, g) + 4));
}

/** Sizes of dims of a query with this sign, added up by their place of four in 16 dims. */
const sizesOf = (k: Kernel, query: I32, sign: 1 | -1, from: number, to: number) =>
  [0, 1, 2, 3].map(n => {
    const own = [];
    for (let dim = from; dim < to; dim += 16) {
      const four = v128.load(query, 4 * (dim + 4 * n));
      own.push(f32x4.max(sign > 0 ? four : f32x4.neg(four), v128.zero));
    }
    return k.v128(own.reduce(f32x4.add));
  });

/** The largest sum of sizes of a query that meet in a lane of a part. */
function laneSizes(k: Kernel, { headDim, relaxed }: AttendShape, query: I32): V128 {
  const largest = k.v128(v128.zero);
  for (let first = 0; first < headDim; first += 16 * PART)
    for (const sign of SIGNS) {
      const sizes = sizesOf(k, query, sign, first, Math.min(headDim, first + 16 * PART));
      for (const lanes of laneSums(sizes, relaxed)) k.set(largest, f32x4.max(largest, lanes));
    }
  return largest;
}
const SIGNS = [1, -1] as const;

/** The larger one of the sums of sizes of a query that meet in the lower, and in the upper half of the lanes. */
function halfSizes(k: Kernel, { headDim, relaxed }: AttendShape, query: I32): V128 {
  const sums = SIGNS.flatMap(sign => {
    const lanes = laneSums(sizesOf(k, query, sign, 0, headDim), relaxed);
    // In relaxed lanes each sum is there twice.
    const halves = relaxed
      ? [f32x4.add(lanes[0], lanes[1]), f32x4.add(lanes[2], lanes[3])].map(x => f32x4.mul(x, f32x4.const(0.5)))
      : lanes;
    return halves.map(half => k.f32(sum4(k, half)));
  });
  return f32x4.splat(sums.reduce<F32>(f32.max, sums[0]));
}

/** scores[head][token] = (int8 query . numbers x scale + constant) x norm for `count` tokens from `token` on. */
function scoreCodeRows(
  k: Kernel,
  shape: AttendShape,
  rows: CodeRows,
  numbers: Numbers,
  block: I32,
  integers: I32,
  room: I32,
  token: I32,
  count: number,
  norms: ((token: I32) => V128) | undefined,
  scores: I32,
  touchNext: () => void,
): void {
  const { headDim, group, pageTokens, relaxed } = shape;
  const { table, complement } = numbers;
  const ones = i16x8.const(1);
  const numberOf = table && k.v128(i8x16.const(...table));
  const parts = partsOf(shape);
  const sumAt = (part: number, g: number, r: number) => 16 * ((part * group + g) * 4 + r);
  const at = rowAddresses(k, rows, block, token);
  const pair = [0, 1].map(() => Array.from({ length: PART }, () => k.v128()));
  const queries = pair[0].map(() => k.v128());
  const norm = k.v128();
  const to = k.i32();
  k.for(token, i32.add(token, count), 4, t => {
    // Two tokens at a time share the loads of a query. Sums go to memory: what V8 can keep in registers ends at a store.
    for (let r = 0; r < 4; r += 2) {
      parts.forEach(([first, count], part) => {
        const own = queries.slice(0, count);
        pair.forEach((codes, i) => {
          rowCodes(k, rows, at, r + i, [first, count], complement).forEach((code, v) => {
            k.set(codes[v], numberOf ? swizzle(relaxed)(numberOf, code) : code);
          });
        });
        for (let g = 0; g < group; g++) {
          own.forEach((query, v) => {
            k.set(query, v128.load(integers, g * headDim + 16 * (first + v)));
          });
          pair.forEach((codes, i) => {
            const products = own.map((query, v) => dotBytes(relaxed)(query, codes[v]));
            k.do(v128.store(room, products.reduce(i16x8.add), sumAt(part, g, r + i)));
          });
        }
      });
    }
    touchNext();
    k.set(to, i32.add(scores, i32.mul(t, 4)));
    if (norms) k.set(norm, norms(t));
    for (let g = 0; g < group; g++) {
      const dots = [0, 1, 2, 3].map(r => {
        const sums = parts.map((_, part) => i32x4.dot(v128.load(room, sumAt(part, g, r)), ones));
        return k.v128(sums.reduce(i32x4.add));
      });
      const dot = f32x4.fromI32(sumOfFours(k, dots, numbers.narrow));
      const [scale, constant] = [0, 4].map(offset => v128.load32Splat(integers, scaleAt(shape, g) + offset));
      const score = multiplyAdd(relaxed)(dot, scale, constant);
      k.do(v128.store(to, norms ? f32x4.mul(score, norm) : score, 4 * g * pageTokens));
    }
    at.forEach((address, p) => {
      k.increment(address, rows[p].lane);
    });
  });
}
