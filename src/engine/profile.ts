/** Finds the profile of a model file: the given one, or the one on disk. */
import { needsProfile, usesProfile } from '../codec/kv.ts';
import { formatSpec, type KvSpec } from '../codec/spec.ts';
import { type DeviceName, isGpu } from '../kernel/open.ts';
import { isAuto, type PlanSpec } from '../plan/auto.ts';
import { defaultCodecs, missingCodecs, placeholderForAll } from '../plan/default-codecs.ts';
import { checkProfile, hasRopeOf, OTHER_ROPE, type ProfileShape } from '../plan/profile.ts';
import { openProfile, type ProfileInput } from '../plan/profile-input.ts';
import { findProfile, mayHaveProfile, type ProfileSearch } from '../plan/profile-store.ts';
import { platform } from '../platform/node.ts';
import { UnsupportedError } from '../util/errors.ts';
import { formatDuration } from '../util/units.ts';
import { type ModelFile, planShape } from './engine.ts';
import { type FingerprintOptions, modelFingerprint } from './model-fingerprint.ts';

export function profileShape({ config, rope }: Pick<ModelFile, 'config' | 'rope'>): ProfileShape {
  const { layers, kvHeads, headDim, attentionWindows } = config;
  return {
    ...{ layers, kvHeads, headDim, ropeFrequencies: [...rope.frequencies] },
    ...(attentionWindows.some(window => window) && { attentionWindows }),
    ...(rope.local && { localRopeFrequencies: [...rope.local.frequencies] }),
  };
}

/** Tokens times weights per CPU core of a model between these sizes. */
const WEIGHT_TOKENS_PER_CORE = 5e12;
const MIN_TOKENS = 6144;
const MAX_TOKENS = 65536;
/** Reading takes this many core-seconds per weight and token, statistics included; or these seconds of a GPU. */
const READING_SECONDS = 6e-11;
const GPU_READING_SECONDS = 5e-13;
/** Measuring plans takes as long as reading this many tokens. */
const MEASURED_TOKENS = 3072;
/** Learning takes this many core-seconds per number in a token's keys and values, and sample. */
const LEARNING_SECONDS = 2e-6;
/** Calibration samples at most so many keys and values of a layer: more improve the result little. */
export const CALIBRATION_SAMPLES = 12288;

type ModelSize = Pick<ModelFile, 'gguf' | 'config'>;

function countWeights({ gguf }: ModelSize): number {
  let weights = 0;
  for (const { shape } of gguf.tensors.values()) weights += shape.reduce((a, b) => a * b, 1);
  return weights;
}

/** Tokens of built-in text to calibrate on by default: fewer for large models on few cores, which take longer to read. */
export function defaultCalibrationTokens(file: ModelSize, onGpu: boolean): number {
  if (onGpu) return MAX_TOKENS;
  const tokens = Math.round((WEIGHT_TOKENS_PER_CORE * platform.coreCount()) / countWeights(file));
  return Math.min(MAX_TOKENS, Math.max(MIN_TOKENS, tokens));
}

/** Estimated seconds of calibration on this machine. */
export async function estimateCalibrationSeconds(
  file: ModelSize,
  { device, tokens, measures = true }: { device?: DeviceName; tokens?: number; measures?: boolean } = {},
): Promise<number> {
  const { layers, kvHeads, headDim } = file.config;
  const onGpu = await isGpu(device);
  const read = tokens ?? defaultCalibrationTokens(file, onGpu);
  const reading = countWeights(file) * (read + (measures ? MEASURED_TOKENS : 0));
  const learning = LEARNING_SECONDS * 2 * layers * kvHeads * headDim * Math.min(read, CALIBRATION_SAMPLES);
  return onGpu
    ? GPU_READING_SECONDS * reading + learning / platform.coreCount()
    : (READING_SECONDS * reading + learning) / platform.coreCount();
}

/**
 * A given profile must match the model and hold what the specs need. Without one, it is searched on disk if any spec needs
 * calibration.
 */
export async function resolveProfile(
  file: ModelFile,
  specs: readonly PlanSpec[],
  input?: ProfileInput,
  options: FingerprintOptions = {},
): Promise<ProfileSearch> {
  if (input === undefined && !specs.some(spec => isAuto(spec) || usesProfile(spec))) return {};
  const search: ProfileSearch = {};
  if (input !== undefined)
    search.profile = await openProfile(input, { signal: options.signal, modelFile: file.paths[0] });
  // A model that is not on disk would have to be read as a whole, unless its hash is known; a large file takes long to hash.
  const isOnDisk = file.paths.length > 0;
  const needsFingerprint =
    input === undefined
      ? isOnDisk && (await mayHaveProfile(file.paths[0]))
      : isOnDisk || file.gguf.shards.every(({ sha256 }) => sha256 !== undefined);
  const fingerprint = needsFingerprint ? await modelFingerprint(file, options) : undefined;
  if (input === undefined && fingerprint !== undefined)
    Object.assign(search, await findProfile(file.paths[0], fingerprint));
  if (input === undefined && search.profile && !hasRopeOf(search.profile, profileShape(file)))
    Object.assign(search, { profile: undefined, path: undefined, notice: OTHER_ROPE });
  if (search.profile) checkProfile(search.profile, profileShape(file), fingerprint);
  for (const spec of specs) if (!isAuto(spec) && needsProfile(spec)) await checkLearnedFor(file, spec, search);
  return search;
}

/** Throws if the profile lacks what a spec needs; the message has the command to run. */
async function checkLearnedFor(file: ModelFile, spec: KvSpec, { profile, notice }: ProfileSearch): Promise<void> {
  const shape = planShape(file);
  const missing = missingCodecs(profile?.learned[0] ?? placeholderForAll(defaultCodecs(shape), shape), spec, shape);
  if (profile && !missing) return;
  const model = file.paths[0] === undefined ? 'MODEL' : shellQuote(file.paths[0]);
  const time = file.paths.length > 0 ? ` (about ${formatDuration(await estimateCalibrationSeconds(file))} here)` : '';
  const why = profile ? `its profile only covers ${profile.provenance.codecs.join(', ')}` : 'it has no profile';
  throw new UnsupportedError(
    option =>
      `${formatSpec(spec)} needs a calibrated model, and ${why}. ` +
      `Run: kvasir calibrate ${model}${missing ? ` --kv ${missing}` : ''}${time}\n` +
      `Or use ${option('quality', 'safe')} (q8_0), which needs none, or ${option('kv', 'f16')}.${notice ? `\n${notice}` : ''}`,
  );
}

const shellQuote = (path: string): string => (/^[\w./:+@-]+$/.test(path) ? path : `'${path.replaceAll("'", "'\\''")}'`);
