/**
 * How fast is wasm in a browser? Decoding and prefill by depth in headless Chromium and in Node, in turn on the same
 * machine, compared with wllama (llama.cpp in WebAssembly) in the same Chromium.
 *
 * Validates: greedy tokens must be the same in Chromium and in Node, and a short answer of wllama the same as ours.
 */
import { loadModel, type Model } from '../src/index.ts';
import { type BenchPage, openPage } from './browser/open-page.ts';
import { type Sample, timeStream, WINDOW } from './browser/page.ts';
import { type Contender, FIRST_PROMPT, type Row, renderTables } from './browser/tables.ts';
import { measureWllama } from './browser/wllama.ts';
import { expectSameIds } from './concurrent.ts';
import { promptTokens } from './fill-context.ts';

interface Options {
  model: string;
  kv: string;
  depths: string;
  threads: string;
  rounds: string;
  tokens: string;
  /** A folder where wllama is installed. */
  wllama?: string;
  /** Max minutes in which it reads prompts. */
  minutes: string;
  json: boolean;
}

interface Engine extends Contender {
  run(prompt: readonly number[], tokens: number): Promise<Sample>;
}

const greedy = { temperature: 0, ignoreEos: true };
const progress = (text: string) => console.error(`bench: ${text}`);

export async function benchBrowser(options: Options): Promise<void> {
  const [threads, tokens, rounds] = [options.threads, options.tokens, options.rounds].map(Number);
  const depths = options.depths.split(',').map(Number);
  depths.sort((a, b) => a - b);
  const context = Math.max(FIRST_PROMPT, ...depths) + tokens + 1;
  const page = await openPage(options.model, options.wllama);
  const models: Model[] = [];
  try {
    const engines: Engine[] = [];
    for (const kv of options.kv.split(',')) {
      progress(`loading ${kv} in Chromium and in Node`);
      const model = await loadModel(options.model, { device: 'wasm', kv, threads, context });
      models.push(model);
      engines.push(await openInChromium(page, { kv, threads, context }), openInNode(model, kv));
    }
    await validate(engines);
    const rows: Row[] = [];
    for (const depth of depths) rows.push(...(await measure(engines, depth, tokens, rounds)));
    if (options.wllama !== undefined) {
      const example = await answerExample(models[0]);
      const maxMs = Number(options.minutes) * 60_000;
      const setting = { threads, context, tokens, rounds, maxMs, example, onProgress: progress };
      rows.push(...(await measureWllama(page, depths, setting)));
    }
    const setting = `${threads} threads, the fastest ${WINDOW} tokens in a row of ${rounds} rounds of ${tokens}`;
    console.log(options.json ? JSON.stringify({ setting, rows }, null, 1) : renderTables(setting, rows));
  } finally {
    await page.close();
    await Promise.all(models.map(model => model.dispose()));
  }
}

/** Short enough that every codec reads all of it in f16. */
async function answerExample(model: Model) {
  const prompt = model.tokenizer.encode('The capital of France is');
  const { ids } = await model.complete(prompt, { ...greedy, maxTokens: 4 });
  return { prompt, ids };
}

async function openInChromium(page: BenchPage, setting: { kv: string; threads: number; context: number }) {
  const { kv } = setting;
  progress(`Chromium: ${await page.call('openKvasir', setting)}`);
  const run: Engine['run'] = (prompt, tokens) => page.call('runKvasir', { kv, prompt, tokens });
  return { where: 'Chromium', kv, run } as const;
}

function openInNode(model: Model, kv: string): Engine {
  progress(`Node: ${model.device.why}`);
  return {
    where: 'Node',
    kv,
    run: (prompt, tokens) => timeStream(model.generate(prompt, { ...greedy, maxTokens: tokens })),
  };
}

/** Also compiles: the first passes of an engine are slower. */
async function validate(engines: readonly Engine[]): Promise<void> {
  const expected = new Map<string, number[]>();
  for (const { where, kv, run } of engines) {
    const { ids } = await run(promptTokens(300, 2), 32);
    expectSameIds(expected.get(kv) ?? ids, ids, `${kv} in ${where}`);
    expected.set(kv, ids);
  }
}

/** Engines take turns. The first round reads the prompt, from the depth before on; the others reuse it. */
async function measure(engines: readonly Engine[], depth: number, tokens: number, rounds: number): Promise<Row[]> {
  const rows: Row[] = engines.map(({ where, kv }) => ({
    where,
    kv,
    depth,
    tokenMs: Number.POSITIVE_INFINITY,
    prefill: 0,
  }));
  const expected = new Map<string, number[]>();
  for (let round = 0; round < rounds; round++) {
    for (const [i, { where, kv, run }] of engines.entries()) {
      const { ids, tokenMs, prefilled, firstMs } = await run(promptTokens(Math.max(1, depth)), tokens);
      const row = rows[i];
      row.tokenMs = Math.min(row.tokenMs, tokenMs);
      expectSameIds(expected.get(kv) ?? ids, ids, `${kv} in ${where} at depth ${depth}`);
      expected.set(kv, ids);
      if (round > 0) continue;
      const first = depth > 0 ? { prefilled, firstMs } : await run(promptTokens(FIRST_PROMPT), 1);
      row.prefill = (1000 * first.prefilled) / first.firstMs;
      progress(
        `depth ${depth}, ${where} ${kv}: ${row.tokenMs.toFixed(2)} ms per token, prefill ${row.prefill.toFixed(0)}`,
      );
    }
  }
  return rows;
}
