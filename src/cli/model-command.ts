/** Shared by the commands that run a model: options, loading with a progress bar, Ctrl-C, statistics. */
import type { Command } from 'commander';
import { type LoadOptions, loadModel, type Model } from '../api/model.ts';
import type { ChatOptions } from '../chat/conversation-options.ts';
import { qualityLossActions } from '../engine/guard.ts';
import { checkPolicyName, policyNames } from '../eviction/policies.ts';
import type { LoadProgress } from '../model/weights.ts';
import { parsePlanSpec } from '../plan/auto.ts';
import { presets } from '../plan/plan.ts';
import { parseTiers, type Tier } from '../store/tiers.ts';
import { InputError } from '../util/errors.ts';
import { pick } from '../util/pick.ts';
import { parseBytes, parseCount } from '../util/units.ts';
import { PROFILE_HELP, resolveProfileFlag } from './profile-flag.ts';
import { createPhaseBars, createProgress, type ProgressOptions } from './progress.ts';

/** Flags that are options of `loadModel` under the same name. */
const LOAD_FLAGS = [
  ...(['quality', 'kv', 'contextMemory', 'kvMemory', 'context', 'overflow', 'eviction', 'onQualityLoss'] as const),
  ...(['speculate', 'device', 'threads'] as const),
];
const SAMPLING_FLAGS = [
  ...(['maxTokens', 'temperature', 'topK', 'topP', 'minP', 'repetitionPenalty', 'seed', 'stop'] as const),
];

export interface DeviceFlags extends Pick<LoadOptions, 'device' | 'threads'> {
  memory?: number;
}

export interface ModelOptions extends DeviceFlags, Pick<LoadOptions, (typeof LOAD_FLAGS)[number]> {
  profile?: string;
  shadow?: boolean;
  tier?: Tier[];
}

export interface SamplingFlags extends Pick<ChatOptions, (typeof SAMPLING_FLAGS)[number]> {
  system?: string;
}

export const addModelArgument = (command: Command): Command =>
  command.argument('<model>', 'a .gguf file, or org/repo:Q4_K_M after `kvasir pull`');

export function addDeviceOptions(command: Command): Command {
  return command
    .option('--device <name>', 'auto, webgpu, wasm or js', 'auto')
    .option('--threads <n>', 'number of threads (wasm)', parseCount)
    .option('--memory <size>', 'memory limit, e.g. 4GiB (default: the free memory; on a GPU none)', parseBytes);
}

export const deviceOptions = ({ device, threads, memory }: DeviceFlags) => ({ device, threads, memoryLimit: memory });

export function addModelOptions(command: Command): Command {
  command
    .option(
      '--quality <preset>',
      'of the KV cache: safe (q8_0), balanced (default) or small, which use the profile, if there is one, else tq4 and tq3',
      parsePreset,
    )
    .option(
      '--kv <spec>',
      'instead of --quality: a codec (see `kvasir codecs`), or auto, or auto:2.25 for a plan of 2.25 bits per value',
    )
    .option(
      '--context-memory <size>',
      'memory limit for the KV cache of a full context, e.g. 300MB; the plan chooses codecs that fit',
      parseBytes,
    )
    .option(
      '--kv-memory <size>',
      'memory limit for the KV cache of all conversations together, e.g. 2GiB; a CPU holds about 3.4 GiB',
      parseBytes,
    )
    .option('--profile <file>', PROFILE_HELP)
    .option('--context <n>', "maximum tokens, e.g. 8192 or 32k (default: the model's context, up to 32k)", parseCount)
    .option(
      '--overflow <how>',
      'when the context is full: error, or slide to drop the oldest tokens',
      parseChoice(['error', 'slide']),
      'error',
    )
    .option('--eviction <policy>', `what leaves a full cache first: ${policyNames.join(', ')} (default: lru)`)
    .option(
      '--tier <list>',
      'where pages are stored, the fastest first: host=4GiB,disk=/dir:50GiB,redis=redis://host:6379',
      parseTiers,
    )
    .option(
      '--on-quality-loss <how>',
      'when the codec does not suit the model: notice, or error',
      parseChoice(qualityLossActions),
      'notice',
    )
    .option(
      '--no-speculate',
      'do not guess tokens where the text repeats itself, which gives the same text, mostly sooner',
    );
  return addDeviceOptions(command);
}

export const SHADOW_HELP =
  'keep every page in f16 beside its codes, and measure how much the codes change (with --stats; for evaluation)';

export function addSamplingOptions(command: Command): Command {
  return command
    .option('--system <text>', 'system message')
    .option('--max-tokens <n>', 'maximum tokens per answer (default: the rest of the context)', parseCount)
    .option('--temperature <t>', 'sampling temperature; 0 is greedy (default: 0.7)', parseNumber)
    .option('--top-k <n>', 'sample from the n most likely tokens', parseNumber)
    .option('--top-p <p>', 'sample from the most likely tokens whose probabilities sum to p', parseNumber)
    .option('--min-p <p>', 'drop tokens below this fraction of the top probability', parseNumber)
    .option('--repetition-penalty <x>', 'penalize recent tokens; 1 is off', parseNumber)
    .option('--seed <n>', 'random seed; the same seed gives the same text', parseNumber)
    .option('--stop <text...>', 'end the answer before this text');
}

export const samplingOptions = (flags: SamplingFlags): ChatOptions => pick(flags, SAMPLING_FLAGS);

export function parseNumber(text: string): number {
  const number = Number(text);
  if (text.trim() === '' || !Number.isFinite(number)) throw new InputError(`"${text}" is not a number.`);
  return number;
}

/** A parser of options that take one of these names. */
export const parseChoice =
  <T extends string>(names: readonly T[], noun = 'one of the choices') =>
  (text: string): T => {
    const found = names.find(name => name === text);
    if (found !== undefined) return found;
    throw new InputError(`"${text}" is not ${noun}. Use ${names.slice(0, -1).join(', ')} or ${names.at(-1)}.`);
  };

export const parsePreset = parseChoice(presets, 'a preset');

/** The items of a list with commas. */
export const parseList = (list: string): string[] =>
  list
    .split(',')
    .map(item => item.trim())
    .filter(Boolean);

/** Parses a comma-separated list of codecs to compare, and puts f16, the reference, first. */
export function parseSpecList(list: string): string[] {
  const specs = parseList(list);
  specs.forEach(parsePlanSpec);
  return [...new Set(['f16', ...specs])];
}

/** The options of `loadModel`. */
export async function loadOptions(name: string, options: ModelOptions, signal?: AbortSignal) {
  if (typeof options.eviction === 'string') checkPolicyName(options.eviction);
  return {
    ...pick(options, LOAD_FLAGS),
    memoryLimit: options.memory,
    profile: await resolveProfileFlag(options.profile, name, signal),
    kvMode: options.shadow ? ('shadow' as const) : undefined,
    tiers: options.tier,
  };
}

const LOADING_TITLES: Record<LoadProgress['phase'], string> = {
  fetch: 'downloading',
  hash: 'hashing',
  load: 'loading',
};

/** A progress bar for each phase of loading. */
export function createLoadingBars(options: Pick<ProgressOptions, 'quiet' | 'stream'>) {
  const bars = createPhaseBars((phase: LoadProgress['phase']) => ({
    ...options,
    title: LOADING_TITLES[phase],
    unit: 'B',
  }));
  return { update: ({ phase, done, total }: LoadProgress) => bars.update(phase, done, total), end: bars.end };
}

/** Loads a model with a progress bar and prints its notices on stderr. */
export async function loadWithProgress(name: string, options: ModelOptions, signal: AbortSignal): Promise<Model> {
  const bars = createLoadingBars({ quiet: !process.stderr.isTTY });
  const model = await loadModel(name, {
    ...(await loadOptions(name, options, signal)),
    signal,
    onProgress: bars.update,
  }).finally(bars.end);
  for (const notice of model.notices) console.error(notice);
  return model;
}

/** A prompt that takes longer than this has a progress bar. */
const LONG_PROMPT_MS = 300;

/** A progress bar for long prompts. Call `end` before printing the answer. */
export function createPrefillBar() {
  const started = performance.now();
  let progress: ReturnType<typeof createProgress> | undefined;
  return {
    onPrefill({ done, total }: { done: number; total: number }) {
      if (done < total && performance.now() - started > LONG_PROMPT_MS)
        progress ??= createProgress({ title: 'reading', unit: 'tokens' });
      progress?.update(done, total);
    },
    end() {
      progress?.end();
      progress = undefined;
    },
  };
}

/** Runs work that Ctrl-C aborts; a second Ctrl-C kills the process. The resulting abort error is not reported. */
export async function runInterruptible(work: (signal: AbortSignal) => Promise<void>): Promise<void> {
  const stop = new AbortController();
  const onSignal = () => {
    process.exitCode = 130;
    stop.abort();
  };
  process.once('SIGINT', onSignal).once('SIGTERM', onSignal);
  try {
    await work(stop.signal);
  } catch (error) {
    // Timers and files of Node reject with an AbortError of their own.
    if (!stop.signal.aborted || (error as Error).name !== 'AbortError') throw error;
  } finally {
    process.off('SIGINT', onSignal).off('SIGTERM', onSignal);
  }
}

/** Replaces control characters in the model's text: on a terminal they could move the cursor or worse. */
export const sanitizeForTerminal = (text: string): string =>
  process.stdout.isTTY ? text.replace(/[^\P{Cc}\n\t]/gu, '\ufffd') : text;
