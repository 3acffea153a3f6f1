/** Runs rows of text with an f16 cache and stores the statistics of every layer: one file per row. */
import { F16 } from '../codec/spec.ts';
import { type Engine, planShape } from '../engine/engine.ts';
import { step } from '../engine/step.ts';
import type { Device, Tensor } from '../kernel/device.ts';
import type { LayerActivations } from '../model/forward.ts';
import { createPlan } from '../plan/plan.ts';
import { recordBytes, type StatisticsShape, sampledQueries, statisticsOfLayer } from '../plan/statistics.ts';
import type { Checkpoint } from './checkpoint.ts';
import type { CalibrationJob } from './job.ts';
import type { Workers } from './workers.ts';

/** What a stage runs with. `onProgress` gets the number of rows, or of sides of layers, that are done. */
export interface StageOptions {
  workers: Workers;
  signal?: AbortSignal;
  onProgress?: (done: number) => void;
}

const rowName = (row: number) => `row-${row}`;

/** Returns false if the signal aborted it. */
export async function collect(
  engine: Engine,
  rows: readonly (readonly number[])[],
  {
    shape,
    attentionWeights,
    checkpoint,
    workers,
    signal,
    onProgress,
  }: Pick<CalibrationJob, 'shape' | 'attentionWeights' | 'checkpoint'> & StageOptions,
): Promise<boolean> {
  const plan = createPlan(F16, engine.config);
  const model = planShape(engine);
  let writing = Promise.resolve();
  // Threads and files work while the device runs the next row; their errors are thrown at the next layer.
  const errors: unknown[] = [];
  const watch = <T>(promise: Promise<T>): Promise<T> => {
    promise.catch(error => errors.push(error));
    return promise;
  };
  for (const [row, tokens] of rows.entries()) {
    if (await checkpoint.has(rowName(row))) {
      onProgress?.(row + 1);
      continue;
    }
    const records: Promise<Uint8Array>[] = [];
    const layers = Array.from({ length: engine.config.layers }, () => createGatherer(shape, row));
    const observe = async (layer: number, seen: LayerActivations) => {
      if (errors.length > 0) throw errors[0];
      const gathered = await layers[layer](engine.device, seen);
      if (!gathered) return;
      const { q, k, v } = gathered;
      const observed = { ...gathered, ...attentionWeights[layer] };
      const request = { shape: statisticsOfLayer(shape, model, layer), row, observed };
      records[layer] = watch(workers.run('observe', request, [q.buffer, k.buffer, v.buffer]));
    };
    const sequence = engine.openSequence(plan, tokens.length);
    try {
      const done = await step(engine, [{ sequence, tokens, logits: 'none' }], { signal, observe });
      if (!done) break;
    } finally {
      sequence.dispose();
    }
    // The device may be at most one row ahead of the threads.
    await writing;
    const write = async (parts: readonly Uint8Array[]) => {
      await checkpoint.write(rowName(row), Buffer.concat(parts));
      onProgress?.(row + 1);
    };
    writing = watch(Promise.all(records).then(write));
  }
  await writing;
  return !signal?.aborted;
}

/** Collects one layer's batches of a row; with the last batch, returns what a record is computed from. */
function createGatherer(shape: StatisticsShape, row: number) {
  const { heads, kvHeads, headDim, context } = shape;
  const queries = sampledQueries(shape, row);
  const q = new Float32Array(queries.length * heads * headDim);
  const k = new Float32Array(context * kvHeads * headDim);
  const v = new Float32Array(k.length);
  const norms = new Float64Array(context);
  let done = 0;
  let collected = 0;
  return async (device: Device, seen: LayerActivations) => {
    const read = (tensor: Tensor) => device.readRows(tensor, 0, seen.rows);
    const [x, allQueries, allKeys, allValues] = await Promise.all([seen.x, seen.q, seen.k, seen.v].map(read));
    x.forEach((value, i) => {
      norms[done + Math.floor(i / seen.x.cols)] += value ** 2;
    });
    k.set(allKeys, done * seen.k.cols);
    v.set(allValues, done * seen.v.cols);
    const end = done + seen.rows;
    for (; queries[collected] < end; collected++) {
      const from = (queries[collected] - done) * seen.q.cols;
      q.set(allQueries.subarray(from, from + seen.q.cols), collected * seen.q.cols);
    }
    done = end;
    // The median: a few tokens, such as the first, have an input that is a thousand times larger.
    return done === context ? { q, k, v, inputNorm: norms.sort()[context >> 1] } : undefined;
  };
}

/** One layer's records of all rows. */
export function readRecords(
  checkpoint: Checkpoint,
  shape: StatisticsShape,
  rows: number,
  layer: number,
): Promise<Uint8Array<ArrayBuffer>[]> {
  const bytes = recordBytes(shape);
  return Promise.all(Array.from({ length: rows }, (_, row) => checkpoint.readPart(rowName(row), layer * bytes, bytes)));
}
