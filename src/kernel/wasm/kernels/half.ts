/** f16 pages: rows of floats as they are. */
import type { Fragment } from '../../fragment.ts';
import { i32, v128 } from '../emit.ts';
import type { AttendShape, KeyFragment, ValueFragment } from './attend.ts';
import { scoreRows, sumScored } from './rows.ts';
import { blockAt } from './unpack.ts';

export function halfKeys(
  fragment: Fragment,
  { headDim, group, pageTokens, relaxed }: AttendShape,
): KeyFragment | undefined {
  if (fragment.page.kind !== 'f16') return undefined;
  const bytes = 4 * group * headDim;
  return {
    queryBytes: bytes,
    prepare(k, queries, _head, out) {
      k.for(0, bytes, 16, i => k.do(v128.store(i32.add(out, i), v128.load(i32.add(queries, i)))));
    },
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
): ValueFragment | undefined {
  if (fragment.page.kind !== 'f16') return undefined;
  return {
    codedDim: headDim,
    open() {},
    sum(k, page, head, scores, state) {
      const rows = { size: 2, dims: headDim, heads: group, relaxed } as const;
      const data = k.i32(blockAt(fragment, page, head));
      sumScored(k, rows, data, scores, pageTokens, pageTokens, pageTokens, state);
    },
  };
}
