/**
 * Compiles the kernels of a model before the first prompt: a GPU takes longer to compile them than to run a short prompt.
 * Passes are recorded, not run, for the row counts at which a device changes kernels. Other kernels compile on first use.
 */
import type { Sequence } from '../cache/sequence.ts';
import type { Chunk } from '../model/batch.ts';
import { forward, type LoadedModel } from '../model/forward.ts';
import type { Plan } from '../plan/plan.ts';

/** Rows of prefill passes: a few, small tiles of each size, large tiles. */
const PROMPT_ROWS = [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 512];

/** On the device. */
export const GREEDY = { temperature: 0, topK: 0, topP: 1, minP: 0, random: 0 };

export async function warmUp(
  model: LoadedModel & { openSequence(plan: Plan, context: number): Sequence },
  plan: Plan,
): Promise<void> {
  const { device, scratch } = model;
  const prompts = PROMPT_ROWS.filter(rows => rows <= scratch.rows);
  const sealed = plan.pageTokens + plan.window.recent + 1;
  const context = sealed + prompts.reduce((sum, rows) => sum + rows) + scratch.rows + 2;
  await device.warmUp?.(async () => {
    const sequence = model.openSequence(plan, context);
    const pass = async (rows: number, prefill: boolean) => {
      const chunk: Chunk = {
        sequence,
        tokens: new Array(rows).fill(0),
        prefill,
        exact: prefill || plan.mode === 'two-tier',
        logits: 'last',
        sampling: GREEDY,
      };
      const hooks = { onLogits() {}, onToken() {} };
      const { delivered } = await forward(model, [chunk], hooks);
      await delivered;
    };
    try {
      // First with an empty cache, then with a sealed page.
      await pass(1, true);
      await pass(1, false);
      while (sequence.length < sealed) await pass(Math.min(scratch.rows, sealed - sequence.length), true);
      for (const rows of prompts) await pass(rows, true);
      await pass(1, false);
    } finally {
      sequence.dispose();
    }
  });
}
