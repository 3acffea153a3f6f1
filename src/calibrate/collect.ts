/** Reads rows of text with an f16 cache and keeps every layer's record of each: one file a row. */
import type { Engine } from '../engine/engine.ts';
import { step } from '../engine/step.ts';
import type { Device, Tensor } from '../kernel/device.ts';
import type { Seen } from '../model/forward.ts';
import { planOf } from '../plan/plan.ts';
import { recordBytes, type StatisticsShape, sampledQueries } from '../plan/statistics.ts';
import type { State } from './state.ts';
import type { Workers } from './workers.ts';

export interface CollectOptions {
  shape: StatisticsShape;
  state: State;
  workers: Workers;
  signal?: AbortSignal;
  /** Rows that are in. */
  onProgress?: (done: number) => void;
}

const rowName = (row: number) => `row-${row}`;

/** All rows, or false if the signal came first. The engine must take a whole row at once. */
export async function collect(
  engine: Engine,
  rows: readonly (readonly number[])[],
  { shape, state, workers, signal, onProgress }: CollectOptions,
): Promise<boolean> {
  const plan = planOf('f16', engine.config);
  let writing = Promise.resolve();
  for (const [row, tokens] of rows.entries()) {
    if (await state.has(rowName(row))) {
      onProgress?.(row + 1);
      continue;
    }
    const records: Promise<Uint8Array>[] = [];
    const queries = sampledQueries(shape, row);
    const all = Array.from(tokens.keys());
    const observe = async (layer: number, { q, k, v }: Seen) => {
      const read = (tensor: Tensor, wanted: readonly number[]) => rowsOf(engine.device, tensor, wanted);
      const request = { shape, row, q: await read(q, queries), k: await read(k, all), v: await read(v, all) };
      records[layer] = workers.run('observe', request, [request.q.buffer, request.k.buffer, request.v.buffer]);
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
    writing = Promise.all(records).then(async parts => {
      await state.write(rowName(row), Buffer.concat(parts));
      onProgress?.(row + 1);
    });
  }
  await writing;
  return !signal?.aborted;
}

async function rowsOf(device: Device, tensor: Tensor, wanted: readonly number[]): Promise<Float32Array<ArrayBuffer>> {
  const out = new Float32Array(wanted.length * tensor.cols);
  for (const [i, row] of wanted.entries()) out.set(await device.read(tensor, row), i * tensor.cols);
  return out;
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
