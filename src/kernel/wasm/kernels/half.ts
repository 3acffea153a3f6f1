/** f16 pages: rows of floats as they are; queries and states are those of any codec. */
import type { Fragment } from '../../fragment.ts';
import type { AttendShape, KeyFragment, ValueFragment } from './attend.ts';
import { scoreRows, sumScored } from './rows.ts';
import { blockAt } from './unpack.ts';

export function halfKeys(
  fragment: Fragment,
  { headDim, group, pageTokens, relaxed }: AttendShape,
  any: KeyFragment,
): KeyFragment | undefined {
  if (fragment.page.kind !== 'f16') return undefined;
  return {
    ...any,
    open() {},
    scores(k, page, head, query, scores) {
      const rows = { size: 2, dims: headDim, heads: group, relaxed } as const;
      scoreRows(k, rows, blockAt(fragment, page, head), query, pageTokens, scores, pageTokens);
    },
  };
}

export function halfValues(
  fragment: Fragment,
  { headDim, group, pageTokens, relaxed }: AttendShape,
  any: ValueFragment,
): ValueFragment | undefined {
  if (fragment.page.kind !== 'f16') return undefined;
  return {
    ...any,
    open() {},
    sum(k, page, head, scores, state) {
      const rows = { size: 2, dims: headDim, heads: group, relaxed } as const;
      const data = k.i32(blockAt(fragment, page, head));
      sumScored(k, rows, data, scores, pageTokens, pageTokens, pageTokens, state);
    },
  };
}
