/** f16 pages, read directly as rows of floats; everything else is as for dequantized pages. */
import type { PageLayout } from '../../page-layout.ts';
import type { AttentionShape, KeyEmitter, ValueEmitter } from './attend.ts';
import { blockAddress } from './dequantize-page.ts';
import { contiguous, scoreRows, softmaxAndSum } from './float-rows.ts';

export function f16Keys(
  layout: PageLayout,
  { headDim, group, pageTokens, relaxed }: AttentionShape,
  dequantized: KeyEmitter,
): KeyEmitter | undefined {
  if (layout.encoding.kind !== 'f16') return undefined;
  return {
    ...dequantized,
    beginPage() {},
    scorePage(k, page, query, scores) {
      const rows = { size: 2, dims: headDim, heads: group, relaxed } as const;
      scoreRows(k, rows, contiguous(blockAddress(layout, page), pageTokens), query, scores, pageTokens);
    },
  };
}

export function f16Values(
  layout: PageLayout,
  { headDim, group, pageTokens, relaxed }: AttentionShape,
  dequantized: ValueEmitter,
): ValueEmitter | undefined {
  if (layout.encoding.kind !== 'f16') return undefined;
  return {
    ...dequantized,
    beginPage() {},
    accumulatePage(k, page, scores, state) {
      const rows = { size: 2, dims: headDim, heads: group, relaxed } as const;
      const data = k.i32(blockAddress(layout, page));
      softmaxAndSum(k, rows, contiguous(data, pageTokens), scores, pageTokens, pageTokens, state);
    },
  };
}
