/**
 * Calibration: from a model and some text to its profile. Four stages, each of which can be interrupted and goes on
 * from what the state holds: the text (given, or written by the model itself), statistics of every layer, what codecs
 * learn of them, and how much each layer's keys and values matter.
 */
import type { Side } from '../codec/codec.ts';
import {
  type Engine,
  type EngineOptions,
  loadEngine,
  type ModelFile,
  openModelFile,
  planShape,
} from '../engine/engine.ts';
import { profileShape } from '../engine/profile.ts';
import { InputError } from '../errors.ts';
import { createProber } from '../eval/sensitivity.ts';
import { planOf } from '../plan/plan.ts';
import { encodeProfile, type ProfileContent } from '../plan/profile.ts';
import { profilePath, writeWhole } from '../plan/store.ts';
import { collect } from './collect.ts';
import { type Job, type JobOptions, prepare } from './job.ts';
import { writeRows } from './self-text.ts';
import { train } from './train.ts';
import { createWorkers, type Workers } from './workers.ts';

export interface CalibrateOptions extends JobOptions, Pick<EngineOptions, 'device' | 'threads' | 'memoryLimit'> {
  /** How much of its row each probe reads: all unless given, 0 for no probes. Plans need them, codecs do not. */
  probeTokens?: number;
  /** Where the profile goes: the store unless given. */
  out?: string;
  /** Threads beside the device's; 0 does all in this one. */
  workers: number;
  signal?: AbortSignal;
  onProgress?: (stage: Stage, done: number, total: number) => void;
}

/** In tokens, rows, and sides of layers. */
export type Stage = 'writing' | 'reading' | 'learning' | 'probing';

export interface Calibrated {
  path: string;
  bytes: number;
  hash: string;
  content: ProfileContent;
}

/** Most rows that the model writes at a time. */
const SELF_ROWS = 16;
const SIDES = ['key', 'value'] as const;
/** What is measured of every layer and side: by spec, the codec that must have been learned for it. */
const PROBES: Record<string, string> = { 'tq2-c': 'tq4-c', mead2: 'mead2' };

/** The profile, or undefined if the signal came first: the same call goes on from there. */
export async function calibrate(name: string, options: CalibrateOptions): Promise<Calibrated | undefined> {
  const { probeTokens = Number.POSITIVE_INFINITY } = options;
  if (probeTokens !== 0 && !(probeTokens >= 16))
    throw new InputError(`Probes of ${probeTokens} tokens measure nothing. Take 16 or more, or 0 for no probes.`);
  const file = await openModelFile(name);
  const job = await prepare(file, options).catch(async error => {
    await file.gguf.close();
    throw error;
  });
  const workers = await createWorkers(options.workers);
  try {
    const rows = await readText(file, job, workers, options);
    if (!rows) return undefined;
    const { fingerprint, context, seed, text, codecs, shape, codecShape, state } = job;
    const tokens = job.rows * context;
    const made = { tokens, context, samples: job.rows * shape.samples, seed, text, codecs, version: options.version };
    const content = { fingerprint, shape: profileShape(file), made, sensitivities: {} };
    const learned = await train({
      ...job,
      content,
      workers,
      signal: options.signal,
      onProgress: done => options.onProgress?.('learning', done, 2 * codecShape.layers),
    });
    const row = rows[job.rows].slice(0, probeTokens);
    const sensitivities = learned && (await probe(name, job, row, learned, options));
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
    const rows = job.given ?? (await selfText(engine, job, options));
    const reading = rows?.slice(0, job.rows);
    const onRow = (done: number) => onProgress?.('reading', done, job.rows);
    const done =
      reading && (await collect(engine, reading, { shape, grams, state, workers, signal, onProgress: onRow }));
    return done ? rows : undefined;
  } finally {
    await engine.dispose();
  }
}

async function selfText(engine: Engine, { rows, context, seed, state }: Job, options: CalibrateOptions) {
  const { signal, onProgress } = options;
  const text: number[][] = [];
  // In equal parts, since a row alone takes as long as many together.
  const most = Math.ceil((rows + 1) / Math.ceil((rows + 1) / SELF_ROWS));
  while (text.length <= rows) {
    const first = text.length;
    const name = `text-${first}`;
    const count = Math.min(most, rows + 1 - first);
    if (!(await state.has(name))) {
      const progress = (tokens: number) => onProgress?.('writing', first * context + tokens, (rows + 1) * context);
      const written = await writeRows(engine, { rows: count, context, seed, first, signal, onProgress: progress });
      if (!written) return undefined;
      await state.write(name, new Uint8Array(Int32Array.from(written.flat()).buffer));
    }
    const ids = new Int32Array((await state.read(name)).buffer);
    for (let i = 0; i < count; i++) text.push([...ids.subarray(i * context, (i + 1) * context)]);
  }
  return text;
}

/** What each layer and side costs when it alone is coded, by probe. */
async function probe(
  name: string,
  { codecs, mark, codecShape, state }: Job,
  row: readonly number[],
  learned: ProfileContent['learned'],
  options: CalibrateOptions,
): Promise<ProfileContent['sensitivities'] | undefined> {
  const { signal, onProgress } = options;
  if (row.length === 0) return {};
  const specs = Object.keys(PROBES).filter(spec => codecs.includes(PROBES[spec]));
  const probes = specs.flatMap(spec =>
    learned.flatMap((known, layer) => SIDES.map(side => ({ spec, layer, side, learned: known }))),
  );
  const known = `probed-${mark}-${row.length}`;
  /** In the order of the probes. */
  const measured: number[] = (await state.has(known))
    ? JSON.parse(new TextDecoder().decode(await state.read(known)))
    : [];
  const file = await openModelFile(name);
  const extra = 4 * row.length * (file.config.vocab / 2 + file.config.layers * file.config.width);
  const settings = { ...engineOptions(options), precise: true };
  const engine = await loadEngine(file, { plan: planOf('f16', planShape(file)), context: row.length, extra }, settings);
  try {
    const measure = await createProber(engine, row, { signal });
    while (measured.length < probes.length) {
      onProgress?.('probing', measured.length, probes.length);
      const divergence = await measure?.(probes[measured.length], signal);
      if (divergence === undefined) return undefined;
      measured.push(divergence);
      await state.write(known, new TextEncoder().encode(JSON.stringify(measured)));
    }
  } finally {
    await engine.dispose();
  }
  const of = (spec: string, layer: number, side: Side) =>
    measured[probes.findIndex(probe => probe.spec === spec && probe.layer === layer && probe.side === side)];
  return Object.fromEntries(
    specs.map(spec => [
      spec,
      Array.from({ length: codecShape.layers }, (_, i) => ({ key: of(spec, i, 'key'), value: of(spec, i, 'value') })),
    ]),
  );
}
