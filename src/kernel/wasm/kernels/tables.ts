/**
 * Table codecs read packed (tq1 to tq4, values of their uniform siblings): a code is an index into 16 entries, and one
 * swizzle serves 16 tokens.
 *
 * Keys: for each column a table of query x level as bytes; their sum over all columns is the score. Values: levels as
 * bytes, times weights as bytes (sums.ts).
 */
import type { Fragment } from '../../fragment.ts';
import { f32, f32x4, type I32, i8x16, i16x8, i32, i32x4, type Local, lanes16, type V128, v128 } from '../emit.ts';
import type { Kernel } from '../module.ts';
import { loadHalf4, swizzle } from '../ops.ts';
import type { AttendShape, ValueFragment } from './attend.ts';
import { type Columns, codesAt, columnAddresses, columnsOf } from './columns.ts';
import { stateBytes, takePage } from './softmax.ts';
import { byteLevels, roomAt, roomFor, sumColumns, sumScratch } from './sums.ts';
import { blockAt } from './unpack.ts';
import { pageWeights, roughLog2, sumOfBytes } from './weights.ts';

/** Heads whose sums are kept in registers together, and columns a turn. */
export const HEADS = 4;
export const TURN = 4;

export const INTERLEAVE = [lanes16(0, 8, 1, 9, 2, 10, 3, 11), lanes16(4, 12, 5, 13, 6, 14, 7, 15)];

export type Levels = Fragment['page'] & { kind: 'levels' };

/** Four norms as f32. */
export const loadNorms = ({ norms }: Levels, block: I32, token: Local<'i32'>, offset: number): V128 =>
  norms.bytes === 2
    ? loadHalf4(i32.add(i32.add(block, norms.offset), i32.mul(token, 2)), 2 * offset)
    : v128.load(i32.add(i32.add(block, norms.offset), i32.mul(token, 4)), 4 * offset);

export interface ScoreOptions {
  /** Columns, a multiple of TURN. */
  count: I32;
  /** What the scores of four tokens are multiplied by, `offset` behind `token`. */
  factor?: (token: Local<'i32'>, offset: number) => V128;
}

/** Scores of a page: the sums of table entries, times the scale of a head's tables. */
export function scoreColumns(
  k: Kernel,
  columns: Pick<Columns, 'span' | 'planes'>,
  { group, pageTokens, relaxed }: AttendShape,
  block: I32,
  query: I32,
  heads: number[],
  scalesAt: number,
  scores: I32,
  { count, factor }: ScoreOptions,
): void {
  const lookUp = swizzle(relaxed);
  const bias = k.v128(i32x4.splat(i32.mul(count, 128)));
  // Bytes are summed as the even and odd halves of 16-bit lanes: `raw` takes both, `odd` the upper one alone.
  const sums = heads.map(() => ({ raw: k.v128(), odd: k.v128() }));
  const index = Array.from({ length: TURN }, () => k.v128());
  const entry = k.v128();
  k.for(0, pageTokens, columns.span, token => {
    for (let n = 0; n < columns.span / 16; n++) {
      const at = columnAddresses(k, columns, block, 0, token);
      const tables = k.i32(query);
      for (const { raw, odd } of sums) {
        k.set(raw, v128.zero);
        k.set(odd, v128.zero);
      }
      k.for(0, count, TURN, () => {
        index.forEach((local, c) => {
          k.set(
            local,
            codesAt(columns, at, p => c * columns.planes[p].lineBytes, n),
          );
        });
        heads.forEach((head, i) => {
          const { raw, odd } = sums[i];
          index.forEach((codes, c) => {
            k.set(entry, lookUp(v128.load(tables, 16 * (c * group + head)), codes));
            k.set(raw, i16x8.add(raw, entry));
            k.set(odd, i16x8.add(odd, i16x8.shrU(entry, 8)));
          });
        });
        at.forEach((address, p) => {
          k.increment(address, TURN * columns.planes[p].lineBytes);
        });
        k.increment(tables, TURN * group * 16);
      });
      heads.forEach((head, i) => {
        const { raw, odd } = sums[i];
        k.set(raw, i16x8.sub(raw, i16x8.shl(odd, 8)));
        const scale = k.v128(v128.load32Splat(query, scalesAt + 4 * head));
        INTERLEAVE.forEach((lanes, half) => {
          const eight = k.v128(v128.shuffle(raw, odd, lanes));
          [i32x4.extendLowU(eight), i32x4.extendHighU(eight)].forEach((four, quarter) => {
            const offset = 16 * n + 8 * half + 4 * quarter;
            const value = f32x4.mul(f32x4.fromI32(i32x4.sub(four, bias)), scale);
            const at = i32.add(scores, i32.mul(token, 4));
            const score = factor ? f32x4.mul(value, factor(token, offset)) : value;
            k.do(v128.store(at, score, 4 * (head * pageTokens + offset)));
          });
        });
      });
    }
  });
}

/** Norms go into the weights. Levels become bytes; those that are evenly spaced are counted. */
export function tableValues(fragment: Fragment, shape: AttendShape, spare: () => I32): ValueFragment | undefined {
  const page = fragment.page;
  if (page.kind !== 'levels' || shape.precise) return undefined;
  const { headDim, group, pageTokens } = shape;
  const columns = columnsOf(page.codes, pageTokens, headDim);
  if (!columns) return undefined;
  const { step, most, ...look } = page.uniform
    ? countedLevels(page.levels)
    : lookedUpLevels(page.levels, columns, shape);
  const { narrow, limit } = roomFor(most, pageTokens);
  const normsAt = () => i32.add(spare(), sumScratch(shape));
  return {
    codedDim: headDim,
    open(k, pageAt, head) {
      const block = k.i32(blockAt(fragment, pageAt, head));
      const norms = k.i32(normsAt());
      const norm = k.v128();
      k.for(0, pageTokens, 4, t => {
        k.set(norm, loadNorms(page, block, t, 0));
        k.do(v128.store(norms, norm), v128.store(norms, roughLog2(norm), 4 * pageTokens));
        k.increment(norms, 16);
      });
    },
    sum(k, pageAt, head, scores, state) {
      const block = k.i32(blockAt(fragment, pageAt, head));
      const weights = k.i32(spare());
      const room = k.i32(i32.add(weights, roomAt(shape)));
      const factors = { values: k.i32(normsAt()), logs: k.i32(i32.add(normsAt(), 4 * pageTokens)) };
      const worth = Array.from({ length: group }, (_, g) => {
        const from = k.i32(i32.add(scores, 4 * g * pageTokens));
        const bytes = k.i32(i32.add(weights, g * pageTokens));
        const made = pageWeights(k, shape, from, bytes, room, { factors, limit });
        const taken = takePage(k, i32.add(state, g * stateBytes(headDim)), made.top, made.sum);
        const unit = k.v128(f32x4.mul(taken.step, f32x4.const(step)));
        // Counted from the lowest: what half of the count is too much.
        const excess = () => f32x4.mul(f32x4.splat(f32.mul(sumOfBytes(k, made), f32.const(-most / 2))), unit);
        return { correction: taken.correction, unit, constant: page.uniform ? k.v128(excess()) : undefined };
      });
      sumColumns(k, columns, shape, block, weights, worth, state, { ...look, narrow });
    },
  };
}

/** Norms and their logarithms. */
export const tableValueScratch = ({ pageTokens }: AttendShape) => 8 * pageTokens;

function countedLevels(levels: Float32Array) {
  const most = levels.length - 1;
  return {
    step: (2 * Math.max(...levels)) / most,
    most,
    look: (codes: V128) => codes,
    signed: false,
    complement: true,
  };
}

function lookedUpLevels(levels: Float32Array, { dims }: Columns, { headDim, relaxed }: AttendShape) {
  const { bytes, step } = byteLevels(levels, headDim);
  const tables = Array.from({ length: dims }, (_, d) => {
    const level = (e: number) => bytes[(dims === 1 ? e : (e >> (2 * d)) & 3) % bytes.length];
    return i8x16.const(...Array.from({ length: 16 }, (_, e) => level(e)));
  });
  const look = (codes: V128, d: number) => swizzle(relaxed)(tables[d], codes);
  return { step, most: Math.max(...bytes), look, signed: true, complement: false };
}
