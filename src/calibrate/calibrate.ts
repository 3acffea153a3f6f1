/**
 * Calibration computes the profile of a model from text, in four stages: generate text (unless it is given), collect
 * statistics of every layer, learn the codecs' parameters, and measure sensitivities. Each stage stores its progress in a
 * checkpoint, so that an interrupted calibration continues where it stopped.
 */
import { availableParallelism } from 'node:os';
import { basename } from 'node:path';
import {
  type Engine,
  type EngineOptions,
  loadEngine,
  type ModelFile,
  openModelFile,
  planShape,
} from '../engine/engine.ts';
import { engineRules } from '../engine/options.ts';
import { estimateCalibrationSeconds, profileShape } from '../engine/profile.ts';
import { boolean, callback, checkOptions, integer, number, type Rule, rule, string } from '../engine/rules.ts';
import { createPlan, planBytes } from '../plan/plan.ts';
import { encodeProfile, type Profile, type ProfileContent } from '../plan/profile.ts';
import { profilePath, writeFileAtomic } from '../plan/profile-store.ts';
import { packageVersion } from '../version.ts';
import { collect } from './collect.ts';
import { type CalibrationDataOptions, type CalibrationJob, prepareJob } from './job.ts';
import { probe } from './probe.ts';
import { generateRows } from './self-text.ts';
import { train } from './train.ts';
import { createWorkers, type Workers } from './workers.ts';

/** Options of `calibrate`. */
export interface CalibrateOptions
  extends CalibrationDataOptions,
    Pick<EngineOptions, 'device' | 'threads' | 'memoryLimit'> {
  /** Tokens used to measure sensitivities, which `auto` plans need: 16 or more, or 0 to skip them. Default: 256. */
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

/** `writing` counts tokens, `reading` rows, `learning` and `probing` sides (keys or values) of layers. */
export type CalibrationStage = 'writing' | 'reading' | 'learning' | 'probing';

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
  /** Tokens that the model generates first. */
  generatedTokens: number;
  /** Tokens per row. */
  context: number;
  codecs: readonly string[];
  layers: number;
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

/** Max rows that the model generates at the same time. */
const MAX_ROWS_PER_BATCH = 16;
const PROBE_TOKENS = 256;

const calibrateRules: Record<keyof CalibrateOptions, Rule> = {
  device: engineRules.device,
  threads: engineRules.threads,
  memoryLimit: engineRules.memoryLimit,
  signal: engineRules.signal,
  onProgress: callback,
  onStart: callback,
  texts: rule('an array of strings', value => Array.isArray(value) && value.every(text => typeof text === 'string')),
  self: boolean,
  parseSpecialTokens: boolean,
  tokens: integer(1),
  context: integer(16),
  samples: integer(1),
  seed: integer(0),
  codecs: rule('an array of codec specs', value => Array.isArray(value)),
  probeTokens: number('0 or an integer, 16 or more', n => n === 0 || (Number.isSafeInteger(n) && n >= 16)),
  out: string('the path of the profile'),
  workers: integer(0),
};

/**
 * Calibrates a model on disk, given by path or hub name, and writes its profile. Node only.
 * Returns undefined if the signal aborted it: the next call with the same options continues where it stopped.
 */
export async function calibrate(name: string, options: CalibrateOptions = {}): Promise<CalibrationResult | undefined> {
  checkOptions('calibrate', options, calibrateRules);
  const file = await openModelFile(name);
  const job = await prepareJob(file, options).catch(async error => {
    await file.gguf.close();
    throw error;
  });
  const { context, codecs, codecShape } = job;
  const [tokens, generatedTokens] = [job.rows * context, job.selfRows * context];
  const seconds = await estimateCalibrationSeconds(file, tokens, generatedTokens);
  options.onStart?.({ tokens, generatedTokens, context, codecs, layers: codecShape.layers, seconds });
  const workers = await createWorkers(options.workers ?? availableParallelism());
  try {
    const rows = await collectStatistics(file, job, workers, options);
    if (!rows) return undefined;
    const { fingerprint, seed, text, shape, checkpoint } = job;
    const provenance = {
      model: basename(file.paths[0]),
      tokens,
      context,
      samples: job.rows * shape.samples,
      seed,
      text,
      sources: [],
      codecs,
      version: packageVersion,
    };
    const content = { fingerprint, shape: profileShape(file), provenance, sensitivities: {}, measurements: [] };
    const learned = await train({
      ...job,
      content,
      workers,
      signal: options.signal,
      onProgress: done => options.onProgress?.({ stage: 'learning', done, total: 2 * codecShape.layers }),
    });
    const sensitivities =
      learned && (await measureSensitivities(name, job, rows[job.rows], { ...content, learned }, options));
    if (!sensitivities) return undefined;

    const complete = { ...content, learned, sensitivities };
    const bytes = await encodeProfile(complete);
    const path = options.out ?? (await profilePath(fingerprint));
    await writeFileAtomic(path, bytes);
    await checkpoint.remove();
    const hash = Buffer.from(bytes.subarray(-32)).toString('hex');
    return { path, bytes: bytes.length, profile: { ...complete, hash } };
  } finally {
    await workers.dispose();
  }
}

const engineOptions = ({ device, threads, memoryLimit, signal }: CalibrateOptions): EngineOptions => ({
  device,
  threads,
  memoryLimit,
  signal,
});

/** Stores the statistics of all rows in the checkpoint, and returns the rows; undefined if aborted. */
async function collectStatistics(file: ModelFile, job: CalibrationJob, workers: Workers, options: CalibrateOptions) {
  const { context, checkpoint, shape, grams } = job;
  const { signal, onProgress } = options;
  const engine = await loadEngine(file, { plan: createPlan('f16', planShape(file)), context }, engineOptions(options));
  try {
    const selfRows = await generateText(engine, job, options);
    const rows = selfRows && [...selfRows, ...job.textRows];
    const reading = rows?.slice(0, job.rows);
    const onRow = (done: number) => onProgress?.({ stage: 'reading', done, total: job.rows });
    const done =
      reading && (await collect(engine, reading, { shape, grams, checkpoint, workers, signal, onProgress: onRow }));
    return done ? rows : undefined;
  } finally {
    await engine.dispose();
  }
}

/** The rows that the model generates; undefined if aborted. */
async function generateText(
  engine: Engine,
  { selfRows, textRows, context, seed, checkpoint }: CalibrationJob,
  options: CalibrateOptions,
) {
  const { signal, onProgress } = options;
  const text: number[][] = [];
  // Equal batches, since one row takes as long as many together.
  const batchRows = Math.ceil(selfRows / Math.ceil(selfRows / MAX_ROWS_PER_BATCH));
  // The last row is for measuring sensitivities.
  const shortRow = textRows.length === 0 ? selfRows - 1 : undefined;
  while (text.length < selfRows) {
    const firstRow = text.length;
    const name = `text-${firstRow}`;
    const count = Math.min(batchRows, selfRows - firstRow);
    if (!(await checkpoint.has(name))) {
      const progress = (tokens: number) =>
        onProgress?.({ stage: 'writing', done: firstRow * context + tokens, total: selfRows * context });
      const written = await generateRows(engine, {
        rows: count,
        context,
        seed,
        firstRow,
        shortRow,
        signal,
        onProgress: progress,
      });
      if (!written) return undefined;
      await checkpoint.write(name, new Uint8Array(Int32Array.from(written.flat()).buffer));
    }
    const ids = new Int32Array((await checkpoint.read(name)).buffer);
    for (let i = 0; i < count; i++) text.push([...ids.subarray(i * context, (i + 1) * context)]);
  }
  return text;
}

/** Loads the model again, since measurements use precise kernels. */
async function measureSensitivities(
  name: string,
  { codecs, codecsHash, codecShape, checkpoint }: CalibrationJob,
  text: readonly number[],
  content: ProfileContent,
  options: CalibrateOptions,
): Promise<ProfileContent['sensitivities'] | undefined> {
  const { signal, onProgress, probeTokens = PROBE_TOKENS } = options;
  if (probeTokens === 0) return {};
  const scored = Math.min(probeTokens, Math.floor(text.length / 2));
  const file = await openModelFile(name);
  const { layers, width, vocab, kvHeads, headDim } = file.config;
  const plan = createPlan('f16', planShape(file));
  const context = text.length;
  // The f16 activations and log probabilities that probes start from and are compared with.
  const referenceBytes = 4 * (scored * vocab + 2 * scored * layers * (width + 2 * kvHeads * headDim));
  const cache = { plan, context, extra: referenceBytes + planBytes(plan, context) };
  const engine = await loadEngine(file, cache, { ...engineOptions(options), precise: true });
  try {
    return await probe(engine, {
      row: text,
      scored,
      content,
      shape: codecShape,
      codecs,
      checkpoint,
      codecsHash,
      signal,
      onProgress: (done, total) => onProgress?.({ stage: 'probing', done, total }),
    });
  } finally {
    await engine.dispose();
  }
}
