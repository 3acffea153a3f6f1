/** The squared errors that sealing leaves, on the webgpu device against the js device, on random data. */
import { expect, it } from 'vitest';
import { createJsDevice } from '../../src/kernel/js/device.ts';
import { expectSameErrors, runAttention } from '../support/attention.ts';
import { matrix } from '../support/matrix.ts';
import { describeGpu, openWebGpu } from './gpu.ts';

const CASES = [
  { spec: 'mead2+sink7', headDim: 40, heads: 2, kvHeads: 2, pageTokens: 32 },
  { spec: 'vec-d4b8/vec-d2b1-own', headDim: 32, heads: 1, kvHeads: 1, pageTokens: 48 },
  { spec: 'million-d5b6/tq4+sink70', headDim: 80, heads: 2, kvHeads: 2, pageTokens: 32 },
];

describeGpu('squared errors of pages', () => {
  it.each(matrix(CASES, { 'mead2+sink7': 'page-relative keys' }, ({ spec }) => spec))(
    '$spec, $headDim dims, $kvHeads KV heads, pages of $pageTokens: like js',
    async attentionCase => {
      const { spec: _, ...shape } = attentionCase;
      const chunks = [2 * shape.pageTokens + 1, shape.pageTokens];
      const [gpu, js] = await Promise.all(
        [await openWebGpu(shape), createJsDevice()].map(device =>
          runAttention(device, attentionCase, chunks, { lastRows: 1 }),
        ),
      );
      expect(js.errors.size).toBe(js.leaves.length);
      expectSameErrors(gpu.errors, js.errors);
    },
  );
});
