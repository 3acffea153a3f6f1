/** What the commands that run a model share: their options, loading with a bar, Ctrl-C, and how results read. */
import type { Command } from 'commander';
import { formatOutliers } from '../cache/outliers.ts';
import { parseSpec } from '../codec/spec.ts';
import type { ChatOptions, Conversation } from '../engine/conversation.ts';
import { loadModel, type Model } from '../engine/model.ts';
import type { Result } from '../engine/stream.ts';
import { InputError } from '../errors.ts';
import type { DeviceName } from '../kernel/open.ts';
import { isAuto } from '../plan/auto.ts';
import { formatBytes, formatCount, parseBytes, parseCount } from '../units.ts';
import { createProgress } from './progress.ts';
import { inOptions } from './words.ts';

export interface ModelOptions {
  kv?: string;
  kvMemory?: number;
  context?: number;
  profile?: string;
  overflow: 'error' | 'slide';
  device: DeviceName;
  threads?: number;
  memory?: number;
}

export interface SampleFlags {
  maxTokens?: number;
  temperature?: number;
  topK?: number;
  topP?: number;
  minP?: number;
  repetitionPenalty?: number;
  seed?: number;
  stop?: string[];
  system?: string;
}

export function addDeviceOptions(command: Command): Command {
  return command
    .option('--device <name>', 'auto, webgpu, wasm or js', 'auto')
    .option('--threads <n>', 'threads of the device', parseCount)
    .option('--memory <size>', 'most memory to take, e.g. 4GiB (default: what is free)', parseBytes);
}

export function addModelOptions(command: Command): Command {
  command
    .option(
      '--kv <spec>',
      'codec of the cache, as in `kvasir codecs`; auto, or auto:2.25 bits, lets a plan choose (default: tq4)',
    )
    .option(
      '--kv-memory <size>',
      'most memory of a whole context of cache, e.g. 300MB: the plan chooses what fits',
      parseBytes,
    )
    .option('--profile <file>', 'what `kvasir calibrate` made (default: the one of this model, if there is one)')
    .option('--context <n>', "most tokens, e.g. 8192 or 32k (default: the model's own, up to 32k)", parseCount)
    .option('--overflow <how>', 'at the end of the context: error, or slide to forget the oldest', 'error');
  return addDeviceOptions(command);
}

export function addSampleOptions(command: Command): Command {
  return command
    .option('--system <text>', 'what the model is told first')
    .option('--max-tokens <n>', 'most tokens of an answer (default: what the context leaves)', parseCount)
    .option('--temperature <t>', '0 always takes the likeliest token (default: 0.7)', parseNumber)
    .option('--top-k <n>', 'choose among the n likeliest', parseNumber)
    .option('--top-p <p>', 'choose among the likeliest that reach this probability', parseNumber)
    .option('--min-p <p>', 'drop tokens less likely than this, relative to the likeliest', parseNumber)
    .option('--repetition-penalty <x>', 'make recent tokens less likely; 1 is off', parseNumber)
    .option('--seed <n>', 'the same text for the same seed', parseNumber)
    .option('--stop <text...>', 'end before this text');
}

export function sampleOptions(flags: SampleFlags): ChatOptions {
  const { maxTokens, temperature, topK, topP, minP, repetitionPenalty, seed, stop } = flags;
  return { maxTokens, temperature, topK, topP, minP, repetitionPenalty, seed, stop };
}

export function parseNumber(text: string): number {
  const number = Number(text);
  if (text.trim() === '' || !Number.isFinite(number)) throw new InputError(`"${text}" is not a number.`);
  return number;
}

/** Codecs with commas between, for comparisons: f16 always comes first. */
export function parseSpecs(list: string): string[] {
  const specs = list.split(',').map(spec => spec.trim());
  for (const spec of specs) if (!isAuto(spec)) parseSpec(spec);
  return [...new Set(['f16', ...specs])];
}

/** Loads a model under a bar, and says on stderr what one should know. */
export async function loadForUser(name: string, options: ModelOptions, signal: AbortSignal): Promise<Model> {
  if (!['error', 'slide'].includes(options.overflow))
    throw new InputError(`--overflow is error or slide, not "${options.overflow}".`);
  const progress = createProgress({ title: 'loading', unit: 'B', quiet: !process.stderr.isTTY });
  try {
    const { kv, kvMemory, context, profile, overflow, device, threads, memory } = options;
    const model = await loadModel(name, {
      ...{ kv, kvMemory, context, profile, overflow, device, threads },
      memoryLimit: memory,
      signal,
      onProgress: ({ done, total }) => progress.update(done, total),
    });
    progress.end();
    for (const notice of model.notices) console.error(inOptions(notice));
    return model;
  } finally {
    progress.end();
  }
}

/** A bar for prompts that take more than one chunk; call `end` before the first word. */
export function prefillBar() {
  let progress: ReturnType<typeof createProgress> | undefined;
  return {
    onPrefill({ done, total }: { done: number; total: number }) {
      if (done < total) progress ??= createProgress({ title: 'reading', unit: 'tokens' });
      progress?.update(done, total);
    },
    end() {
      progress?.end();
      progress = undefined;
    },
  };
}

/** Runs work that Ctrl-C stops: once gently, twice at once. What it was stopped in is no error. */
export async function interruptible(work: (signal: AbortSignal) => Promise<void>): Promise<void> {
  const stop = new AbortController();
  const onSignal = () => {
    process.exitCode = 130;
    stop.abort();
  };
  process.once('SIGINT', onSignal).once('SIGTERM', onSignal);
  try {
    await work(stop.signal);
  } catch (error) {
    if (error !== stop.signal.reason) throw error;
  } finally {
    process.off('SIGINT', onSignal).off('SIGTERM', onSignal);
  }
}

/** Model text on a terminal: control characters could move its cursor or worse. */
export const forTerminal = (text: string): string =>
  process.stdout.isTTY ? text.replace(/[^\P{Cc}\n\t]/gu, '\ufffd') : text;

/** Speed and memory of an answer of this conversation, in lines. */
export async function statsOf({ usage, timings, finish, seed }: Result, model: Model, talk: Conversation) {
  const { pages, tails, total } = model.memory();
  const { name, threads } = model.device;
  const outliers = await talk.outliers();
  return [
    `prompt ${formatCount(usage.promptTokens)} tokens (${formatCount(usage.reusedTokens)} reused), ` +
      `${formatCount(usage.prefilledTokens)} read at ${timings.prefillRate.toFixed(1)}/s`,
    `${formatCount(usage.completionTokens)} tokens at ${timings.decodeRate.toFixed(1)}/s, ${finish}, seed ${seed}`,
    `${model.plan.spec} cache ${formatBytes(pages + tails)} of ${formatBytes(total)} on ${name}` +
      (name === 'wasm' ? ` (${threads} thread${threads === 1 ? '' : 's'})` : ''),
    ...(outliers ? [formatOutliers(outliers)] : []),
  ].join('\n');
}
