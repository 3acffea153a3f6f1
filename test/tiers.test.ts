/**
 * Tiers lose nothing: an answer whose pages come from host memory, disk or Redis, in this process or another, has the same
 * tokens and the same log probabilities, bit for bit, as one that was computed.
 */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createHostStore } from '../src/cache/store/host-store.ts';
import { describeWithRedis, type RedisServer, startRedis } from '../src/cache/store/redis-server.case.ts';
import { type LoadOptions, loadModel, type Model, type Result } from '../src/index.ts';
import { writeGguf } from './gguf-writer.ts';
import { ALL_CASES } from './matrix.ts';
import { tinyModel } from './tiny-model.ts';

const tiny = new Blob([writeGguf(tinyModel({ tied: false, headDim: 32 }))]);
const mimir = fileURLToPath(new URL('../models/mimir.gguf', import.meta.url));
const PAGE = 16;

interface Case {
  kv: string;
  input: Blob | string;
  pageTokens: number;
  lengths: readonly number[];
}

/** All lengths modulo the page, or the ends of a page. */
const lengthsOf = (page: number) =>
  ALL_CASES ? Array.from({ length: page }, (_, i) => 3 * page + i) : [3 * page - 1, 3 * page, 3 * page + 1];
const cases: Case[] = [
  ...['f16', 'tq4', 'oaken'].map(kv => ({ kv, input: tiny, pageTokens: PAGE, lengths: lengthsOf(PAGE) })),
  { kv: 'mead2', input: mimir, pageTokens: 128, lengths: [257] },
];

const load = ({ kv, input, pageTokens }: Case, options: LoadOptions = {}) =>
  loadModel(input, { kv, pageTokens, context: 1024, device: 'wasm', threads: 1, ...options });
const greedy = { temperature: 0, ignoreEos: true, logprobs: 0, maxTokens: 5 };
const traceOf = ({ logprobs }: Result) => logprobs!.map(({ id, logprob }) => `${id} ${logprob}`);
const promptOf = (length: number) => Array.from({ length }, (_, i) => (i * i * 31 + i * 17 + length * 101 + 7) % 256);
const pagesBefore = ({ plan }: Model, length: number) => Math.floor((length - 1) / plan.pageTokens) * plan.pageTokens;

/** Answers all prompts with a model that has computed nothing, and expects the answers of one without tiers. */
async function expectRestored(one: Case, tiers: LoadOptions['tiers']): Promise<void> {
  await using cold = await load(one);
  const expected = new Map<number, Result>();
  for (const length of one.lengths) expected.set(length, await cold.complete(promptOf(length), greedy));
  {
    await using model = await load(one, { tiers });
    for (const [length, { usage }] of expected) {
      const stored = await model.complete(promptOf(length), greedy);
      expect(traceOf(stored)).toEqual(traceOf(expected.get(length)!));
      expect(stored.usage).toEqual(usage);
    }
  }
  for (const [length, computed] of expected) {
    await using restored = await load(one, { tiers });
    const answer = await restored.complete(promptOf(length), greedy);
    expect(answer.usage.reusedTokens, `${one.kv}, ${length} tokens`).toBe(pagesBefore(restored, length));
    expect(traceOf(answer), `${one.kv}, ${length} tokens`).toEqual(traceOf(computed));
  }
}

describe.each(cases)('$kv: the same text', one => {
  it('from host memory', async () => {
    await expectRestored(one, [createHostStore({ capacity: 2 ** 28 })]);
  });
});
