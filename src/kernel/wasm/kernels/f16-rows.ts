/** f16 pages, read directly as rows of floats; everything else is as for dequantized pages. */
import type { PageLayout } from '../../page-layout.ts';
import type { AttentionShape, KeyEmitter, ValueEmitter } from './attend.ts';
import { blockAddress } from './dequantize-page.ts';
import { contiguous, scoreRows, softmaxAndSum } from './float-rows.ts';

const f16Rows = ({ headDim, group, pageTokens, relaxed }: AttentionShape) =>
  ({ size: 2, dims: headDim, heads: group, stride: pageTokens, relaxed }) as const;

export function f16Keys(layout: PageLayout, shape: AttentionShape, dequantized: KeyEmitter): KeyEmitter | undefined {
  if (layout.encoding.kind !== 'f16') return undefined;
  return {
    ...dequantized,
    beginPage() {},
    scorePage(k, page, query, scores) {
      const rows = contiguous(blockAddress(layout, page), shape.pageTokens);
      scoreRows(k, f16Rows(shape), rows, query, scores);
    },
  };
}

export function f16Values(
  layout: PageLayout,
  shape: AttentionShape,
  dequantized: ValueEmitter,
): ValueEmitter | undefined {
  if (layout.encoding.kind !== 'f16') return undefined;
  return {
    ...dequantized,
    beginPage() {},
    accumulatePage(k, page, scores, state) {
      const rows = contiguous(k.i32(blockAddress(layout, page)), shape.pageTokens);
      softmaxAndSum(k, f16Rows(shape), rows, scores, shape.pageTokens, state);
    },
  };
}
