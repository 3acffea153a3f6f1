/** Attention of the webgpu device with int8 dot products, in the shape of common models: 128 dims, pages of 128 tokens. */
import { expect, it } from 'vitest';
import { createJsDevice } from '../../src/kernel/js/device.ts';
import { maxScoreError, runAttention } from '../support/attention.ts';
import { LONG_CASES, matrix } from '../support/matrix.ts';
import { FLOAT_ATTENTION, INT8_ATTENTION, maxOutputError } from './attention.ts';
import { describeGpu, openWebGpu } from './gpu.ts';

const SHAPE = { headDim: 128, heads: 2, kvHeads: 2, pageTokens: 128 };

const EVERY_CODEC = [
  ...['f16', 'fp8', 'q8_0', 'q4_0', 'kivi2g32', 'oscar2g32'],
  ...['tq1', 'tq2', 'tq3', 'tq4', 'tq2u', 'tq3u', 'tq4u'],
  ...['vec-d4b8', 'million-d4b8', 'tri8i4/tq2', 'tri-i4/tq4', 'mead2', 'mead2u'],
];

/** One per text of a kernel; `npm run test:long` runs all. */
const CODECS = LONG_CASES
  ? EVERY_CODEC
  : ['f16', 'q8_0', 'kivi2g32', 'oscar2g32', 'tq3', 'tq4', 'tq2u', 'tq1', 'vec-d4b8', 'tri8i4/tq2', 'mead2'];

/** The default codec. `npm test` has the WGSL of the others in wgsl-golden.test.ts. */
const REPRESENTATIVES = { tq4: 'codes as int8' };

/** One codec per kernel that reads keys: scores need kernels of their own, with values in f16. */
const KEY_CODECS = ['f16', 'q8_0', 'oscar2g32', 'tq4', 'tq2u', 'tq1'];
const PAGE_RELATIVE_CODECS = ['tri8i4/tq2', 'mead2u'];

const toleranceOf = (spec: string) => (/^f/.test(spec) ? FLOAT_ATTENTION : INT8_ATTENTION);

describeGpu('attention with 128 dims and pages of 128 tokens', () => {
  it.each(matrix(LONG_CASES ? EVERY_CODEC : [...KEY_CODECS, ...PAGE_RELATIVE_CODECS], REPRESENTATIVES))(
    '%s: scores like js',
    async spec => {
      const maxError = await maxScoreError(await openWebGpu(SHAPE), createJsDevice(), { spec, ...SHAPE });
      expect(maxError).toBeLessThan(toleranceOf(spec));
    },
  );

  it.each(matrix(CODECS, REPRESENTATIVES))('%s: outputs like js', async spec => {
    const device = await openWebGpu(SHAPE);
    const js = await runAttention(createJsDevice(), { spec, ...SHAPE }, [270, 1], { lastRows: 1 });
    const gpu = await runAttention(device, { spec, ...SHAPE }, [270, 1], { lastRows: 1, leaves: js.leaves });
    expect(maxOutputError(gpu, js, SHAPE.headDim)).toBeLessThan(toleranceOf(spec));
  });
});
