/** Attention of the webgpu device with int8 dot products: head sizes, head groups, page sizes, windows and chunks. */
import { expect, it } from 'vitest';
import { runAttention } from '../support/attention.ts';
import { hashOf } from '../support/hash.ts';
import { itAll, LONG_CASES, matrix } from '../support/matrix.ts';
import { CHUNKS, expectSameAsJs, INT8_ATTENTION } from './attention.ts';
import { describeGpu, openWebGpu, SMALL_SHAPE } from './gpu.ts';

const SHAPES = [
  { spec: 'tq4', headDim: 80, heads: 2, kvHeads: 2 },
  { spec: 'tq2', headDim: 96, heads: 8, kvHeads: 1 },
  { spec: 'tq4u/tq2u', headDim: 128, heads: 4, kvHeads: 2, pageTokens: 64 },
  { spec: 'q4_0h', headDim: 128, heads: 6, kvHeads: 2 },
  { spec: 'q8_0/q4_0', headDim: 256, heads: 2, kvHeads: 1, pageTokens: 32 },
  { spec: 'q4_0/tq2u', headDim: 128, heads: 2, kvHeads: 1, pageTokens: 128 },
  { spec: 'f16', headDim: 20, heads: 2, kvHeads: 1 },
  { spec: 'tq4+recent40+sink7', headDim: 32, heads: 3, kvHeads: 3 },
  { spec: 'tq2u+sink70', headDim: 64, heads: 3, kvHeads: 1, pageTokens: 64 },
  { spec: 'tq4+sink50', headDim: 32, heads: 3, kvHeads: 1, pageTokens: 16 },
];
/** Only in `npm run test:long`: others differ from these in a constant. */
const MORE_SHAPES = [
  { spec: 'tq4', headDim: 32, heads: 6, kvHeads: 2 },
  { spec: 'tq2', headDim: 32, heads: 6, kvHeads: 2 },
  { spec: 'q8_0h', headDim: 64, heads: 2, kvHeads: 1 },
  { spec: 'tq4u/q8_0', headDim: 128, heads: 3, kvHeads: 1, pageTokens: 64 },
  { spec: 'fp8', headDim: 96, heads: 2, kvHeads: 1 },
  { spec: 'tq4u/tq2', headDim: 256, heads: 2, kvHeads: 1 },
];

const REPRESENTATIVE_SHAPES = {
  'tq4, 80 dims': 'not a power of two: keys as floats, values as int8',
};

/** Codecs whose kernels depend on the page size. attention-int8.all.test.ts has them with twice the dims. */
const PAGE_CODECS = LONG_CASES
  ? ['tq2u', 'tq4', 'kivi2g32', 'mead2u', 'mead2', 'vec-d4b8', 'tri8i4/tq2', 'oaken', 'q4_0', 'tq35']
  : ['kivi2g32', 'mead2u', 'oaken'];

describeGpu('attention with int8 dot products', () => {
  const shapes = LONG_CASES ? [...SHAPES, ...MORE_SHAPES] : SHAPES;
  it.each(matrix(shapes, REPRESENTATIVE_SHAPES, ({ spec, headDim }) => `${spec}, ${headDim} dims`))(
    '$spec, $headDim dims, $heads heads on $kvHeads KV heads: like js',
    async shapeCase => {
      const { spec: _, ...shape } = shapeCase;
      await expectSameAsJs(await openWebGpu(shape), shapeCase, INT8_ATTENTION);
    },
  );

  it.each(
    // `npm test` runs mead2 in precise mode.
    matrix(PAGE_CODECS, {}),
  )('%s in pages of 128 tokens: like js', async spec => {
    const shape = { headDim: 64, heads: 2, kvHeads: 1, pageTokens: 128 };
    await expectSameAsJs(await openWebGpu(shape), { spec, ...shape }, INT8_ATTENTION, { chunks: [130, 1, 140, 2] });
  });

  it.each(matrix(['tq3', 'tq3u'], {}))('%s in bit planes of 128 codes: like js', async spec => {
    const shape = { headDim: 128, heads: 1, kvHeads: 1, pageTokens: 128 };
    await expectSameAsJs(await openWebGpu(shape), { spec, ...shape }, INT8_ATTENTION, { chunks: [130, 1, 140, 2] });
  });

  itAll.each([
    ['without subgroups', { subgroups: false }],
    ['with two kernels in one dispatch', { horizontalFusion: true }],
  ])('gives the same bits %s', async (_, options) => {
    const attentionCase = { ...SMALL_SHAPE, spec: 'tq4u' };
    const usual = await runAttention(await openWebGpu(), attentionCase, CHUNKS, { lastRows: 3 });
    const other = await runAttention(await openWebGpu(options), attentionCase, CHUNKS, { lastRows: 3 });
    expect(other.outputs).toEqual(usual.outputs);
  });

  itAll.each(LONG_CASES ? ['f16', 'tq4', 'tq2u', 'tq35', 'mead2u'] : ['tq4', 'mead2u'])(
    '%s gives the same bits in any chunks',
    async spec => {
      // Several rows share a workgroup, as on a real GPU.
      const device = await openWebGpu({ unroll: 4, pageTokens: 16 });
      const attentionCase = { ...SMALL_SHAPE, pageTokens: 16, spec };
      // More than four pages: two splits.
      const whole = await runAttention(device, attentionCase, [90]);
      for (const chunks of [Array(90).fill(1), [...Array(6).fill(13), 12]]) {
        const chunked = await runAttention(device, attentionCase, chunks);
        expect(hashOf(chunked)).toBe(hashOf(whole));
      }
    },
  );
});
