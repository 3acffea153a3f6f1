/** Validation of the options of loading; `loadModel` rejects. A test checks that these tables match the option interfaces. */
import type { KvGraph } from '../eviction/graph/kv-graph.ts';
import { policyNames } from '../eviction/policies.ts';
import { kvModes, presets } from '../plan/plan.ts';
import { type CacheChoice, checkCacheChoice } from '../plan/presets.ts';
import { boolean, callback, checkOptions, integer, number, oneOf, rule, string } from '../util/rules.ts';
import { qualityLossActions } from './guard.ts';

export const signal = rule('an AbortSignal', value => {
  const candidate = value as AbortSignal | null;
  return (
    typeof candidate === 'object' &&
    typeof candidate?.aborted === 'boolean' &&
    typeof candidate.addEventListener === 'function'
  );
});

const bytes = number('a number of bytes above 0', value => value > 0);

/** Options that loading, evaluation and calibration share. */
export const engineRules = {
  profile: rule(
    'a path, a name on the hub, a URL, the bytes of a profile, or a profile from decodeProfile',
    value => typeof value === 'string' || (typeof value === 'object' && value !== null),
  ),
  device: string("a device name such as 'auto'"),
  threads: integer(1),
  prefillChunk: integer(1, 65536),
  memoryLimit: bytes,
  signal,
  onProgress: callback,
};

export const loadRules = {
  ...engineRules,
  quality: oneOf(...presets),
  kv: string("a codec spec such as 'tq4', or 'auto'"),
  contextMemory: bytes,
  kvMemory: bytes,
  kvMode: oneOf(...kvModes),
  maxSequences: integer(1),
  prefillShare: number('a number above 0 and below 1', value => value > 0 && value < 1),
  pageTokens: integer(1),
  context: integer(1),
  overflow: oneOf('error', 'slide'),
  eviction: rule(
    "'lru' or 'graph' or a graph from createKvGraph",
    value =>
      (policyNames as readonly unknown[]).includes(value) ||
      typeof (value as KvGraph | null)?.nextEviction === 'function',
  ),
  tiers: rule(
    "tiers as text such as 'host=4GiB', or an array of tiers and stores",
    value =>
      typeof value === 'string' || (Array.isArray(value) && value.every(tier => typeof tier === 'object' && tier)),
  ),
  onQualityLoss: oneOf(...qualityLossActions),
  speculate: boolean,
  precise: boolean,
  batchInvariant: boolean,
  warmUp: boolean,
};

export function checkLoadOptions(options: unknown): void {
  checkOptions('loadModel', options, loadRules);
  checkCacheChoice((options ?? {}) as CacheChoice);
}
