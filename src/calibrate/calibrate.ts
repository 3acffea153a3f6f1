/**
 * Calibration computes the profile of a model from text, in three stages: collect statistics of every layer, learn the
 * codecs' parameters, and measure sensitivities. Each stage stores its progress in a checkpoint, so that an interrupted calibration
 * continues where it stopped.
 */
import { existsSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { basename } from 'node:path';
import { checkShape } from '../codec/kv.ts';
import { F16, formatSpec } from '../codec/spec.ts';
import { type EngineOptions, loadEngine, type ModelFile, openModelFile, planShape } from '../engine/engine.ts';
import { engineRules } from '../engine/options.ts';
import { estimateCalibrationSeconds, profileShape } from '../engine/profile.ts';
import { createPlan } from '../plan/plan.ts';
import { encodeProfile, mergeProfiles, type Profile, type ProfileContent, type TextSource } from '../plan/profile.ts';
import { checkWritable, findProfile, profilePath, readProfile, writeFileAtomic } from '../plan/profile-store.ts';
import { isPlainObject } from '../util/describe-value.ts';
import { InputError } from '../util/errors.ts';
import { boolean, callback, checkOptions, integer, type Rule, rule, string } from '../util/rules.ts';
import { packageVersion } from '../util/version.ts';
import { collect } from './collect.ts';
import { type CalibrationDataOptions, type CalibrationJob, prepareJob } from './job.ts';
import { longestOf, type Measured, PLAN_LENGTH, probe } from './probe.ts';
import { train } from './train.ts';
import { createWorkers, type Workers } from './workers.ts';

/** Options of `calibrate`. */
export interface CalibrateOptions
  extends CalibrationDataOptions,
    Pick<EngineOptions, 'device' | 'threads' | 'memoryLimit'> {
  /** Tokens used to measure sensitivities, which `auto` plans need: more than half a page, or 0 to skip them. Default: 128. */
  probeTokens?: number;
  /** Path of the profile. Default: the folder where `loadModel` finds it. */
  out?: string;
  /** Worker threads in addition to the device's; 0 runs everything in this thread. Default: one per CPU core. */
  workers?: number;
  /** Stops calibration; the next call with the same options continues it. */
  signal?: AbortSignal;
  /** Called before the first stage. */
  onStart?: (work: CalibrationWork) => void;
  onProgress?: (progress: CalibrationProgress) => void;
}

/**
 * `hashing` counts bytes of a file that was not hashed before, `reading` rows, `learning` sides (keys or values) of
 * layers, `probing` sides and plans.
 */
export type CalibrationStage = 'hashing' | 'reading' | 'learning' | 'probing';

/** Progress within a stage. */
export interface CalibrationProgress {
  stage: CalibrationStage;
  done: number;
  total: number;
}

/** The size of a calibration. */
export interface CalibrationWork {
  /** Tokens to read. */
  tokens: number;
  /** The texts that they come from. */
  sources: readonly TextSource[];
  /** Tokens per row. */
  context: number;
  codecs: readonly string[];
  layers: number;
  /** Whether the layers are probed at the end. */
  measures: boolean;
  /** Estimated seconds of all stages on this machine. */
  seconds: number;
}

/** A finished calibration. */
export interface CalibrationResult {
  /** Where the profile was written. */
  path: string;
  /** Size of the file. */
  bytes: number;
  /** The profile itself, as `loadModel` takes it. */
  profile: Profile;
}

const PROBE_TOKENS = 128;

const isText = (value: unknown) =>
  typeof value === 'string' ||
  (isPlainObject(value) && typeof value.name === 'string' && typeof value.text === 'string');

const calibrateRules: Record<keyof CalibrateOptions, Rule> = {
  device: engineRules.device,
  threads: engineRules.threads,
  memoryLimit: engineRules.memoryLimit,
  signal: engineRules.signal,
  onProgress: callback,
  onStart: callback,
  texts: rule('an array of strings or { name, text }', value => Array.isArray(value) && value.every(isText)),
  onlyTexts: boolean,
  parseSpecialTokens: boolean,
  tokens: integer(1),
  context: integer(16),
  samples: integer(1),
  seed: integer(0),
  codecs: rule('an array of codec specs', value => Array.isArray(value)),
  probeTokens: integer(0),
  out: string('the path of the profile'),
  workers: integer(0),
};

/**
 * Calibrates a model on disk, given by path or hub name, and writes its profile. Node only.
 * Returns undefined if the signal aborted it: the next call with the same options continues where it stopped.
 */
export async function calibrate(name: string, options: CalibrateOptions = {}): Promise<CalibrationResult | undefined> {
  checkOptions('calibrate', options, calibrateRules);
  const { signal, out } = options;
  if (out !== undefined) await checkWritable(out);
  try {
    const file = await openModelFile(name, { context: options.context });
    return await calibrateFile(file, name, options).finally(() => file.gguf.close());
  } catch (error) {
    if (signal?.aborted && error === signal.reason) return undefined;
    throw error;
  }
}

async function calibrateFile(file: ModelFile, name: string, options: CalibrateOptions) {
  const { signal, onProgress, out } = options;
  const prepared = await prepareJob(file, {
    ...options,
    onProgress: ({ done, total }) => onProgress?.({ stage: 'hashing', done, total }),
  });
  const job = { ...prepared, scored: scoredTokens(prepared, options) };
  const { fingerprint, context, rows, sources, codecShape, checkpoint } = job;
  const earlier = options.codecs && (await readEarlierProfile(file, fingerprint, out));
  const codecs = job.codecs.map(formatSpec);
  const tokens = rows.length * context;
  const measures = job.scored > 0;
  const seconds = await estimateCalibrationSeconds(file, { device: options.device, tokens, measures });
  options.onStart?.({ tokens, sources, context, codecs, layers: codecShape.layers, measures, seconds });
  const workers = await createWorkers(options.workers ?? availableParallelism());
  try {
    if (!(await collectStatistics(file, job, workers, options))) return undefined;
    const provenance = {
      model: basename(file.paths[0]),
      tokens,
      context,
      samples: rows.length * job.shape.samples,
      seed: job.seed,
      text: job.text,
      sources,
      codecs,
      version: packageVersion,
    };
    const content = { fingerprint, shape: profileShape(file), provenance, sensitivities: {}, measurements: [] };
    const trained = await train({
      ...job,
      content,
      workers,
      signal,
      onProgress: done => onProgress?.({ stage: 'learning', done, total: 2 * codecShape.layers }),
    });
    const measured = trained && (await measure(name, job, { ...content, ...trained }, options));
    if (!measured) return undefined;

    const path = out ?? (await profilePath(fingerprint));
    const complete = mergeProfiles(earlier, { ...content, ...trained, ...measured });
    const bytes = await encodeProfile(complete);
    await writeFileAtomic(path, bytes);
    await checkpoint.remove();
    const hash = Buffer.from(bytes.subarray(-32)).toString('hex');
    return { path, bytes: bytes.length, profile: { ...complete, hash } };
  } finally {
    await workers.dispose();
  }
}

/** The profile that `codecs` are added to, if there is one of the same model. */
async function readEarlierProfile({ paths }: ModelFile, fingerprint: string, out?: string) {
  if (out === undefined) return (await findProfile(paths[0], fingerprint)).profile;
  const profile = existsSync(out) ? await readProfile(out) : undefined;
  return profile?.fingerprint === fingerprint ? profile : undefined;
}

const engineOptions = ({ device, threads, memoryLimit, signal }: CalibrateOptions): EngineOptions => ({
  device,
  threads,
  memoryLimit,
  signal,
});

/** Stores the statistics of all rows in the checkpoint. Returns false if aborted. */
async function collectStatistics(file: ModelFile, job: CalibrationJob, workers: Workers, options: CalibrateOptions) {
  const { context, rows } = job;
  const { signal, onProgress } = options;
  const engine = await loadEngine(file, { plan: createPlan(F16, planShape(file)), context }, engineOptions(options));
  try {
    const onRow = (done: number) => onProgress?.({ stage: 'reading', done, total: rows.length });
    return await collect(engine, rows, { ...job, workers, signal, onProgress: onRow });
  } finally {
    await engine.dispose();
  }
}

/** Tokens whose divergence is measured, after as many others; 0 if nothing is measured. */
function scoredTokens(
  { heldOut, codecShape }: CalibrationJob,
  { probeTokens = PROBE_TOKENS }: CalibrateOptions,
): number {
  if (probeTokens === 0) return 0;
  const longest = longestOf(heldOut).length;
  const scored = Math.min(probeTokens, Math.floor(longest / 2));
  // Without a whole page before its last token, a row is read from f16 alone.
  const { pageTokens } = checkShape(codecShape);
  if (2 * scored <= pageTokens)
    throw new InputError(
      option =>
        `Sensitivities need a row of more than a page (${pageTokens} tokens); it would be ${2 * scored}. ` +
        `Give a longer text, a larger ${option('context')} or ${option('probeTokens')}, or ${option('probeTokens')} 0.`,
    );
  return scored;
}

/** Loads the model again, since measurements use precise kernels. */
async function measure(
  name: string,
  job: CalibrationJob & { scored: number },
  content: ProfileContent,
  options: CalibrateOptions,
): Promise<Measured | undefined> {
  const { signal, onProgress } = options;
  const { scored } = job;
  if (scored === 0) return { sensitivities: {}, measurements: [] };
  const context = Math.min(longestOf(job.heldOut).length, PLAN_LENGTH * scored);
  const file = await openModelFile(name, { context: options.context });
  const { layers, width, vocab, kvHeads, headDim } = file.config;
  const plan = createPlan(F16, planShape(file));
  // The f16 activations and log probabilities that probes start from and are compared with.
  const referenceBytes = 4 * (scored * vocab + 2 * scored * layers * (width + 2 * kvHeads * headDim));
  const cache = { plan, compared: [plan], context, extra: referenceBytes };
  const engine = await loadEngine(file, cache, { ...engineOptions(options), precise: true });
  try {
    return await probe(engine, {
      ...job,
      content,
      shape: job.codecShape,
      signal,
      onProgress: (done, total) => onProgress?.({ stage: 'probing', done, total }),
    });
  } finally {
    await engine.dispose();
  }
}
