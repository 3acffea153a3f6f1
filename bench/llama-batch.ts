/**
 * The process behind llama-process.ts: answers requests to fill and decode the sequences of one llama.cpp context.
 * node-llama-cpp puts all sequences that wait for a token into one call of llama_decode.
 */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { BatchSetup } from './concurrent.ts';
import { decodeRate } from './concurrent.ts';
import { promptTokens } from './fill-context.ts';
import { openSequences } from './llama-context.ts';
import type { LlamaRequest, LlamaSetting } from './llama-process.ts';

const setup: BatchSetup & LlamaSetting = JSON.parse(process.argv[2]);
const sequences = await openSequences({ ...setup, modelPath: setup.model, contextSize: setup.context });
const reply = (rate = 0) => process.send?.(rate);

/** Sequences after the first get a copy of its cells: time does not depend on their contents. */
async function fill(depth: number, count: number): Promise<void> {
  const [first, ...others] = sequences.slice(0, count);
  const missing = depth - first.nextTokenIndex;
  if (missing <= 0) return;
  await first.evaluateWithoutGeneratingNewTokens(promptTokens(missing) as never[]);
  const folder = await mkdtemp(join(tmpdir(), 'kvasir-bench-'));
  const state = join(folder, 'sequence');
  try {
    await first.saveStateToFile(state);
    for (const sequence of others) await sequence.loadStateFromFile(state, { acceptRisk: true });
  } finally {
    await rm(folder, { recursive: true });
  }
}

async function prefill(tokens: number): Promise<number> {
  const [sequence] = sequences;
  await sequence.clearHistory();
  const start = performance.now();
  await sequence.evaluateWithoutGeneratingNewTokens(promptTokens(tokens) as never[]);
  const seconds = (performance.now() - start) / 1000;
  await sequence.clearHistory();
  return tokens / seconds;
}

async function decode(count: number): Promise<number> {
  const active = sequences.slice(0, count);
  const depth = active[0].nextTokenIndex;
  const streams = active.map((sequence, i) =>
    sequence.evaluate([10 + i] as never[], { temperature: 0, yieldEogToken: true }),
  );
  const rate = await decodeRate(streams, setup.tokens);
  for (const stream of streams) await stream.return(undefined as never);
  for (const sequence of active)
    await sequence.eraseContextTokenRanges([{ start: depth, end: sequence.nextTokenIndex }]);
  return rate;
}

process.on('message', async (request: LlamaRequest) => {
  if ('prefill' in request) {
    reply(await prefill(request.prefill.tokens));
  } else if ('decode' in request) {
    reply(await decode(request.decode.count));
  } else {
    await fill(request.fill.depth, request.fill.count);
    reply();
  }
});
process.on('disconnect', () => process.exit());
reply();
