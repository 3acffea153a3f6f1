/** How much slower than with f16 is a prompt read with a codec? With the arithmetic of generation. */
import type { Engine } from '../../src/engine/engine.ts';
import { step } from '../../src/engine/step.ts';
import type { Plan } from '../../src/plan/plan.ts';
import { type PrefillTime, round } from './results.ts';

const ROUNDS = 3;

/** Alternates with f16, so that both see the same load of the machine. The first round compiles kernels and is not timed. */
export async function measurePrefill(
  engine: Engine,
  plan: Plan,
  exact: Plan,
  tokens: readonly number[],
): Promise<PrefillTime> {
  const best = { coded: Number.POSITIVE_INFINITY, exact: Number.POSITIVE_INFINITY };
  for (let round = 0; round <= ROUNDS; round++) {
    const [coded, reference] = [await readPrompt(engine, plan, tokens), await readPrompt(engine, exact, tokens)];
    if (round === 0) continue;
    best.coded = Math.min(best.coded, coded);
    best.exact = Math.min(best.exact, reference);
  }
  return { kv: plan.spec, tokens: tokens.length, seconds: round(best.coded), f16Seconds: round(best.exact) };
}

/** Seconds until the logits after the prompt are known. */
async function readPrompt(engine: Engine, plan: Plan, tokens: readonly number[]): Promise<number> {
  const sequence = engine.openSequence(plan, tokens.length);
  try {
    const start = performance.now();
    await step(engine, [{ sequence, tokens, logits: 'last' }]);
    return (performance.now() - start) / 1000;
  } finally {
    sequence.dispose();
  }
}
