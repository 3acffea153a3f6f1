/**
 * Values of table codecs in columns (tq1 to tq4, and their uniform siblings): levels as bytes, one swizzle for 16 tokens, or
 * codes as they are; times weights as bytes (sums.ts).
 */
import type { Fragment } from '../../fragment.ts';
import { f32, f32x4, type I32, i8x16, i32, type Local, type V128, v128 } from '../emit.ts';
import { loadHalf4, swizzle } from '../ops.ts';
import type { AttendShape, ValueFragment } from './attend.ts';
import { type Columns, columnsOf } from './columns.ts';
import { stateBytes, takePage } from './softmax.ts';
import { byteLevels, roomAt, roomFor, sumColumns, sumScratch } from './sums.ts';
import { touch } from './touch.ts';
import { blockAt } from './unpack.ts';
import { factorBytes, factorWords, pageBytes, pagePowers } from './weights.ts';

export type Levels = Fragment['page'] & { kind: 'levels' };

/** Four norms as f32. */
export const loadNorms = ({ norms }: Levels, block: I32, token: Local<'i32'>, offset: number): V128 =>
  norms.bytes === 2
    ? loadHalf4(i32.add(i32.add(block, norms.offset), i32.mul(token, 2)), 2 * offset)
    : v128.load(i32.add(i32.add(block, norms.offset), i32.mul(token, 4)), 4 * offset);

/** Norms go into the weights. Levels become bytes; those that are evenly spaced are counted. */
export function tableValues(fragment: Fragment, shape: AttendShape, spare: () => I32): ValueFragment | undefined {
  const page = fragment.page;
  if (page.kind !== 'levels' || shape.precise) return undefined;
  const { headDim, pageTokens } = shape;
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
      k.for(0, pageTokens, 16, t => {
        for (let n = 0; n < 16; n += 4)
          k.do(v128.store(i32.add(norms, i32.mul(t, 4)), loadNorms(page, block, t, n), 4 * n));
      });
      factorWords(k, shape, norms, i32.add(norms, 4 * pageTokens));
    },
    sum(k, pageAt, head, scores, state, ahead) {
      const block = k.i32(blockAt(fragment, pageAt, head));
      const weights = k.i32(spare());
      const room = k.i32(i32.add(weights, roomAt(shape)));
      const factors = k.i32(i32.add(normsAt(), 4 * pageTokens));
      const powers = pagePowers(k, shape, scores, room);
      const made = pageBytes(k, shape, scores, weights, { factors, limit, counted: page.uniform });
      const one = k.v128(f32x4.splat(f32.mul(f32.load(factors, 2 * pageTokens), f32.const(step))));
      const worth = powers.map(({ top, sum }, g) => {
        const taken = takePage(k, i32.add(state, g * stateBytes(headDim)), top, sum);
        const unit = k.v128(f32x4.mul(taken.step, f32x4.mul(made[g].step, one)));
        // Counted from the lowest: what half of the count is too much.
        const excess = () => f32x4.mul(f32x4.splat(f32.mul(made[g].total(), f32.const(-most / 2))), unit);
        return { correction: taken.correction, unit, constant: page.uniform ? k.v128(excess()) : undefined };
      });
      sumColumns(k, columns, shape, block, weights, worth, state, {
        ...look,
        narrow,
        touchNext: touch(k, ahead, headDim / 4),
      });
    },
  };
}

/** Norms, and these as factors. */
export const tableValueScratch = ({ pageTokens }: AttendShape) => 4 * pageTokens + factorBytes(pageTokens);

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
