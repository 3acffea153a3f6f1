/** Fills deep contexts quickly with repeated pages of a real prompt. Time and memory do not depend on their contents. */
import type { Sequence } from '../src/cache/sequence.ts';
import { createCodec, learn, needsProfile } from '../src/codec/kv.ts';
import { gaussianSamples } from '../src/codec/learned.ts';
import { parseSpec, windowOf } from '../src/codec/spec.ts';
import type { Engine } from '../src/engine/engine.ts';
import type { KvView } from '../src/kernel/device.ts';
import { createPlan, createPlanFromCodecs, type Plan, type PlanShape } from '../src/plan/plan.ts';

export const promptTokens = (count: number, seed = 1) =>
  Array.from({ length: count }, (_, i) => 10 + ((i * 7919 + seed * 104729) % 900));

/** Extends a sequence that has sealed pages. */
export async function fillTo({ device }: Engine, sequence: Sequence, depth: number): Promise<void> {
  const { view } = sequence;
  const read = (blocks: KvView['windowPages'] = []) =>
    Promise.all(blocks.flatMap(block => (block ? [device.readBlock(block)] : [])));
  const [sealed, windowed] = [await read(view.leaves), await read(view.windowPages)];
  const pages = view.leaves.length;
  const missing = depth - sequence.length;
  sequence.plan(missing);
  await device.ensureMemory?.([view]);
  sequence.commit(missing);
  const repeat = (blocks: KvView['windowPages'] = [], contents: Uint8Array[]) =>
    blocks.slice(pages).forEach((block, i) => {
      if (block) device.writeBlock(block, contents[i % contents.length]);
    });
  repeat(view.leaves, sealed);
  repeat(view.windowPages, windowed);
}

/** A plan for timing: calibrated codecs are trained on Gaussian noise, the same for every layer. */
export function benchPlan(spec: string, { layers, ...shape }: PlanShape): Plan {
  if (!needsProfile(parseSpec(spec))) return createPlan(parseSpec(spec), { layers, ...shape });
  const samples = gaussianSamples(shape, 1024);
  const codec = createCodec(spec, shape, learn(spec, shape, { key: samples, value: samples }));
  return createPlanFromCodecs(spec, windowOf(parseSpec(spec)), Array(layers).fill(codec), shape);
}
