/**
 * The kernels that passes of a model need, compiled before the first of them: a GPU takes longer to compile them than to
 * run a short prompt. Passes are planned, not run, for the numbers of rows at which a device changes its kernels; whatever
 * else comes up later is compiled when it does.
 */
import type { Sequence } from '../cache/sequence.ts';
import type { Device } from '../kernel/device.ts';
import type { ModelConfig } from '../model/config.ts';
import { type Chunk, forward, type Scratch } from '../model/forward.ts';
import type { RopeFrequencies } from '../model/rope.ts';
import type { ModelWeights } from '../model/weights.ts';
import type { Plan } from '../plan/plan.ts';

/** What a pass needs of an engine. */
interface Loaded {
  device: Device;
  config: ModelConfig;
  rope: RopeFrequencies;
  weights: ModelWeights;
  scratch: Scratch;
  openSequence(plan: Plan, context: number): Sequence;
}

/** Rows of prompts: a few at a time, small tiles of each size, large tiles. */
const PROMPTS = [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 512];

const GREEDY = { temperature: 0, topK: 0, topP: 1, minP: 0, random: 0 };

export async function warmUp(engine: Loaded, plan: Plan): Promise<void> {
  const { device, config, weights, rope, scratch } = engine;
  const prompts = PROMPTS.filter(rows => rows <= scratch.rows);
  const sealed = plan.pageTokens + plan.window.recent + 1;
  const context = sealed + prompts.reduce((sum, rows) => sum + rows) + scratch.rows + 2;
  await device.warmUp?.(async () => {
    const sequence = engine.openSequence(plan, context);
    const pass = async (rows: number, prompt: boolean) => {
      const chunk: Chunk = { sequence, tokens: new Array(rows).fill(0), prompt, logits: 'last', choice: GREEDY };
      const hooks = { onLogits() {}, onToken() {} };
      const { delivered } = await forward(device, config, weights, rope, scratch, [chunk], hooks);
      await delivered;
    };
    try {
      // An empty cache at first, then one with a sealed page.
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
