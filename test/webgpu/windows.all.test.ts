/** Attention within windows, and with capped scores, on the webgpu device: every frame of the attention kernels. */
import { it } from 'vitest';
import type { WebGpuOptions } from '../../src/kernel/webgpu/device.ts';
import type { AttentionCase } from '../support/attention.ts';
import { itAll } from '../support/matrix.ts';
import { CAPPED, expectSameBits, expectWindowsLikeJs, SHAPE } from '../support/windows.ts';
import { FLOAT_ATTENTION, INT8_ATTENTION } from './attention.ts';
import { describeGpu, openWebGpu } from './gpu.ts';

/** Four subgroups read pages of 128 tokens only. */
const MEAD_SHAPE = { headDim: 64, heads: 4, kvHeads: 1, pageTokens: 128 };

const FRAMES: Record<string, { setting: AttentionCase; options?: Partial<WebGpuOptions>; tolerance: number }> = {
  'one subgroup, floats': { setting: { spec: 'f16' }, tolerance: FLOAT_ATTENTION },
  'one subgroup, int8, factors of tokens': { setting: { spec: 'tq4+sink9+recent20' }, tolerance: INT8_ATTENTION },
  'floats, 128 lanes': { setting: { spec: 'tq4+sink9' }, options: { precise: true }, tolerance: FLOAT_ATTENTION },
  'four subgroups': { setting: { spec: 'mead2', ...MEAD_SHAPE }, options: MEAD_SHAPE, tolerance: INT8_ATTENTION },
};

describeGpu('windows', () => {
  it.each(Object.entries(FRAMES))('%s: like js', async (_, { setting, options, tolerance }) => {
    await expectWindowsLikeJs(await openWebGpu({ ...SHAPE, ...options }), setting, tolerance);
  });

  itAll.each(Object.entries(FRAMES))('%s: the same bits in all chunks', async (_, { setting, options }) => {
    const device = await openWebGpu({ ...SHAPE, ...options });
    await expectSameBits(device, setting, { ...CAPPED, window: 50 });
  });
});
