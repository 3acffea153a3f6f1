/**
 * Values of KIVI and OScaR in columns, with a range a token and group of dims. Codes are counted from the middle of the
 * range, where rounded weights do least harm: the step goes into the weights, the middle into a constant.
 */
import type { Fragment } from '../../fragment.ts';
import { f32, f32x4, type I32, i32, i32x4, lanes32, v128 } from '../emit.ts';
import { halfToFloat } from '../ops.ts';
import type { AttendShape, ValueFragment } from './attend.ts';
import { columnsOf } from './columns.ts';
import { stateBytes, takePage } from './softmax.ts';
import { roomAt, roomFor, sumColumns, sumScratch } from './sums.ts';
import { touch } from './touch.ts';
import { blockAt } from './unpack.ts';
import { factorBytes, factorWords, pageBytes, pagePowers, powersTimes } from './weights.ts';

export function linearValues(fragment: Fragment, shape: AttendShape, spare: () => I32): ValueFragment | undefined {
  const { page } = fragment;
  if (page.kind !== 'affine' || page.axis !== 'token' || page.norms || shape.precise) return undefined;
  const { headDim, pageTokens } = shape;
  const columns = columnsOf(page.codes, pageTokens, headDim);
  if (!columns) return undefined;
  const parts = headDim / page.group;
  const most = 2 ** page.codes.bits - 1;
  const { narrow, limit } = roomFor(most, pageTokens);
  const kept = (part: number) => i32.add(spare(), sumScratch(shape) + part * rangeBytes(pageTokens));
  return {
    codedDim: headDim,
    open(k, pageAt, head) {
      const block = k.i32(blockAt(fragment, pageAt, head));
      const pairs = [0, 1, 2, 3].map(() => k.v128());
      const step = k.v128();
      for (let part = 0; part < parts; part++) {
        const from = k.i32(i32.add(block, page.ranges + 4 * part));
        const to = k.i32(kept(part));
        k.for(0, pageTokens, 4, () => {
          pairs.forEach((pair, n) => {
            k.set(pair, v128.load32Zero(from, 4 * parts * n));
          });
          const [a, b] = [0, 2].map(n => v128.shuffle(pairs[n], pairs[n + 1], lanes32(0, 4, 1, 1)));
          k.set(pairs[0], v128.shuffle(a, b, lanes32(0, 1, 4, 5)));
          k.set(step, halfToFloat(i32x4.shrU(pairs[0], 16)));
          const middle = f32x4.add(halfToFloat(pairs[0]), f32x4.mul(step, f32x4.const(most / 2)));
          k.do(v128.store(to, step), v128.store(to, middle, 4 * pageTokens));
          k.increment(from, 16 * parts);
          k.increment(to, 16);
        });
        factorWords(k, shape, kept(part), i32.add(kept(part), 8 * pageTokens));
      }
    },
    sum(k, pageAt, head, scores, state, ahead) {
      const block = k.i32(blockAt(fragment, pageAt, head));
      const weights = k.i32(spare());
      const room = k.i32(i32.add(weights, roomAt(shape)));
      const touchNext = touch(k, ahead, headDim / 4);
      const taken = pagePowers(k, shape, scores, room).map(({ top, sum }, g) =>
        takePage(k, i32.add(state, g * stateBytes(headDim)), top, sum),
      );
      for (let part = 0; part < parts; part++) {
        const middles = k.i32(i32.add(kept(part), 4 * pageTokens));
        const factors = k.i32(i32.add(kept(part), 8 * pageTokens));
        const one = k.f32(f32.load(factors, 2 * pageTokens));
        const made = pageBytes(k, shape, scores, weights, { factors, limit, counted: true });
        const worth = taken.map(({ correction, step }, g) => {
          const all = k.v128(f32x4.mul(made[g].step, f32x4.splat(one)));
          const excess = f32x4.mul(f32x4.splat(f32.mul(made[g].total(), f32.const(most / 2))), all);
          const middle = f32x4.splat(powersTimes(k, shape, i32.add(scores, 4 * g * pageTokens), middles));
          const constant = f32x4.mul(step, f32x4.sub(middle, excess));
          return { correction, unit: k.v128(f32x4.mul(step, all)), constant: k.v128(constant) };
        });
        sumColumns(k, columns, shape, block, weights, worth, state, {
          look: codes => codes,
          signed: false,
          narrow,
          from: part * page.group,
          to: (part + 1) * page.group,
          touchNext,
        });
      }
    },
  };
}

/** Of a part: steps, middles, steps as factors. */
const rangeBytes = (pageTokens: number) => 8 * pageTokens + factorBytes(pageTokens);
export const linearValueScratch = ({ page }: Fragment, { headDim, pageTokens }: AttendShape) =>
  page.kind === 'affine' ? (headDim / page.group) * rangeBytes(pageTokens) : 0;
