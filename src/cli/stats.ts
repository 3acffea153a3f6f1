/** What commands print about a model that runs: its device and cache, and the statistics of an answer. */
import type { Model } from '../api/model.ts';
import { formatOutliers } from '../cache/outliers.ts';
import type { Conversation } from '../chat/conversation.ts';
import type { GuardStats } from '../engine/guard.ts';
import type { LiveDivergence } from '../engine/live-divergence.ts';
import { type Quality, UNFAMILIAR_RATIO } from '../engine/quality.ts';
import type { Result } from '../engine/stream.ts';
import type { Plan } from '../plan/plan.ts';
import type { TierStats } from '../store/tier-chain.ts';
import { formatBytes, formatCount } from '../util/units.ts';
import { formatPlural, formatShort } from './table.ts';

/** The device and why, without a GPU that is not there: nobody has asked for one. `kvasir doctor` tells of it. */
export const formatDevice = (why: string): string => why.replace(/; no webgpu: .*?(?=; no |$)/, '');

/** "balanced: auto-mead:3, 3.00 bits per value, expected divergence .0062 nats per token (profile)". */
export const formatCache = ({ preset, spec, bits, predicted }: Pick<Plan, 'preset' | 'spec' | 'bits' | 'predicted'>) =>
  `${preset ? `${preset}: ` : ''}${spec}, ${bits.toFixed(2)} bits per value` +
  (predicted === undefined ? '' : `, expected divergence ${formatShort(predicted)} nats per token (profile)`);

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
    ...(usage.draftedTokens > 0
      ? [`${formatCount(usage.draftedTokens)} tokens guessed, ${formatCount(usage.acceptedTokens)} of them right`]
      : []),
    `cache: ${formatCache(model.plan)}`,
    `${formatBytes(pages + tails)} of cache, and ${formatBytes(cached)} kept for later prompts, of at most ` +
      formatBytes(capacity),
    ...tiers.map(formatTier),
    `${formatBytes(total)} in all on ${name}${name === 'wasm' ? ` (${formatPlural(threads, 'thread')})` : ''}`,
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
  `attention on codes differs from f16 by ${formatShort(meanError)} over ${formatPlural(pages, 'page')}; ` +
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
    `error ${ratio.toFixed(2)} times that of the calibration text over ${formatPlural(pages, 'page')}` +
    (estimated === undefined
      ? ''
      : `; estimated divergence ${ratio > UNFAMILIAR_RATIO ? 'at least ' : ''}${formatShort(estimated)} nats per token`)
  );
}
