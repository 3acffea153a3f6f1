/** On the wasm device, a sequence's logits have the same bits alone and in any batch, in chunks of any size. */

import { expect, it } from 'vitest';
import type { Sequence } from '../src/cache/sequence.ts';
import { parseSpec } from '../src/codec/spec.ts';
import { type Engine, loadEngine, openModelFile, planShape } from '../src/engine/engine.ts';
import { step } from '../src/engine/step.ts';
import type { Chunk } from '../src/model/batch.ts';
import { createPlan, createPlanFromCodecs, type Plan } from '../src/plan/plan.ts';
import { createTrained } from './support/codec-suite.ts';
import { writeGguf } from './support/gguf-writer.ts';
import { ALL_CASES, matrix } from './support/matrix.ts';
import { tinyModel } from './support/tiny-model.ts';

/** `npm test` has smaller pages, so that fewer tokens have as many of them. */
const PAGE = ALL_CASES ? 128 : 32;
/** More than two pages, a token, a page and a little, and four pages and a token. */
const LENGTHS = [2.25 * PAGE + 12, 1, PAGE + 3, 4 * PAGE + 1];
const model = new Blob([writeGguf(tinyModel({ tied: false, headDim: 64 }))]);
const tokensOf = (length: number) => Array.from({ length }, (_, i) => 3 + ((i * 31 + length) % 90));

/** The last logits of sequences of these lengths, run as one batch, `chunk` rows at a time. */
async function lastLogits(kv: string, lengths: readonly number[], chunk: number): Promise<Float32Array[]> {
  const file = await openModelFile(model);
  const plan = createPlan(parseSpec(kv), planShape(file, PAGE));
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

/** Around page boundaries and windows. The 16 sequences of a batch start at these lengths. */
const DEPTHS = [
  ...[0, 1, 5, 17, 40],
  ...[PAGE - 1, PAGE, PAGE + 2, PAGE + 40, 1.5 * PAGE + 8],
  ...[2 * PAGE - 1, 2 * PAGE, 2 * PAGE + 1, 2 * PAGE + 44, 3 * PAGE - 1, 4 * PAGE + 1],
];
const PROMPT = PAGE + 22;
/** Sequences that decode after each other and together: in step i, the first i + 1 of them in this order. */
const ORDER = [2, 9, 0, 5, 15, 3, 12, 1, 7, 4, 11, 8, 14, 6, 10, 13];
const quantized = new Blob([writeGguf(tinyModel({ type: 'Q4_1', tied: false, headDim: 64 }))]);

/** Runs the chunks in one pass, and returns the last logits of each. */
async function pass(engine: Engine, chunks: readonly Omit<Chunk, 'logits'>[]): Promise<Map<Sequence, Float32Array>> {
  const last = new Map<Sequence, Float32Array>();
  const onLogits = ({ sequence }: Chunk, _row: number, logits: Float32Array) => void last.set(sequence, logits);
  await step(
    engine,
    chunks.map(chunk => ({ ...chunk, logits: 'last' })),
    { onLogits },
  );
  return last;
}

function trainedPlan(kv: string, engine: Engine): Plan {
  const { layers, ...shape } = planShape(engine, PAGE);
  const codec = createTrained(kv, shape, new Float32Array(shape.kvHeads * shape.headDim));
  return createPlanFromCodecs(kv, codec.window, Array(layers).fill(codec));
}

it.each(
  matrix(['f16', 'tq4', 'tq4+recent40', 'f16+sink0+recent130', 'mead2u', 'kivi2g32', 'mead2+recent7'], {
    f16: 'rows of f16',
    'tq4+recent40': 'lookup tables, a recent window',
    mead2u: 'page-relative keys',
  }),
)('%s: 1 to 16 decoding sequences at different depths and a prompt give the same bits as each alone', async kv => {
  const file = await openModelFile(quantized);
  const cache = { plan: createPlan(parseSpec('f16'), planShape(file, PAGE)), context: 1024 };
  const engine = await loadEngine(file, cache, { device: 'wasm', threads: 2, prefillChunk: 512 });
  // A pass adapts to the speed of the machine; here all rows of a step run in one pass.
  const oneBatch: Engine = { ...engine, batchSize: { rows: 512, adapt() {} } };
  const plan = trainedPlan(kv, engine);
  const open = () => engine.openSequence(plan, 1024);
  const nextToken = (sequence: number, i: number) => 3 + ((7 * sequence + 11 * i) % 90);

  const expected = new Map<string, Float32Array>();
  const prompt = open();
  const promptLogits = [...(await pass(oneBatch, [{ sequence: prompt, tokens: tokensOf(PROMPT) }])).values()];
  for (const [n, depth] of DEPTHS.entries()) {
    const sequence = open();
    if (depth > 0) await pass(oneBatch, [{ sequence, tokens: tokensOf(depth) }]);
    for (let i = ORDER.indexOf(n); i < DEPTHS.length; i++) {
      const logits = await pass(oneBatch, [{ sequence, tokens: [nextToken(n, i)] }]);
      expected.set(`${n} ${i}`, logits.get(sequence)!);
    }
    sequence.dispose();
  }

  const sequences = DEPTHS.map(open);
  const filled = sequences.map((sequence, n) => ({ sequence, tokens: tokensOf(DEPTHS[n]) }));
  await pass(
    oneBatch,
    filled.filter(({ tokens }) => tokens.length > 0),
  );
  for (let i = 0; i < DEPTHS.length; i++) {
    const decoding = ORDER.slice(0, i + 1);
    const newPrompt = open();
    const found = await pass(oneBatch, [
      { sequence: newPrompt, tokens: tokensOf(PROMPT) },
      ...decoding.map(n => ({ sequence: sequences[n], tokens: [nextToken(n, i)] })),
    ]);
    expect([found.get(newPrompt)]).toEqual(promptLogits);
    for (const n of decoding)
      expect(found.get(sequences[n]), `sequence ${n}, step ${i}`).toEqual(expected.get(`${n} ${i}`));
    newPrompt.dispose();
  }
  await engine.dispose();
});
