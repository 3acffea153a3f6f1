/** Shared by the commands that run a model: options, loading with a progress bar, Ctrl-C, statistics. */
import type { Command } from 'commander';
import { loadModel, type Model } from '../api/model.ts';
import { formatOutliers } from '../cache/outliers.ts';
import type { Conversation } from '../chat/conversation.ts';
import type { ChatOptions } from '../chat/conversation-options.ts';
import { type GuardStats, type QualityLossAction, qualityLossActions } from '../engine/guard.ts';
import type { LiveDivergence } from '../engine/live-divergence.ts';
import { type Quality, UNFAMILIAR_RATIO } from '../engine/quality.ts';
import type { Result } from '../engine/stream.ts';
import { checkPolicyName, policyNames } from '../eviction/policies.ts';
import type { DeviceName } from '../kernel/open.ts';
import { parsePlanSpec } from '../plan/auto.ts';
import type { Preset } from '../plan/plan.ts';
import type { TierStats } from '../store/tier-chain.ts';
import { parseTiers, type Tier } from '../store/tiers.ts';
import { InputError } from '../util/errors.ts';
import { formatBytes, formatCount, parseBytes, parseCount } from '../util/units.ts';
import { addCacheOptions, formatCache } from './cache-choice.ts';
import { PROFILE_HELP, resolveProfileFlag } from './profile-flag.ts';
import { createProgress } from './progress.ts';
import { formatShort } from './table.ts';

export interface ModelOptions {
  quality?: Preset;
  kv?: string;
  contextMemory?: number;
  kvMemory?: number;
  context?: number;
  profile?: string;
  overflow: 'error' | 'slide';
  shadow?: boolean;
  eviction?: string;
  tier?: Tier[];
  onQualityLoss: QualityLossAction;
  device: DeviceName;
  threads?: number;
  memory?: number;
}

export interface SamplingFlags {
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

/** Of `--tier`. */
const TIER_HELP = 'where pages are stored, the fastest first: host=4GiB,disk=/dir:50GiB,redis=redis://host:6379';

export function addDeviceOptions(command: Command): Command {
  return command
    .option('--device <name>', 'auto, webgpu, wasm or js', 'auto')
    .option('--threads <n>', 'number of threads (wasm)', parseCount)
    .option('--memory <size>', 'memory limit, e.g. 4GiB (default: the free memory)', parseBytes);
}

export function addModelOptions(command: Command): Command {
  addCacheOptions(command)
    .option('--kv-memory <size>', 'memory limit for the KV cache of all conversations together, e.g. 2GiB', parseBytes)
    .option('--profile <file>', PROFILE_HELP)
    .option('--context <n>', "maximum tokens, e.g. 8192 or 32k (default: the model's context, up to 32k)", parseCount)
    .option('--overflow <how>', 'when the context is full: error, or slide to drop the oldest tokens', 'error')
    .option('--eviction <policy>', `what leaves a full cache first: ${policyNames.join(', ')} (default: lru)`)
    .option('--tier <list>', TIER_HELP, parseTiers)
    .option('--on-quality-loss <how>', 'when the codec does not suit the model: notice, or error', 'notice');
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

export function samplingOptions(flags: SamplingFlags): ChatOptions {
  const { maxTokens, temperature, topK, topP, minP, repetitionPenalty, seed, stop } = flags;
  return { maxTokens, temperature, topK, topP, minP, repetitionPenalty, seed, stop };
}

export function parseNumber(text: string): number {
  const number = Number(text);
  if (text.trim() === '' || !Number.isFinite(number)) throw new InputError(`"${text}" is not a number.`);
  return number;
}

/** Parses a comma-separated list of codecs to compare, and puts f16, the reference, first. */
export function parseSpecList(list: string): string[] {
  const specs = list.split(',').map(spec => spec.trim());
  specs.forEach(parsePlanSpec);
  return [...new Set(['f16', ...specs])];
}

/** The options of `loadModel`. */
export async function loadOptions(name: string, options: ModelOptions, signal?: AbortSignal) {
  const {
    quality,
    kv,
    contextMemory,
    kvMemory,
    context,
    overflow,
    shadow,
    eviction,
    onQualityLoss,
    device,
    threads,
    memory,
  } = options;
  if (!['error', 'slide'].includes(overflow))
    throw new InputError(`--overflow must be error or slide, not "${overflow}".`);
  if (!qualityLossActions.includes(onQualityLoss))
    throw new InputError(`--on-quality-loss must be notice or error, not "${onQualityLoss}".`);
  if (eviction !== undefined) checkPolicyName(eviction);
  const profile = await resolveProfileFlag(options.profile, name, signal);
  return {
    ...{ quality, kv, contextMemory, kvMemory, context, profile, overflow, eviction, onQualityLoss, device, threads },
    kvMode: shadow ? ('shadow' as const) : undefined,
    tiers: options.tier,
    memoryLimit: memory,
  };
}

/** Loads a model with a progress bar and prints its notices on stderr. */
export async function loadWithProgress(name: string, options: ModelOptions, signal: AbortSignal): Promise<Model> {
  const progress = createProgress({ title: 'loading', unit: 'B', quiet: !process.stderr.isTTY });
  try {
    const model = await loadModel(name, {
      ...(await loadOptions(name, options, signal)),
      signal,
      onProgress: ({ done, total }) => progress.update(done, total),
    });
    progress.end();
    for (const notice of model.notices) console.error(notice);
    return model;
  } finally {
    progress.end();
  }
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
    if (error !== stop.signal.reason) throw error;
  } finally {
    process.off('SIGINT', onSignal).off('SIGTERM', onSignal);
  }
}

/** Replaces control characters in the model's text: on a terminal they could move the cursor or worse. */
export const sanitizeForTerminal = (text: string): string =>
  process.stdout.isTTY ? text.replace(/[^\P{Cc}\n\t]/gu, '\ufffd') : text;

/** The device and why, without a GPU that is not there: nobody has asked for one. `kvasir doctor` tells of it. */
export const formatDevice = ({ why }: { readonly why: string }): string =>
  why.replace(/; no webgpu: .*?(?=; no |$)/, '');

/** Speed and memory of an answer, one fact per line. */
export async function formatStats(
  { usage, timings, finish, seed, quality, divergence }: Result,
  model: Model,
  conversation: Conversation,
) {
  const { pages, tails, cached, total } = model.memory();
  const { capacity, guard, tiers } = model.stats();
  const { name, threads } = model.device;
  const outliers = await conversation.outliers();
  return [
    `prompt ${formatCount(usage.promptTokens)} tokens (${formatCount(usage.reusedTokens)} reused), ` +
      `${formatCount(usage.prefilledTokens)} read at ${timings.prefillRate.toFixed(1)} tokens/s`,
    `${formatCount(usage.completionTokens)} tokens at ${timings.decodeRate.toFixed(1)} tokens/s, ${finish}, seed ${seed}`,
    `cache: ${formatCache(model.plan)}`,
    `${formatBytes(pages + tails)} of cache, and ${formatBytes(cached)} kept for later prompts, of at most ` +
      formatBytes(capacity),
    ...tiers.map(formatTier),
    `${formatBytes(total)} in all on ${name}${name === 'wasm' ? ` (${threads} thread${threads === 1 ? '' : 's'})` : ''}`,
    ...(guard.layer === undefined ? [] : [formatGuard(guard)]),
    ...(quality ? [formatQuality(quality)] : []),
    ...(divergence ? [formatDivergence(divergence)] : []),
    ...(outliers ? [formatOutliers(outliers)] : []),
  ].join('\n');
}

/** "measured divergence 0.0145 nats per token over 128 tokens, 97.7 % the same most likely token". */
const formatDivergence = ({ nats, top1, tokens }: LiveDivergence): string =>
  `measured divergence ${formatShort(nats)} nats per token over ${formatCount(tokens)} tokens, ` +
  `${(100 * top1).toFixed(1)} % the same most likely token`;

/** "attention on codes differs from f16 by .013 over 12 pages; in layer 10 by .03, and .149 is the limit". */
const formatGuard = ({ pages, meanError, layer, error, limit }: GuardStats): string =>
  `attention on codes differs from f16 by ${formatShort(meanError)} over ${formatCount(pages)} page${pages === 1 ? '' : 's'}; ` +
  `in layer ${layer} by ${formatShort(error)}, and ${formatShort(limit)} is the limit`;

/** "disk 12.0 MiB of 50.0 GiB, 40 records found, 2 not found, 15 stored". */
function formatTier({ name, bytes, capacity, hits, misses, puts, skipped, errors, lastError }: TierStats): string {
  const size = bytes === undefined ? '' : ` ${formatBytes(bytes)} of ${formatBytes(capacity ?? bytes)},`;
  return [
    `${name}${size} ${formatCount(hits)} records found`,
    `${formatCount(misses)} not found`,
    `${formatCount(puts)} stored`,
    ...(skipped > 0 ? [`${formatCount(skipped)} skipped`] : []),
    ...(errors > 0 ? [`${formatCount(errors)} errors: ${lastError}`] : []),
  ].join(', ');
}

/** "error 1.12 times that of the calibration text over 12 pages; estimated divergence 0.0145 nats per token". */
function formatQuality({ ratio, pages, estimated }: Quality): string {
  return (
    `error ${ratio.toFixed(2)} times that of the calibration text over ${formatCount(pages)} page${pages === 1 ? '' : 's'}` +
    (estimated === undefined
      ? ''
      : `; estimated divergence ${ratio > UNFAMILIAR_RATIO ? 'at least ' : ''}${formatShort(estimated)} nats per token`)
  );
}
