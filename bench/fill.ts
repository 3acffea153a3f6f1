/** Deep contexts without the wait: the pages of a real prompt, over and over. Time and room do not depend on what they hold. */
import type { Sequence } from '../src/cache/sequence.ts';
import { createCodec, learn, learns } from '../src/codec/kv.ts';
import { gaussianSamples } from '../src/codec/learned.ts';
import { parseSpec, windowOf } from '../src/codec/spec.ts';
import type { Engine } from '../src/engine/engine.ts';
import { type Plan, type PlanShape, planOf, planOfCodecs } from '../src/plan/plan.ts';

export const promptTokens = (count: number, seed = 1) =>
  Array.from({ length: count }, (_, i) => 10 + ((i * 7919 + seed * 104729) % 900));

/** Lengthens a sequence that has sealed pages. */
export async function fillTo({ device }: Engine, sequence: Sequence, depth: number): Promise<void> {
  const made = await Promise.all(sequence.view.leaves.map(leaf => device.readBlock(leaf)));
  const missing = depth - sequence.length;
  sequence.plan(missing);
  await device.ready?.([sequence.view]);
  sequence.commit(missing);
  sequence.view.leaves.slice(made.length).forEach((leaf, i) => {
    device.writeBlock(leaf, made[i % made.length]);
  });
}

/** A plan to be timed: codecs that learn have learned from noise, the same for every layer. */
export function benchPlan(spec: string, { layers, ...shape }: PlanShape): Plan {
  if (!learns(spec)) return planOf(spec, { layers, ...shape });
  const samples = gaussianSamples(shape, 1024);
  const codec = createCodec(spec, shape, learn(spec, shape, { key: samples, value: samples }));
  return planOfCodecs(spec, windowOf(parseSpec(spec)), Array(layers).fill(codec));
}
