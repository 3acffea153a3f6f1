/** Reads rows of text with an f16 cache and keeps every layer's record of each: one file a row. */
import type { Engine } from '../engine/engine.ts';
import { step } from '../engine/step.ts';
import type { Device } from '../kernel/device.ts';
import type { Seen } from '../model/forward.ts';
import { planOf } from '../plan/plan.ts';
import { recordBytes, type StatisticsShape, sampledQueries } from '../plan/statistics.ts';
import type { State } from './state.ts';
import type { Workers } from './workers.ts';

export interface CollectOptions {
  shape: StatisticsShape;
  /** [layer], see metric.ts. */
  grams: readonly Float32Array[];
  state: State;
  workers: Workers;
  signal?: AbortSignal;
  /** Rows that are in. */
  onProgress?: (done: number) => void;
}

const rowName = (row: number) => `row-${row}`;

/** All rows, or false if the signal came first. */
export async function collect(
  engine: Engine,
  rows: readonly (readonly number[])[],
  { shape, grams, state, workers, signal, onProgress }: CollectOptions,
): Promise<boolean> {
  const plan = planOf('f16', engine.config);
  let writing = Promise.resolve();
  // Threads and files work while the device reads on: an error of theirs ends the reading at the next layer.
  const errors: unknown[] = [];
  const watch = <T>(promise: Promise<T>): Promise<T> => {
    promise.catch(error => errors.push(error));
    return promise;
  };
  for (const [row, tokens] of rows.entries()) {
    if (await state.has(rowName(row))) {
      onProgress?.(row + 1);
      continue;
    }
    const records: Promise<Uint8Array>[] = [];
    const layers = Array.from({ length: engine.config.layers }, () => createGatherer(shape, row));
    const observe = async (layer: number, seen: Seen) => {
      if (errors.length > 0) throw errors[0];
      const gathered = await layers[layer](engine.device, seen);
      if (!gathered) return;
      const { q, k, v } = gathered;
      const observed = { q, k, v, grams: grams[layer] };
      records[layer] = watch(workers.run('observe', { shape, row, observed }, [q.buffer, k.buffer, v.buffer]));
    };
    const sequence = engine.openSequence(plan, tokens.length);
    try {
      const done = await step(engine, [{ sequence, tokens, logits: 'none' }], { signal, observe });
      if (!done) break;
    } finally {
      sequence.dispose();
    }
    // The device reads the next row while threads are at this one, but no more than one ahead.
    await writing;
    const write = async (parts: readonly Uint8Array[]) => {
      await state.write(rowName(row), Buffer.concat(parts));
      onProgress?.(row + 1);
    };
    writing = watch(Promise.all(records).then(write));
  }
  await writing;
  return !signal?.aborted;
}

/** Takes one layer's batches of a row, and with the last gives the sampled queries and all keys and values. */
function createGatherer(shape: StatisticsShape, row: number) {
  const { heads, kvHeads, headDim, context } = shape;
  const queries = sampledQueries(shape, row);
  const q = new Float32Array(queries.length * heads * headDim);
  const k = new Float32Array(context * kvHeads * headDim);
  const v = new Float32Array(k.length);
  let done = 0;
  let asked = 0;
  return async (device: Device, seen: Seen) => {
    for (let r = 0; r < seen.rows; r++, done++) {
      k.set(await device.read(seen.k, r), done * seen.k.cols);
      v.set(await device.read(seen.v, r), done * seen.v.cols);
      if (queries[asked] === done) q.set(await device.read(seen.q, r), asked++ * seen.q.cols);
    }
    return done === context ? { q, k, v } : undefined;
  };
}

/** One layer's records of all rows. */
export function readRecords(
  state: State,
  shape: StatisticsShape,
  rows: number,
  layer: number,
): Promise<Uint8Array<ArrayBuffer>[]> {
  const bytes = recordBytes(shape);
  return Promise.all(Array.from({ length: rows }, (_, row) => state.readPart(rowName(row), layer * bytes, bytes)));
}
