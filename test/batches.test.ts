/** On the wasm device, a sequence's logits have the same bits alone and in any batch, in chunks of any size. */
import { expect, it } from 'vitest';
import { loadEngine, openModelFile } from '../src/engine/engine.ts';
import { step } from '../src/engine/step.ts';
import { createPlan } from '../src/plan/plan.ts';
import { writeGguf } from './gguf-writer.ts';
import { matrix } from './matrix.ts';
import { tinyModel } from './tiny-model.ts';

const LENGTHS = [300, 1, 131, 513];
const model = new Blob([writeGguf(tinyModel({ tied: false, headDim: 64 }))]);
const tokensOf = (length: number) => Array.from({ length }, (_, i) => 3 + ((i * 31 + length) % 90));

/** The last logits of sequences of these lengths, run as one batch, `chunk` rows at a time. */
async function lastLogits(kv: string, lengths: readonly number[], chunk: number): Promise<Float32Array[]> {
  const file = await openModelFile(model);
  const plan = createPlan(kv, file.config);
  const engine = await loadEngine(file, { plan, context: 1024 }, { device: 'wasm', threads: 2, prefillChunk: chunk });
  const sequences = lengths.map(() => engine.openSequence(plan, 1024));
  const last: Float32Array[] = [];
  // Sequences of different lengths from the start: each first runs a part of another length.
  for (const part of [0, 1]) {
    const chunks = sequences.map((sequence, i) => {
      const tokens = tokensOf(lengths[i]);
      const cut = Math.floor(tokens.length / (i + 2));
      return { sequence, tokens: part === 0 ? tokens.slice(0, cut) : tokens.slice(cut), logits: 'last' as const };
    });
    await step(engine, chunks, {
      onLogits: ({ sequence }, _row, logits) => {
        last[sequences.indexOf(sequence as (typeof sequences)[number])] = new Float32Array(logits);
      },
    });
  }
  await engine.dispose();
  return last;
}

it.each(matrix(['f16', 'tq4', 'tq2u', 'kivi2g32', 'oscar2g32'], { f16: 'rows of f16', tq4: 'lookup tables' }))(
  '%s: same bits alone and in a batch, in chunks of any size',
  async kv => {
    const alone: Float32Array[] = [];
    for (const length of LENGTHS) alone.push(...(await lastLogits(kv, [length], 512)));
    for (const chunk of [1, 7, 128, 512]) expect(await lastLogits(kv, LENGTHS, chunk)).toEqual(alone);
  },
);
