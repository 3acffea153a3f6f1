/** Deep contexts without the wait: the pages of a real prompt, over and over. Time and room do not depend on what they hold. */
import type { Sequence } from '../src/cache/sequence.ts';
import type { Engine } from '../src/engine/engine.ts';

export const promptTokens = (count: number, seed = 1) =>
  Array.from({ length: count }, (_, i) => 10 + ((i * 7919 + seed * 104729) % 900));

/** Lengthens a sequence that has sealed pages. */
export async function fillTo({ device }: Engine, sequence: Sequence, depth: number): Promise<void> {
  const made = await Promise.all(sequence.view.leaves.map(leaf => device.readBlock(leaf)));
  const missing = depth - sequence.length;
  sequence.plan(missing);
  sequence.commit(missing);
  sequence.view.leaves.slice(made.length).forEach((leaf, i) => {
    device.writeBlock(leaf, made[i % made.length]);
  });
}
