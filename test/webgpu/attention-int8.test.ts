/** Attention of the webgpu device with int8 dot products, in the shape of common models: 128 dims, pages of 128 tokens. */
import { expect, it } from 'vitest';
import { createJsDevice } from '../../src/kernel/js/device.ts';
import { maxScoreError, runAttention } from '../attention.ts';
import { matrix } from '../matrix.ts';
import { FLOAT_ATTENTION, INT8_ATTENTION, maxOutputError } from './attention.ts';
import { describeGpu, openWebGpu } from './gpu.ts';

const SHAPE = { headDim: 128, heads: 4, kvHeads: 4, pageTokens: 128 };

const CODECS = [
  ...['f16', 'fp8', 'q8_0', 'q4_0', 'oaken', 'kivi2g32', 'oscar2g32'],
  ...['tq1', 'tq2', 'tq3', 'tq4', 'tq2u', 'tq3u', 'tq4u', 'tq35', 'tq35-v', 'tq25'],
  ...['vec-d4b8', 'million-d4b8', 'tri8i4/tq2', 'tri-i4/tq4', 'mead2', 'mead2u'],
];

/** The int8 kernels of the codecs that are used most. mead runs on smaller heads in attention-shapes.test.ts. */
const REPRESENTATIVES = {
  kivi2g32: 'ranges per channel (keys) and per token (values)',
  tq4: 'codes as int8',
};

describeGpu('attention with 128 dims and pages of 128 tokens', () => {
  it.each(matrix(CODECS, REPRESENTATIVES))('%s: scores and outputs like js', async spec => {
    const device = await openWebGpu(SHAPE);
    const tolerance = /^f/.test(spec) ? FLOAT_ATTENTION : INT8_ATTENTION;
    expect(await maxScoreError(device, createJsDevice(), { spec, ...SHAPE }), 'scores').toBeLessThan(tolerance);
    const js = await runAttention(createJsDevice(), { spec, ...SHAPE }, [270, 1], { lastRows: 1 });
    const gpu = await runAttention(device, { spec, ...SHAPE }, [270, 1], { lastRows: 1, leaves: js.leaves });
    expect(maxOutputError(gpu, js, SHAPE.headDim), 'outputs').toBeLessThan(tolerance);
  });
});
