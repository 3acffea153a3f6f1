/**
 * Attention of a prompt's rows with (emulated) subgroup matrices, against the js device on the same pages: codecs whose
 * tokens or dims are side by side, pages that queries are transformed for, groups of query heads that fill a workgroup or do
 * not, windows, softcaps, splits. By 32 tokens, since software adapters have 256 invocations; by 64 the self-test and
 * `npm run bench -- attention` check it on real GPUs.
 */
import { afterAll, expect, it } from 'vitest';
import { createJsDevice } from '../../src/kernel/js/device.ts';
import type { WebGpuOptions } from '../../src/kernel/webgpu/device.ts';
import { type AttentionCase, relativeError, runAttention } from '../support/attention.ts';
import { LONG_CASES } from '../support/matrix.ts';
import { openWithMatrices } from './emulated-matrices.ts';
import { describeGpu } from './gpu.ts';

/** Keys, queries, values and probabilities are rounded to f16; entries of mead's books to bytes. */
const TOLERANCE = { f16: 1e-3, bytes: 1.5e-2 };
const SMALL = { headDim: 32, heads: 3, kvHeads: 1, pageTokens: 32 };

const opened: { dispose(): Promise<void> }[] = [];
afterAll(async () => {
  for (const device of opened) await device.dispose();
});

type Options = Parameters<typeof runAttention>[3];
type Setting = AttentionCase & typeof SMALL;

async function onGpu(
  setting: Setting,
  chunks: readonly number[],
  options: Options,
  device: Partial<WebGpuOptions> = {},
) {
  const { headDim, heads, kvHeads, pageTokens } = setting;
  const gpu = await openWithMatrices({ headDim, heads, kvHeads, pageTokens, ...device });
  opened.push(gpu);
  return runAttention(gpu, setting, chunks, { ...options, prefill: true });
}

/** The largest relative error of a row. */
async function worstError(
  setting: Setting,
  { chunks = [150], device, ...options }: Options & { chunks?: number[]; device?: Partial<WebGpuOptions> } = {},
): Promise<number> {
  const some = { lastRows: 4, ...options };
  const exact = await runAttention(createJsDevice(), setting, chunks, some);
  const found = await onGpu(setting, chunks, { ...some, leaves: exact.leaves }, device);
  return Math.max(...exact.attended.map(row => relativeError(found.outputs[row], exact.outputs[row])));
}

const CODECS: [string, string, keyof typeof TOLERANCE][] = [
  ['f16', 'tokens side by side', 'f16'],
  ['tq4', 'keys by tokens, values by dims, means of pages', 'f16'],
  ['mead2u', 'queries transformed for each page', 'f16'],
  ['tq4/mead2', 'values by code books', 'bytes'],
  ['mead2/q8_0', 'keys by code books', 'bytes'],
];
/** They have readers of their own, but no other part of the kernel. */
const MORE_CODECS: typeof CODECS = [
  ['q4_0', 'an order of dims of its own', 'f16'],
  ['tq35', 'more coded dims than dims', 'f16'],
  ['kivi2g32', 'ranges of channels and of tokens', 'f16'],
];

describeGpu('attention of prompts by subgroup matrices (emulated)', () => {
  it.each(LONG_CASES ? [...CODECS, ...MORE_CODECS] : CODECS)('%s: %s', async (spec, _, precision) => {
    expect(await worstError({ ...SMALL, spec })).toBeLessThan(TOLERANCE[precision]);
  });

  const SHAPES: [string, Partial<Setting>][] = [
    ['one query head per KV head', { heads: 2, kvHeads: 2, pageTokens: 64 }],
    ['eight query heads', { heads: 8, kvHeads: 1, headDim: 64 }],
    ['forty: one row per workgroup', { heads: 40 }],
  ];
  it.each(SHAPES)('%s', async (_, shape) => {
    const setting = { ...SMALL, ...shape, spec: 'tq4' };
    expect(await worstError(setting, { lastRows: 3, chunks: [setting.pageTokens + 6] })).toBeLessThan(TOLERANCE.f16);
  });

  it('several splits, a window that begins within a page, a softcap and sink logits', async () => {
    const options = { window: 70, softcap: 2, sinkLogits: [0.5, -1, 2], scale: 3, device: { pagesPerSplit: 1 } };
    expect(await worstError({ ...SMALL, spec: 'tq4' }, options)).toBeLessThan(TOLERANCE.f16);
  });

  it('scores that grow from page to page rescale the sums', async () => {
    expect(await worstError({ ...SMALL, spec: 'q8_0' }, { scale: 40 })).toBeLessThan(0.02);
  });

  it('a row has the same bits in any chunks', async () => {
    const setting = { ...SMALL, spec: 'tq4' };
    const [whole, parts] = await Promise.all([[100], [66, 33, 1]].map(chunks => onGpu(setting, chunks, {})));
    expect(parts.outputs).toEqual(whole.outputs);
  });
});
