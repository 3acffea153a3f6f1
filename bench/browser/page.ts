/**
 * Runs in the page: the engine in its Worker, and wllama in its own, on the same tokens. The timing of streams is used in
 * Node too. It has no imports but types, so that a page can load it as it is.
 */
import type { Stream, Token } from '../../src/index.ts';
import type { RemoteService, startWorker } from '../../src/worker/index.ts';

export interface Sample {
  /** The greedy continuation of the prompt. */
  ids: number[];
  /** Prompt tokens that were computed, not reused, and the milliseconds until the first token after them. */
  prefilled: number;
  firstMs: number;
  /** Milliseconds per token after the first. */
  tokenMs: number;
}

export interface KvasirSetup {
  kv: string;
  threads: number;
  context: number;
}

export interface WllamaSetting {
  /** GGML type of keys and values. */
  kv: string;
  flash: boolean;
}

interface Run {
  prompt: readonly number[];
  tokens: number;
}

/** Tokens in a row whose mean is taken. */
export const WINDOW = 16;

/** The fastest mean in a row: what else runs on the machine disturbs some. A page that is late gets several at once. */
export function fastestMean(times: readonly number[]): number {
  const size = Math.min(WINDOW, times.length);
  const means = times.slice(size - 1).map((_, i) => times.slice(i, i + size).reduce((a, b) => a + b, 0) / size);
  return Math.min(...means);
}

export async function timeStream(stream: Stream<Token>): Promise<Sample> {
  const start = performance.now();
  const times: number[] = [];
  for await (const _ of stream) times.push(performance.now());
  const { ids, usage } = stream.partial;
  const tokenMs = fastestMean(times.slice(1).map((time, i) => time - times[i]));
  return { ids, prefilled: usage.prefilledTokens, firstMs: times[0] - start, tokenMs };
}

const services: Record<string, RemoteService> = {};
const importUrl = (path: string) => import(path);

export async function openKvasir({ kv, threads, context }: KvasirSetup): Promise<string> {
  const worker: { startWorker: typeof startWorker } = await importUrl('/kvasir/worker.js');
  services[kv] = await worker.startWorker('/model.gguf', { device: 'wasm', kv, threads, context });
  return services[kv].info.device.why;
}

export const runKvasir = ({ kv, prompt, tokens }: Run & { kv: string }): Promise<Sample> =>
  timeStream(services[kv].generate(prompt, { temperature: 0, ignoreEos: true, maxTokens: tokens }));

/** The part of wllama 2 that is used. */
interface Wllama {
  loadModel(files: Blob[], options: Record<string, unknown>): Promise<void>;
  getNumThreads(): number;
  samplingInit(options: { temp: number }): Promise<void>;
  samplingSample(): Promise<{ token: number }>;
  decode(tokens: number[], options: object): Promise<unknown>;
  kvRemove(keep: number, discard: number): Promise<void>;
  exit(): Promise<void>;
}

let wllama: Wllama;
let past: number[] = [];

export async function openWllama({ kv, flash, threads, context }: WllamaSetting & KvasirSetup): Promise<void> {
  const wllamaModule: { Wllama: new (paths: object, options: object) => Wllama } = await importUrl('/wllama/index.js');
  const files = ['single-thread/wllama.wasm', 'multi-thread/wllama.wasm'];
  wllama = new wllamaModule.Wllama(Object.fromEntries(files.map(file => [file, `/wllama/${file}`])), {
    suppressNativeLog: true,
  });
  const model = await (await fetch('/model.gguf')).blob();
  const cache = { cache_type_k: kv, cache_type_v: kv, flash_attn: flash, n_ctx: context };
  await wllama.loadModel([model], { ...cache, n_threads: threads, n_batch: 512 });
  await wllama.samplingInit({ temp: 0 });
  past = [];
  if (wllama.getNumThreads() !== threads)
    throw new Error(`wllama runs ${wllama.getNumThreads()} threads, not ${threads}.`);
}

/** The tokens that a prompt has in common with the one before are reused. Only decoding is timed, not sampling. */
export async function runWllama({ prompt, tokens }: Run): Promise<Sample> {
  // The last token is computed again: its logits are needed.
  let common = 0;
  while (common < prompt.length - 1 && past[common] === prompt[common]) common++;
  if (past.length > common) await wllama.kvRemove(common, past.length - common);
  const start = performance.now();
  await wllama.decode(prompt.slice(common), {});
  const firstMs = performance.now() - start;
  const times: number[] = [];
  const ids: number[] = [];
  for (let i = 0; i < tokens; i++) {
    const { token } = await wllama.samplingSample();
    const from = performance.now();
    await wllama.decode([token], {});
    times.push(performance.now() - from);
    ids.push(token);
  }
  past = [...prompt, ...ids];
  return { ids, prefilled: prompt.length - common, firstMs, tokenMs: fastestMean(times) };
}

export const closeWllama = (): Promise<void> => wllama.exit();
