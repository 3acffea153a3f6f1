/**
 * Group-wise affine quantization: q = round((x - min) / step), step = (max - min) / (2^bits - 1), with min and step in f16
 * per group. A group is G tokens of one channel, or G dims of one token. Used by KIVI and, after its transforms, OScaR.
 */
import type { Shape } from './codec.ts';
import { createGrid, type GridOrder } from './pack.ts';
import type { PageFormat } from './page-codec.ts';
import { type Field, layoutFields } from './page-fields.ts';
import { f16 } from './scalars.ts';

export interface AffineParams {
  bits: number;
  groupSize: number;
  /** `channel`: one range per G tokens of a dim. `token`: one range per G dims of a token. */
  axis: 'channel' | 'token';
  order: GridOrder;
}

/** Relative squared error on Gaussian data with groups of 32, by bits; and the factor for other group sizes. */
const BUDGET: Record<number, number> = { 1: 2.1, 2: 0.165, 4: 0.0066, 8: 2.3e-5 };
const GROUP_FACTOR: Record<number, number> = { 16: 0.72, 32: 1, 64: 1.33, 128: 1.68 };
export const affineBudget = ({ bits, groupSize }: AffineParams): number => BUDGET[bits] * GROUP_FACTOR[groupSize];

/**
 * One head's block:
 *   codes    headDim x pageTokens codes of `bits`, in rows or columns
 *   ranges   f16 min and f16 step per group. Per channel: headDim pairs for the first G tokens, then for the next G
 *            tokens, and so on. Per token: headDim / G pairs for token 0, then token 1, and so on.
 * The caller writes the fields of `before`.
 */
export function affineFormat(
  { bits, groupSize, axis, order }: AffineParams,
  { headDim, kvHeads, pageTokens }: Shape,
  before: Field[] = [],
): PageFormat {
  const grid = createGrid(pageTokens, headDim, bits, order);
  const groups = (headDim * pageTokens) / groupSize;
  const fields: Field[] = [
    ...before,
    {
      name: 'codes',
      bytes: grid.bytes,
      per: 'head',
      about: `${headDim} x ${pageTokens} codes of ${bits} bits in ${order}, value min + code x step`,
    },
    {
      name: 'ranges',
      bytes: groups * 2 * f16.bytes,
      per: 'head',
      about:
        axis === 'channel'
          ? `for each ${groupSize} tokens: ${headDim} pairs f16 min, f16 step, one per channel`
          : `for each token: ${headDim / groupSize} pairs f16 min, f16 step, one per ${groupSize} dims`,
    },
  ];
  const layout = layoutFields(fields, kvHeads);
  const groupOf = (token: number, dim: number) =>
    axis === 'channel'
      ? Math.floor(token / groupSize) * headDim + dim
      : token * (headDim / groupSize) + Math.floor(dim / groupSize);

  return {
    fields,
    encoding: {
      kind: 'affine',
      codes: { offset: layout.offset('codes'), bits, order },
      rangesOffset: layout.offset('ranges'),
      groupSize,
      axis,
    },
    write(heads, tokens, page) {
      heads.forEach((vectors, head) => {
        const codes = layout.field(page, 'codes', head);
        const ranges = layout.field(page, 'ranges', head);
        const min = new Float64Array(groups).fill(Number.POSITIVE_INFINITY);
        const max = new Float64Array(groups).fill(Number.NEGATIVE_INFINITY);
        for (let t = 0; t < tokens; t++) {
          for (let i = 0; i < headDim; i++) {
            const g = groupOf(t, i);
            min[g] = Math.min(min[g], vectors[t * headDim + i]);
            max[g] = Math.max(max[g], vectors[t * headDim + i]);
          }
        }
        for (let g = 0; g < groups; g++) {
          if (min[g] > max[g]) continue; // an empty group: its bytes stay zero
          f16.write(ranges, 2 * g, min[g]);
          f16.write(ranges, 2 * g + 1, affineStep(min[g], max[g], bits));
        }
        for (let t = 0; t < tokens; t++) {
          for (let i = 0; i < headDim; i++) {
            const g = groupOf(t, i);
            // Quantized with the stored range, so that the rounding of the range to f16 adds no error.
            const code = affineCode(
              vectors[t * headDim + i],
              f16.read(ranges, 2 * g),
              f16.read(ranges, 2 * g + 1),
              bits,
            );
            grid.write(codes, t, i, code);
          }
        }
      });
    },
    read(page, head, token, out) {
      const codes = layout.field(page, 'codes', head);
      const ranges = layout.field(page, 'ranges', head);
      for (let i = 0; i < headDim; i++) {
        const g = groupOf(token, i);
        out[i] = f16.read(ranges, 2 * g) + grid.read(codes, token, i) * f16.read(ranges, 2 * g + 1);
      }
    },
  };
}

export const affineStep = (min: number, max: number, bits: number) => (max - min) / (2 ** bits - 1);

/** A constant group has step 0 and only code 0. */
export function affineCode(x: number, min: number, step: number, bits: number): number {
  return step === 0 ? 0 : Math.max(0, Math.min(2 ** bits - 1, Math.round((x - min) / step)));
}
