/** Attention on the webgpu device compared with the js device: the sealed bytes and the outputs. */
import { expect } from 'vitest';
import { parseSpec, windowOf } from '../../src/codec/spec.ts';
import type { Device } from '../../src/kernel/device.ts';
import { createJsDevice } from '../../src/kernel/js/device.ts';
import { type AttentionCase, expectSameErrors, runAttention, worstHeadError } from '../support/attention.ts';
import { SMALL_SHAPE } from './gpu.ts';

/**
 * Maximum error of scores relative to |q| |k|, and of outputs relative to the norm of a value: where pages are read as
 * floats, and where queries and probabilities are quantized to int8.
 */
export const FLOAT_ATTENTION = 1e-3;
export const INT8_ATTENTION = 1e-2;
/** Maximum share of sealed codes that differ because a value lies on a rounding boundary. */
const MAX_TIES = 1e-4;

/** Chunks that fill more than four pages (two splits) and end within pages, at page boundaries and past them. */
export const CHUNKS = [3, 29, 1, 50, 20, 75];

interface Options {
  chunks?: readonly number[];
  slideAt?: number;
}

export async function expectSameAsJs(
  device: Device,
  attentionCase: AttentionCase,
  tolerance: number,
  { chunks = CHUNKS, slideAt }: Options = {},
): Promise<void> {
  const full = { ...SMALL_SHAPE, ...attentionCase };
  // The js device is slow: it computes one of the rows that the GPU computes together.
  const js = await runAttention(createJsDevice(), full, chunks, { lastRows: 1, slideAt });
  const gpu = await runAttention(device, full, chunks, { lastRows: 3, slideAt, leaves: js.leaves });
  expect(gpu.leaves.length).toBe(js.leaves.length);
  let different = 0;
  const { sink } = windowOf(parseSpec(full.spec));
  js.leaves.forEach((leaf, i) => {
    // Never read: it has copies of one vector, of which rounding errors are left after their mean is subtracted.
    if (sink >= (i + 1) * full.pageTokens) return;
    leaf.forEach((byte, j) => {
      if (byte !== gpu.leaves[i][j]) different++;
    });
  });
  const codes = 2 * js.leaves.length * full.pageTokens * full.kvHeads * full.headDim;
  // The last bits of an f32 norm depend on the order of summation.
  if (!full.spec.includes('n32')) expect(different / codes, 'sealed codes').toBeLessThan(MAX_TIES);
  expectSameErrors(gpu.errors, js.errors);
  expect(maxOutputError(gpu, js, full.headDim), 'outputs').toBeLessThan(tolerance);
}

type Result = Awaited<ReturnType<typeof runAttention>>;

export const maxOutputError = (gpu: Result, js: Result, headDim: number): number =>
  Math.max(...js.attended.map(row => worstHeadError(gpu.outputs[row], js.outputs[row], headDim, js.values)));
