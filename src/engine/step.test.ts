import { expect, it } from 'vitest';
import { writeGguf } from '../../test/support/gguf-writer.ts';
import { tinyModel } from '../../test/support/tiny-model.ts';
import { parseSpec } from '../codec/spec.ts';
import type { Chunk } from '../model/batch.ts';
import { createPlan } from '../plan/plan.ts';
import { loadEngine, openModelFile } from './engine.ts';
import { step } from './step.ts';

const kv = 'tq3+recent5';

async function open(prefillChunk: number) {
  const file = await openModelFile(new Blob([writeGguf(tinyModel())]));
  const plan = createPlan(parseSpec(kv), { ...file.config, pageTokens: 16 });
  const engine = await loadEngine(file, { plan, context: 256 }, { device: 'js', prefillChunk });
  // On a busy machine passes would become smaller.
  Object.defineProperty(engine, 'batchSize', { value: { rows: prefillChunk, adapt() {} } });
  return { engine, sequence: () => engine.openSequence(plan, 256) };
}

const tokens = (length: number, salt: number) => Array.from({ length }, (_, i) => (i * 37 + salt * 11) % 256);

/** Logits of all chunks, as `chunk:row:logits`. */
async function logitsOf(engine: Awaited<ReturnType<typeof open>>['engine'], chunks: Chunk[], names: string[]) {
  const rows = new Map<string, string>();
  const done = await step(engine, chunks, {
    onLogits: (chunk, row, logits) => rows.set(`${names[chunks.indexOf(chunk)]}:${row}`, logits.join()),
  });
  expect(done).toBe(true);
  return rows;
}

it.each([1, 7, 64, 500])(
  'chunks of many sequences give the same logits as one sequence alone: %i rows per batch',
  async rows => {
    const { engine, sequence } = await open(rows);
    const alone = await open(128);
    const chunks = [
      { tokens: tokens(50, 1), logits: 'last' },
      { tokens: tokens(3, 2), logits: 'all' },
      { tokens: tokens(70, 3), logits: 'all' },
      { tokens: tokens(20, 4), logits: 'none' },
      { tokens: tokens(1, 5), logits: 'last' },
    ] as const;
    const names = chunks.map((_, i) => String(i));
    const together = await logitsOf(
      engine,
      chunks.map(chunk => ({ ...chunk, sequence: sequence() })),
      names,
    );
    expect(together.size).toBe(1 + 3 + 70 + 0 + 1);
    expect([...together.keys()].filter(key => /^[04]/.test(key))).toEqual(['0:49', '4:0']);
    for (const [i, chunk] of chunks.entries()) {
      const rows = await logitsOf(alone.engine, [{ ...chunk, sequence: alone.sequence() }], [names[i]]);
      for (const [key, logits] of rows) expect(together.get(key)).toBe(logits);
    }
  },
);

it('a signal stops it between batches, and the sequence holds what was run', async () => {
  const { engine, sequence } = await open(8);
  const stop = new AbortController();
  const chunk: Chunk = { sequence: sequence(), tokens: tokens(40, 1), logits: 'last' };
  const done = await step(engine, [chunk], { signal: stop.signal, onProgress: rows => rows >= 16 && stop.abort() });
  expect([done, chunk.sequence.length]).toEqual([false, 16]);
});

it('resuming at any layer from its observed input gives the same logits', async () => {
  const { engine, sequence } = await open(16);
  const chunk = (): Chunk => ({ sequence: sequence(), tokens: tokens(40, 1), logits: 'all' });
  const inputs: Float32Array[][] = [[], []];
  const expected: string[] = [];
  await step(engine, [chunk()], {
    onLogits: (_chunk, _row, logits) => expected.push(logits.join()),
    async observe(layer, { rows, x }) {
      for (let row = 0; row < rows; row++) inputs[layer].push(await engine.device.readRows(x, row));
    },
  });
  for (const [layer, input] of inputs.entries()) {
    const again: string[] = [];
    await step(engine, [chunk()], {
      onLogits: (_chunk, _row, logits) => again.push(logits.join()),
      resume: {
        layer,
        rows: ({ sequence: { length }, tokens }) =>
          Float32Array.from(input.slice(length, length + tokens.length).flatMap(row => [...row])),
      },
    });
    expect(again).toEqual(expected);
  }
});

it('prefill rows come last in a batch, and stay prefill rows however the prompt is split', async () => {
  const { engine, sequence } = await open(6);
  const { device } = engine;
  const project = device.project.bind(device);
  const calls: string[] = [];
  device.project = (x, rows, projections, prefillRows) => {
    calls.push(`${prefillRows ?? 'any'} of ${rows}`);
    project(x, rows, projections, prefillRows);
  };
  const chunk = (length: number, prefill?: boolean): Chunk => ({
    sequence: sequence(),
    tokens: tokens(length, 1),
    logits: 'none',
    prefill,
  });
  // First batch: one decode row and five prefill rows. Second: the rest of the prompt, a prompt of one token, a decode row.
  await step(engine, [chunk(1), chunk(7), chunk(1, true), chunk(1, false)]);
  expect([...new Set(calls)]).toEqual(['5 of 6', '3 of 4']);
  // The rest of the prompt is a single token, and still a prefill row.
  calls.length = 0;
  await step(engine, [chunk(1), chunk(6), chunk(1, false)]);
  expect([...new Set(calls)]).toEqual(['5 of 6', '1 of 2']);
});
