/**
 * wllama in the bench's page: with the cache type and attention that decode fastest, as deep as its time allows.
 *
 * Its prompts take minutes, so at depths that it does not reach, its time per token is estimated: attention takes time in
 * proportion to the depth, so the time is a line, fitted to the depths that were reached.
 */
import { expectSameIds } from '../concurrent.ts';
import { promptTokens } from '../fill-context.ts';
import type { BenchPage } from './open-page.ts';
import type { Sample, WllamaSetting } from './page.ts';
import { FIRST_PROMPT, type Row } from './tables.ts';

export interface WllamaOptions {
  threads: number;
  context: number;
  /** Decoded tokens per depth. */
  tokens: number;
  rounds: number;
  /** For reading the prompt. */
  maxMs: number;
  /** A prompt and its greedy continuation, that wllama must give too. */
  example: { prompt: readonly number[]; ids: readonly number[] };
  onProgress(text: string): void;
}

type Point = Pick<Row, 'depth' | 'tokenMs' | 'prefill'>;

/** llama.cpp quantizes values with flash attention only. */
const SETTINGS: readonly WllamaSetting[] = [
  { kv: 'f16', flash: true },
  { kv: 'f16', flash: false },
  { kv: 'q8_0', flash: true },
  { kv: 'q4_0', flash: true },
];
/** Prompts are read in parts of this length, and all settings are tried with one. */
const PART = FIRST_PROMPT;
/** Decoded tokens after parts that end at no requested depth. */
const FEW_TOKENS = 8;

export async function measureWllama(page: BenchPage, depths: readonly number[], options: WllamaOptions) {
  const trials: { setting: WllamaSetting; tokenMs: number }[] = [];
  for (const setting of SETTINGS) {
    await open(page, setting, options);
    if (setting.kv === 'f16') await validate(page, options);
    const { tokenMs } = await measure(page, PART, options.tokens, 1);
    options.onProgress(`wllama ${describe(setting)}: ${tokenMs.toFixed(1)} ms per token at ${PART}`);
    trials.push({ setting, tokenMs });
    await page.call('closeWllama', undefined);
  }
  const { setting } = trials.reduce((a, b) => (b.tokenMs < a.tokenMs ? b : a));
  await open(page, setting, options);
  const points = await measurePoints(page, depths, options);
  await page.call('closeWllama', undefined);
  return depths.map((depth): Row => {
    const point = points.find(point => point.depth === depth);
    return { where: 'wllama', kv: describe(setting), ...(point ?? estimateAt(points, depth)), isEstimate: !point };
  });
}

const describe = ({ kv, flash }: WllamaSetting) => `${kv}, flash ${flash ? 'on' : 'off'}`;

async function open(page: BenchPage, setting: WllamaSetting, { threads, context }: WllamaOptions): Promise<void> {
  await page.call('openWllama', { ...setting, threads, context });
  // The first passes are slower: the browser is still compiling.
  await page.call('runWllama', { prompt: promptTokens(64, 2), tokens: FEW_TOKENS });
}

async function validate(page: BenchPage, { example: { prompt, ids } }: WllamaOptions): Promise<void> {
  const sample = await page.call('runWllama', { prompt, tokens: ids.length });
  expectSameIds(ids, sample.ids, 'wllama');
}

/** Reads a prompt part by part, and decodes after each, until the last depth or the end of its time. */
async function measurePoints(page: BenchPage, depths: readonly number[], options: WllamaOptions): Promise<Point[]> {
  const { tokens, rounds, maxMs, onProgress } = options;
  const last = Math.max(PART, ...depths);
  const parts = Array.from({ length: Math.floor(last / PART) }, (_, i) => PART * (i + 1));
  const stops = [...new Set([...depths, ...parts])].sort((a, b) => a - b);
  const points: Point[] = [];
  const end = performance.now() + maxMs;
  let partMs = 0;
  let read = { tokens: 0, ms: 0 };
  for (const depth of stops) {
    // The next part takes at least as long as the last one.
    const start = performance.now();
    if (points.length > 2 && start + partMs > end) break;
    const isRequested = depths.includes(depth);
    const sample = await measure(page, depth, isRequested ? tokens : FEW_TOKENS, isRequested ? rounds : 1);
    partMs = performance.now() - start;
    read = { tokens: read.tokens + sample.prefilled, ms: read.ms + sample.firstMs };
    const point = { depth, tokenMs: sample.tokenMs, prefill: (1000 * read.tokens) / read.ms };
    onProgress(`wllama at ${depth}: ${point.tokenMs.toFixed(1)} ms per token, prefill ${point.prefill.toFixed(0)}`);
    points.push(point);
    if (isRequested || depth === PART) read = { tokens: 0, ms: 0 };
  }
  if (points[0].depth === 0) points[0].prefill = points[1].prefill;
  return points;
}

/** The fastest of several rounds; the first one reads the prompt. */
async function measure(page: BenchPage, depth: number, tokens: number, rounds: number): Promise<Sample> {
  const run = () => page.call('runWllama', { prompt: promptTokens(Math.max(1, depth)), tokens });
  const sample = await run();
  for (let round = 1; round < rounds; round++) sample.tokenMs = Math.min(sample.tokenMs, (await run()).tokenMs);
  return sample;
}

/** The least-squares line through the points, at a depth. Prefill is what it was so far: deeper, it is slower. */
export function estimateAt(points: readonly Point[], depth: number): Point {
  const mean = (values: number[]) => values.reduce((a, b) => a + b, 0) / values.length;
  const [meanDepth, meanMs] = [mean(points.map(({ depth }) => depth)), mean(points.map(({ tokenMs }) => tokenMs))];
  const covariance = mean(points.map(point => (point.depth - meanDepth) * (point.tokenMs - meanMs)));
  // On a busy machine times can decrease with the depth.
  const slope = Math.max(0, covariance / mean(points.map(point => (point.depth - meanDepth) ** 2)));
  return { depth, tokenMs: meanMs + slope * (depth - meanDepth), prefill: points[points.length - 1].prefill };
}
