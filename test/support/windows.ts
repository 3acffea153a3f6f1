/** Attention within windows, with capped scores and with sink logits: what every device is tested for. */
import { expect } from 'vitest';
import type { Device } from '../../src/kernel/device.ts';
import { createJsDevice } from '../../src/kernel/js/device.ts';
import { type AttentionCase, runAttention, worstHeadError } from './attention.ts';

export const SHAPE = { headDim: 32, heads: 6, kvHeads: 2, pageTokens: 32 };

/** Several splits of pages; chunks end within pages, at their boundaries and past them. */
const CHUNKS = [3, 29, 1, 50, 20, 94, 1];
/** For pages of 128 tokens. */
const LARGE_CHUNKS = [130, 300, 1, 90];
/** The same tokens. */
const OTHER_CHUNKS = [100, 7, 1, 90];

/** Within a tail, a page, several pages. */
const WINDOWS = [7, 32, 150];

/** Large scores, so that the cap matters. */
export const CAPPED = { scale: 4, softcap: 2 };

/** Less and more than the scores of tokens. */
const SINK_LOGITS = [-9, 0, 2, 5, 20, 1];

type Options = Parameters<typeof runAttention>[3];

/** Outputs of the device against js, relative to the norm of a value. */
export async function expectWindowsLikeJs(device: Device, setting: AttentionCase, tolerance: number): Promise<void> {
  const full = { ...SHAPE, ...setting };
  const chunks = full.pageTokens > 32 ? LARGE_CHUNKS : CHUNKS;
  const sinkLogits = Array.from({ length: full.heads }, (_, head) => SINK_LOGITS[head % SINK_LOGITS.length]);
  for (const options of [...WINDOWS.map(window => ({ window })), CAPPED, { ...CAPPED, window: 50, sinkLogits }]) {
    const js = await runAttention(createJsDevice(), full, chunks, { lastRows: 1, ...options });
    const found = await runAttention(device, full, chunks, { lastRows: 3, leaves: js.leaves, ...options });
    const errors = js.attended.map(row => worstHeadError(found.outputs[row], js.outputs[row], full.headDim, js.values));
    expect(
      errors.every(error => error < tolerance),
      `${JSON.stringify(options)}: ${Math.max(...errors)}`,
    ).toBe(true);
  }
}

/** A row has the same bits whichever rows it is computed with. */
export async function expectSameBits(device: Device, setting: AttentionCase, options: Options): Promise<void> {
  const run = (chunks: readonly number[]) => runAttention(device, { ...SHAPE, ...setting }, chunks, options);
  expect((await run(OTHER_CHUNKS)).outputs).toEqual((await run(CHUNKS)).outputs);
}
