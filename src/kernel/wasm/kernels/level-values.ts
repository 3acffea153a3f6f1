/**
 * Values coded by levels in columns (tq1 to tq4 and their uniform siblings): bytes from a 16-entry lookup table, or
 * plain codes if levels are uniform, times quantized probabilities (column-sums.ts).
 */
import type { PageLayout } from '../../page-layout.ts';
import { f32, f32x4, type I32, i8x16, i32, index, type Local, type V128, v128 } from '../emit.ts';
import type { Kernel } from '../module.ts';
import { loadF16x4, swizzle, transpose4x4 } from '../ops.ts';
import type { AttentionShape, PageArgs } from './attend.ts';
import type { Int8Values } from './attend-int8-tiles.ts';
import { type CodeColumns, codeColumns, columnAddresses, spanCodes } from './code-columns.ts';
import {
  accumulatorLimits,
  columnSumScratch,
  quantizeLevels,
  runTokens,
  type StateUpdate,
  type SumOptions,
  sumColumns,
  updateScratchOffset,
} from './column-sums.ts';
import { blockAddress } from './dequantize-page.ts';
import { blockBytes, quadOffset } from './int8-tiles.ts';
import { addPageToState, stateBytes } from './online-softmax.ts';
import { prefetcher } from './prefetch.ts';
import { exponentiatePage, factorBytes, quantizeFactors, quantizeProbabilities } from './quantized-probabilities.ts';

export type LevelsEncoding = PageLayout['encoding'] & { kind: 'levels' };

/** Loads four norms as f32. */
export const loadNorms = ({ norms }: LevelsEncoding, block: I32, token: Local<'i32'>, offset: number): V128 =>
  norms.bytes === 2
    ? loadF16x4(index(i32.add(block, norms.offset), 2, token), 2 * offset)
    : v128.load(index(i32.add(block, norms.offset), 4, token), 4 * offset);

/** Norms are multiplied into the probabilities. */
export function levelValues(layout: PageLayout, shape: AttentionShape, scratchOffset: number): Int8Values | undefined {
  const encoding = layout.encoding;
  if (encoding.kind !== 'levels' || shape.precise) return undefined;
  const { headDim, pageTokens } = shape;
  const columns = codeColumns(encoding.codes, pageTokens, headDim);
  if (!columns) return undefined;
  const { step, max, ...reading } = encoding.uniform
    ? uniformLevels(encoding.levels)
    : tableLevels(encoding.levels, columns, shape);
  const { narrow, limit } = accumulatorLimits(max, pageTokens);
  const normsAt = (scratch: I32) => i32.add(i32.add(scratch, scratchOffset), columnSumScratch(shape));
  const weigh = (k: Kernel, { scratch }: PageArgs, scores: I32, state: I32, probabilities: I32): StateUpdate[] => {
    const exponentiateScratch = k.i32(i32.add(i32.add(scratch, scratchOffset), updateScratchOffset(shape)));
    const factors = k.i32(i32.add(normsAt(scratch), 4 * pageTokens));
    const exponentials = exponentiatePage(k, shape, scores, exponentiateScratch);
    const options = { factors, limit, sumCodes: encoding.uniform };
    const quantized = quantizeProbabilities(k, shape, scores, probabilities, options);
    const maxFactor = k.v128(f32x4.splat(f32.mul(f32.load(factors, 2 * pageTokens), f32.const(step))));
    return exponentials.map(({ exponent, sum }, g) => {
      const headState = i32.add(state, g * stateBytes(headDim));
      const { correction, scale: pageScale } = addPageToState(k, headState, exponent, sum);
      const scale = k.v128(f32x4.mul(pageScale, f32x4.mul(quantized[g].step, maxFactor)));
      // Uniform codes start at 0 instead of being centered.
      const centering = () => f32x4.mul(f32x4.splat(f32.mul(quantized[g].total(), f32.const(-max / 2))), scale);
      return { correction, scale, offset: encoding.uniform ? k.v128(centering()) : undefined };
    });
  };
  return {
    codedDim: headDim,
    int8: {
      run: runTokens(pageTokens) / 16,
      signed: reading.signed,
      centered: encoding.uniform,
      pack: (k, page, tile) => packColumns(k, columns, shape, k.i32(blockAddress(layout, page)), reading, tile),
      weigh,
    },
    beginPage(k, page) {
      const block = k.i32(blockAddress(layout, page));
      const norms = k.i32(normsAt(page.scratch));
      k.for(0, pageTokens, 16, t => {
        for (let n = 0; n < 16; n += 4) k.do(v128.store(index(norms, 4, t), loadNorms(encoding, block, t, n), 4 * n));
      });
      quantizeFactors(k, shape, norms, i32.add(norms, 4 * pageTokens));
    },
    accumulatePage(k, page, scores, state, next) {
      const block = k.i32(blockAddress(layout, page));
      const probabilities = k.i32(i32.add(page.scratch, scratchOffset));
      const updates = weigh(k, page, scores, state, probabilities);
      sumColumns(k, columns, shape, block, probabilities, updates, state, {
        ...reading,
        narrow,
        prefetchNext: prefetcher(k, next, headDim / 4),
      });
    },
  };
}

/** Writes the bytes of a page's columns as a tile (int8-tiles.ts). */
function packColumns(
  k: Kernel,
  columns: CodeColumns,
  { headDim, pageTokens }: AttentionShape,
  block: I32,
  { lookup, twosComplement }: Pick<SumOptions, 'lookup' | 'twosComplement'>,
  tile: I32,
): void {
  const { dims, span } = columns;
  const to = k.i32();
  k.for(0, headDim, 8, first => {
    for (const dim of [0, 4]) {
      k.set(to, i32.add(i32.add(tile, i32.mul(first, blockBytes(pageTokens) / 8)), quadOffset(dim)));
      k.for(0, pageTokens, span, token => {
        const codes = Array.from({ length: 4 / dims }, (_, c) => {
          const column = i32.add(i32.divU(first, dims), dim / dims + c);
          const addresses = columnAddresses(k, columns, block, column, token);
          return spanCodes(k, columns, addresses, twosComplement ?? false).map(vector => k.v128(vector));
        });
        for (let v = 0; v < span / 16; v++) {
          const lines = [0, 1, 2, 3].map(d => k.v128(lookup(codes[Math.floor(d / dims)][v], d % dims)));
          for (const [n, quad] of transpose4x4(k, lines).entries()) k.do(v128.store(to, quad, 128 * v + 32 * n));
        }
        k.increment(to, 8 * span);
      });
    }
  });
}

/** Norms as f32 and as factors. */
export const levelValueScratch = ({ pageTokens }: AttentionShape) => 4 * pageTokens + factorBytes(pageTokens);

function uniformLevels(levels: Float32Array) {
  const max = levels.length - 1;
  return {
    step: (2 * Math.max(...levels)) / max,
    max,
    lookup: (codes: V128) => codes,
    signed: false,
    twosComplement: true,
  };
}

function tableLevels(levels: Float32Array, { dims }: CodeColumns, { headDim, relaxed }: AttentionShape) {
  const { bytes, step } = quantizeLevels(levels, headDim);
  const tables = Array.from({ length: dims }, (_, d) => {
    const level = (e: number) => bytes[(dims === 1 ? e : (e >> (2 * d)) & 3) % bytes.length];
    return i8x16.const(...Array.from({ length: 16 }, (_, e) => level(e)));
  });
  const lookup = (codes: V128, d: number) => swizzle(relaxed)(tables[d], codes);
  return { step, max: Math.max(...bytes), lookup, signed: true, twosComplement: false };
}
