/**
 * Values of KIVI and OScaR in columns, with a range per token and group of dims. Steps are multiplied into the
 * probabilities. Codes are relative to the middle of the range, which minimizes the effect of rounded probabilities;
 * the middles contribute an offset.
 */
import type { PageLayout } from '../../page-layout.ts';
import { f32, f32x4, type I32, i32, i32x4, lanes32, v128 } from '../emit.ts';
import { lowF16ToF32 } from '../ops.ts';
import type { AttentionShape, ValueEmitter } from './attend.ts';
import { codeColumns } from './code-columns.ts';
import { accumulatorLimits, columnSumScratch, sumColumns, updateScratchOffset } from './column-sums.ts';
import { blockAddress } from './dequantize-page.ts';
import { addPageToState, stateBytes } from './online-softmax.ts';
import { prefetcher } from './prefetch.ts';
import {
  dotExponentials,
  exponentiatePage,
  factorBytes,
  quantizeFactors,
  quantizeProbabilities,
} from './quantized-probabilities.ts';

export function affineValues(
  layout: PageLayout,
  shape: AttentionShape,
  scratchOffset: number,
): ValueEmitter | undefined {
  const { encoding } = layout;
  if (encoding.kind !== 'affine' || encoding.axis !== 'token' || encoding.norms || shape.precise) return undefined;
  const { headDim, pageTokens } = shape;
  const columns = codeColumns(encoding.codes, pageTokens, headDim);
  if (!columns) return undefined;
  const groups = headDim / encoding.groupSize;
  const max = 2 ** encoding.codes.bits - 1;
  const { narrow, limit } = accumulatorLimits(max, pageTokens);
  const rangesAt = (scratch: I32, group: number) =>
    i32.add(i32.add(scratch, scratchOffset), columnSumScratch(shape) + group * rangeBytes(pageTokens));
  return {
    codedDim: headDim,
    beginPage(k, page) {
      const block = k.i32(blockAddress(layout, page));
      const pairs = [0, 1, 2, 3].map(() => k.v128());
      const step = k.v128();
      for (let group = 0; group < groups; group++) {
        const from = k.i32(i32.add(block, encoding.rangesOffset + 4 * group));
        const ranges = rangesAt(page.scratch, group);
        const to = k.i32(ranges);
        k.for(0, pageTokens, 4, () => {
          for (const [n, pair] of pairs.entries()) k.set(pair, v128.load32Zero(from, 4 * groups * n));
          const [a, b] = [0, 2].map(n => v128.shuffle(pairs[n], pairs[n + 1], lanes32(0, 4, 1, 1)));
          k.set(pairs[0], v128.shuffle(a, b, lanes32(0, 1, 4, 5)));
          k.set(step, lowF16ToF32(i32x4.shrU(pairs[0], 16)));
          const middle = f32x4.add(lowF16ToF32(pairs[0]), f32x4.mul(step, f32x4.const(max / 2)));
          k.do(v128.store(to, step), v128.store(to, middle, 4 * pageTokens));
          k.increment(from, 16 * groups);
          k.increment(to, 16);
        });
        quantizeFactors(k, shape, ranges, i32.add(ranges, 8 * pageTokens));
      }
    },
    accumulatePage(k, page, scores, state, next) {
      const block = k.i32(blockAddress(layout, page));
      const probabilities = k.i32(i32.add(page.scratch, scratchOffset));
      const exponentiateScratch = k.i32(i32.add(probabilities, updateScratchOffset(shape)));
      const prefetchNext = prefetcher(k, next, headDim / 4);
      const states = exponentiatePage(k, shape, scores, exponentiateScratch).map(({ exponent, sum }, g) =>
        addPageToState(k, i32.add(state, g * stateBytes(headDim)), exponent, sum),
      );
      for (let group = 0; group < groups; group++) {
        const middles = k.i32(i32.add(rangesAt(page.scratch, group), 4 * pageTokens));
        const factors = k.i32(i32.add(rangesAt(page.scratch, group), 8 * pageTokens));
        const maxStep = k.f32(f32.load(factors, 2 * pageTokens));
        const quantized = quantizeProbabilities(k, shape, scores, probabilities, { factors, limit, sumCodes: true });
        const updates = states.map(({ correction, scale }, g) => {
          const unit = k.v128(f32x4.mul(quantized[g].step, f32x4.splat(maxStep)));
          const excess = f32x4.mul(f32x4.splat(f32.mul(quantized[g].total(), f32.const(max / 2))), unit);
          const middle = f32x4.splat(dotExponentials(k, shape, i32.add(scores, 4 * g * pageTokens), middles));
          const offset = f32x4.mul(scale, f32x4.sub(middle, excess));
          return { correction, scale: k.v128(f32x4.mul(scale, unit)), offset: k.v128(offset) };
        });
        sumColumns(k, columns, shape, block, probabilities, updates, state, {
          lookup: codes => codes,
          signed: false,
          narrow,
          from: group * encoding.groupSize,
          to: (group + 1) * encoding.groupSize,
          prefetchNext,
        });
      }
    },
  };
}

/** Per group of dims: steps, middles, steps as factors. */
const rangeBytes = (pageTokens: number) => 8 * pageTokens + factorBytes(pageTokens);
export const affineValueScratch = ({ encoding }: PageLayout, { headDim, pageTokens }: AttentionShape) =>
  encoding.kind === 'affine' ? (headDim / encoding.groupSize) * rangeBytes(pageTokens) : 0;
