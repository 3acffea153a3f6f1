/**
 * Groups with a range of their own: q = round((x - min) / step), step = (max - min) / (2^bits - 1), min and step in
 * f16. A group is G tokens of one channel, or G dims of one token. What KIVI does, and OScaR after its transforms.
 */
import type { Shape } from './codec.ts';
import { type Field, layOut } from './layout.ts';
import { createGrid, type Order } from './pack.ts';
import type { PageFormat } from './page-codec.ts';
import { f16 } from './scalars.ts';

export interface Affine {
  bits: number;
  group: number;
  /** `channel`: one range for G tokens of a dim. `token`: one range for G dims of a token. */
  axis: 'channel' | 'token';
  order: Order;
}

/** Squared error over squared norm on Gaussian data, groups of 32; the range grows slowly with the group. */
const BUDGET: Record<number, number> = { 1: 2.1, 2: 0.165, 4: 0.0066, 8: 2.3e-5 };
const BY_GROUP: Record<number, number> = { 16: 0.72, 32: 1, 64: 1.33, 128: 1.68 };
export const affineBudget = ({ bits, group }: Affine): number => BUDGET[bits] * BY_GROUP[group];

/**
 * One head's block:
 *   codes    headDim x pageTokens codes of `bits`, in rows or columns
 *   ranges   a pair f16 min, f16 step a group. Per channel: headDim pairs for the first G tokens, then for the next
 *            G tokens, and so on. Per token: headDim / G pairs for token 0, then token 1, and so on.
 * Fields that a caller puts before them are its own to fill.
 */
export function affineFormat(
  { bits, group, axis, order }: Affine,
  { headDim, kvHeads, pageTokens }: Shape,
  before: Field[] = [],
): PageFormat {
  const grid = createGrid(pageTokens, headDim, bits, order);
  const groups = (headDim * pageTokens) / group;
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
          ? `for each ${group} tokens: ${headDim} pairs f16 min, f16 step, one a channel`
          : `for each token: ${headDim / group} pairs f16 min, f16 step, one for each ${group} dims`,
    },
  ];
  const layout = layOut(fields, kvHeads);
  const groupOf = (token: number, dim: number) =>
    axis === 'channel'
      ? Math.floor(token / group) * headDim + dim
      : token * (headDim / group) + Math.floor(dim / group);

  return {
    fields,
    fragment: {
      kind: 'affine',
      codes: { offset: layout.offset('codes'), bits, order },
      ranges: layout.offset('ranges'),
      group,
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
          if (min[g] > max[g]) continue; // no token of it was written: it stays zero
          f16.write(ranges, 2 * g, min[g]);
          f16.write(ranges, 2 * g + 1, stepOf(min[g], max[g], bits));
        }
        for (let t = 0; t < tokens; t++) {
          for (let i = 0; i < headDim; i++) {
            const g = groupOf(t, i);
            // Rounded against the range as stored, so that its rounding does not add to ours.
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

export const stepOf = (min: number, max: number, bits: number) => (max - min) / (2 ** bits - 1);

/** A constant group has step 0: code 0 is its only value, and nothing is divided. */
export function affineCode(x: number, min: number, step: number, bits: number): number {
  return step === 0 ? 0 : Math.max(0, Math.min(2 ** bits - 1, Math.round((x - min) / step)));
}
