/**
 * What do tiers cost, and what do they save? Decoding with and without them, and the time to the first token of a prompt
 * that is computed, in the cache, or in a tier.
 *
 * Validates: greedy answers must be the same from everywhere.
 */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { formatTable } from '../src/cli/table.ts';
import { type LoadOptions, loadModel, type Model } from '../src/index.ts';
import { createHostStore } from '../src/store/host-store.ts';
import { formatBytes } from '../src/util/units.ts';
import { expectSameIds } from './concurrent.ts';
import { promptTokens } from './fill-context.ts';
import { withRedis } from './stores.ts';

interface Options {
  model: string;
  kv: string;
  prompt: string;
  tokens?: string;
  threads: string;
  rounds: string;
  /** Of a Redis or Valkey server. Default: one is started. */
  url?: string;
  json: boolean;
}

interface Row {
  from: string;
  tokens: number;
  firstMs: number;
  /** Bytes of leaves per second. */
  rate?: number;
}

/** Decoding with tiers may be slower by this factor. */
const MAX_SLOWDOWN = 1.03;
const greedy = { temperature: 0, ignoreEos: true };

export async function benchTiers(options: Options): Promise<void> {
  const { kv } = options;
  const [length, threads, rounds] = [options.prompt, options.threads, options.rounds].map(Number);
  const load = (tiers?: LoadOptions['tiers']) =>
    loadModel(options.model, { device: 'wasm', threads, kv, context: length + 2048, tiers });
  const decode = await measureDecode(load, Number(options.tokens ?? 256), rounds);
  const folder = await mkdtemp(join(tmpdir(), 'kvasir-bench-'));
  try {
    const lengths = [length / 16, length / 4, length].map(Math.floor);
    await withRedis(options.url, async url => {
      const rows = await measureWarm(load, lengths, {
        host: [createHostStore({ capacity: 8 * 2 ** 30 })],
        disk: `disk=${folder}:8GiB`,
        ...(url && { redis: `redis=${url}` }),
      });
      console.log(options.json ? JSON.stringify({ kv, threads, decode, rows }, null, 1) : render(decode, rows));
    });
  } finally {
    await rm(folder, { recursive: true });
  }
}

/** Milliseconds of CPU time per token without and with a tier, in turn; the fastest round of each. */
async function measureDecode(load: (tiers?: string) => Promise<Model>, tokens: number, rounds: number) {
  await using without = await load();
  await using tiered = await load('host=4GiB');
  const best = { without: Number.POSITIVE_INFINITY, with: Number.POSITIVE_INFINITY };
  const run = async (model: Model, name: keyof typeof best, prompt: number[]) => {
    const start = process.cpuUsage();
    const { ids } = await model.complete(prompt, { ...greedy, maxTokens: tokens });
    const { user, system } = process.cpuUsage(start);
    best[name] = Math.min(best[name], (user + system) / 1000 / tokens);
    return ids;
  };
  for (let round = 0; round < rounds; round++) {
    const prompt = promptTokens(64, round);
    expectSameIds(await run(without, 'without', prompt), await run(tiered, 'with', prompt), 'decoding with tiers');
  }
  return { tokens, ...best, ratio: best.with / best.without };
}

async function measureWarm(
  load: (tiers?: LoadOptions['tiers']) => Promise<Model>,
  lengths: readonly number[],
  tiers: Record<string, LoadOptions['tiers']>,
): Promise<Row[]> {
  const rows: Row[] = [];
  const ask = async (model: Model, from: string, length: number) => {
    const start = performance.now();
    const stream = model.generate(promptTokens(length + 1, length), { ...greedy, maxTokens: 8 });
    await stream.next();
    const firstMs = performance.now() - start;
    const { ids, usage } = await stream.result();
    const pages = Math.floor(usage.reusedTokens / model.plan.pageTokens);
    const rate = pages > 0 ? (pages * model.plan.leaf.bytes * 1000) / firstMs : undefined;
    rows.push({ from, tokens: length, firstMs, rate });
    return ids;
  };
  for (const [name, tier] of Object.entries(tiers)) {
    const expected = new Map<number, readonly number[]>();
    {
      await using model = await load(tier);
      // The first pass compiles.
      await model.complete(promptTokens(64, 1), { ...greedy, maxTokens: 2 });
      for (const length of lengths) {
        expected.set(length, await ask(model, `computed, and put into ${name}`, length));
        expectSameIds(expected.get(length)!, await ask(model, 'in the cache', length), 'in the cache');
      }
    }
    for (const length of lengths) {
      await using model = await load(tier);
      expectSameIds(expected.get(length)!, await ask(model, name, length), `from ${name}`);
    }
  }
  return rows.sort((a, b) => a.tokens - b.tokens);
}

function render(decode: Awaited<ReturnType<typeof measureDecode>>, rows: readonly Row[]): string {
  return [
    `decoding ${decode.tokens} tokens: ${decode.without.toFixed(2)} ms of CPU per token, with tiers ${decode.with.toFixed(2)}: ` +
      `${decode.ratio.toFixed(3)} times (at most ${MAX_SLOWDOWN})`,
    formatTable(
      ['prompt', 'from', 'first token', 'leaves'],
      rows.map(({ from, tokens, firstMs, rate }) => [
        `${tokens}`,
        from,
        `${firstMs.toFixed(1)} ms`,
        rate === undefined ? '' : `${formatBytes(rate)}/s`,
      ]),
    ),
  ].join('\n');
}
