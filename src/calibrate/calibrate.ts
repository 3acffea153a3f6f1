/**
 * Calibration: from a model and some text to its profile. Four stages, each of which can be interrupted and goes on
 * from what the state holds: the text (given, or written by the model itself), statistics of every layer, what codecs
 * learn of them, and how much each layer's keys and values matter.
 */
import {
  type Engine,
  type EngineOptions,
  loadEngine,
  type ModelFile,
  openModelFile,
  planShape,
} from '../engine/engine.ts';
import { calibrationSeconds, profileShape } from '../engine/profile.ts';
import { InputError } from '../errors.ts';
import { planBytes, planOf } from '../plan/plan.ts';
import { encodeProfile, type ProfileContent } from '../plan/profile.ts';
import { profilePath, writeWhole } from '../plan/store.ts';
import { collect } from './collect.ts';
import { type Job, type JobOptions, prepare } from './job.ts';
import { probe } from './probe.ts';
import { writeRows } from './self-text.ts';
import { train } from './train.ts';
import { createWorkers, type Workers } from './workers.ts';

export interface CalibrateOptions extends JobOptions, Pick<EngineOptions, 'device' | 'threads' | 'memoryLimit'> {
  /** By how many tokens layers are weighed: 256 unless given, 0 for none. Plans need it, codecs do not. */
  probeTokens?: number;
  /** Where the profile goes: the store unless given. */
  out?: string;
  /** Threads beside the device's; 0 does all in this one. */
  workers: number;
  signal?: AbortSignal;
  /** Before anything is computed: what there is to do. */
  onStart?: (work: Work) => void;
  onProgress?: (stage: Stage, done: number, total: number) => void;
}

/** In tokens, rows, and sides of layers. */
export type Stage = 'writing' | 'reading' | 'learning' | 'probing';

export interface Work {
  /** To read, and how many of them the model writes first. */
  tokens: number;
  written: number;
  context: number;
  codecs: readonly string[];
  layers: number;
  /** About how long all of it takes, if nothing is done yet. */
  seconds: number;
}

export interface Calibrated {
  path: string;
  bytes: number;
  hash: string;
  content: ProfileContent;
}

/** Most rows that the model writes at a time. */
const SELF_ROWS = 16;
/** Tokens at the end of a row that probes are judged by. */
const PROBE_TOKENS = 256;

/** The profile, or undefined if the signal came first: the same call goes on from there. */
export async function calibrate(name: string, options: CalibrateOptions): Promise<Calibrated | undefined> {
  const { probeTokens = PROBE_TOKENS } = options;
  if (probeTokens !== 0 && !(probeTokens >= 16))
    throw new InputError(`Probes of ${probeTokens} tokens measure nothing. Take 16 or more, or 0 for no probes.`);
  const file = await openModelFile(name);
  const job = await prepare(file, options).catch(async error => {
    await file.gguf.close();
    throw error;
  });
  const { context, codecs, codecShape } = job;
  const [tokens, written] = [job.rows * context, job.own * context];
  const seconds = await calibrationSeconds(file, tokens, written);
  options.onStart?.({ tokens, written, context, codecs, layers: codecShape.layers, seconds });
  const workers = await createWorkers(options.workers);
  try {
    const rows = await readText(file, job, workers, options);
    if (!rows) return undefined;
    const { fingerprint, seed, text, shape, state } = job;
    const made = { tokens, context, samples: job.rows * shape.samples, seed, text, codecs, version: options.version };
    const content = { fingerprint, shape: profileShape(file), made, sensitivities: {} };
    const learned = await train({
      ...job,
      content,
      workers,
      signal: options.signal,
      onProgress: done => options.onProgress?.('learning', done, 2 * codecShape.layers),
    });
    const sensitivities = learned && (await weigh(name, job, rows[job.rows], { ...content, learned }, options));
    if (!sensitivities) return undefined;

    const complete = { ...content, learned, sensitivities };
    const bytes = await encodeProfile(complete);
    const path = options.out ?? (await profilePath(fingerprint));
    await writeWhole(path, bytes);
    await state.remove();
    return { path, bytes: bytes.length, hash: Buffer.from(bytes.subarray(-32)).toString('hex'), content: complete };
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

/** Gets the rows and their statistics into the state, and gives the rows. */
async function readText(file: ModelFile, job: Job, workers: Workers, options: CalibrateOptions) {
  const { context, state, shape, grams } = job;
  const { signal, onProgress } = options;
  const engine = await loadEngine(file, { plan: planOf('f16', planShape(file)), context }, engineOptions(options));
  try {
    const own = await selfText(engine, job, options);
    const rows = own && [...own, ...job.given];
    const reading = rows?.slice(0, job.rows);
    const onRow = (done: number) => onProgress?.('reading', done, job.rows);
    const done =
      reading && (await collect(engine, reading, { shape, grams, state, workers, signal, onProgress: onRow }));
    return done ? rows : undefined;
  } finally {
    await engine.dispose();
  }
}

/** The rows that the model writes, or undefined if the signal came first. */
async function selfText(engine: Engine, { own, given, context, seed, state }: Job, options: CalibrateOptions) {
  const { signal, onProgress } = options;
  const text: number[][] = [];
  // In equal parts, since a row alone takes as long as many together.
  const most = Math.ceil(own / Math.ceil(own / SELF_ROWS));
  // The last row of all is for the probes.
  const brief = given.length === 0 ? own - 1 : undefined;
  while (text.length < own) {
    const first = text.length;
    const name = `text-${first}`;
    const count = Math.min(most, own - first);
    if (!(await state.has(name))) {
      const progress = (tokens: number) => onProgress?.('writing', first * context + tokens, own * context);
      const written = await writeRows(engine, {
        rows: count,
        context,
        seed,
        first,
        brief,
        signal,
        onProgress: progress,
      });
      if (!written) return undefined;
      await state.write(name, new Uint8Array(Int32Array.from(written.flat()).buffer));
    }
    const ids = new Int32Array((await state.read(name)).buffer);
    for (let i = 0; i < count; i++) text.push([...ids.subarray(i * context, (i + 1) * context)]);
  }
  return text;
}

/** Loads the model anew, since measurements want another precision. */
async function weigh(
  name: string,
  { codecs, mark, codecShape, state }: Job,
  text: readonly number[],
  content: ProfileContent,
  options: CalibrateOptions,
): Promise<ProfileContent['sensitivities'] | undefined> {
  const { signal, onProgress, probeTokens = PROBE_TOKENS } = options;
  if (probeTokens === 0) return {};
  const judged = Math.min(probeTokens, Math.floor(text.length / 2));
  const file = await openModelFile(name);
  const { layers, width, vocab, kvHeads, headDim } = file.config;
  const plan = planOf('f16', planShape(file));
  const context = text.length;
  // What a probe begins with and is held against; whole plans are smaller than f16, and few.
  const held = 4 * (judged * vocab + 2 * judged * layers * (width + 2 * kvHeads * headDim));
  const cache = { plan, context, extra: held + planBytes(plan, context) };
  const engine = await loadEngine(file, cache, { ...engineOptions(options), precise: true });
  try {
    return await probe(engine, {
      row: text,
      judged,
      content,
      shape: codecShape,
      codecs,
      state,
      mark,
      signal,
      onProgress: (done, total) => onProgress?.('probing', done, total),
    });
  } finally {
    await engine.dispose();
  }
}
