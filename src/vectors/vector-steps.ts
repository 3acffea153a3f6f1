/** Runs the steps of a vector cache on its device, layer by layer. */
import type { Pool } from '../cache/pool.ts';
import type { Sequence, SequenceRun } from '../cache/sequence.ts';
import type { Device, Tensor } from '../kernel/device.ts';
import type { Plan } from '../plan/plan.ts';
import { createYielder } from '../platform/event-loop.ts';
import { CapacityError, InputError, ShapeError } from '../util/errors.ts';
import { formatBytes } from '../util/units.ts';
import { batchRows, MAX_ROWS, type PlacedRun, planRows, type RowBatch } from './vector-batches.ts';

/** An open sequence. */
export interface State {
  sequence: Sequence;
  /** The step that has begun and not yet passed the last layer. */
  step?: { nextLayer: number; count: number; runs: SequenceRun[] };
  /** The device ran out of memory while a step was planned: some pages may have no content. */
  broken?: boolean;
}

/** Rows of a sequence in one layer. */
export interface LayerRows {
  state: State;
  /** Undefined if the vectors are only appended. */
  queries?: Float32Array;
  keys: Float32Array;
  values: Float32Array;
  count: number;
}

export interface RunnerOptions {
  device: Device;
  pool: Pool;
  plan: Plan;
  /** Query heads. */
  heads: number;
  /** Factor on every score. */
  scale: number;
}

/** Its calls must not overlap: they share the activations. */
export interface StepRunner {
  /** Adds rows to one layer. Returns their attention, one array per sequence; empty arrays for rows without queries. */
  runLayer(layer: number, rows: readonly LayerRows[]): Promise<Float32Array[]>;
  /** Attention of each query over all tokens. */
  attendAll(state: State, layer: number, queries: Float32Array): Promise<Float32Array>;
  dispose(): void;
}

/** Throws if this many more bytes do not fit. */
export function checkRoom(pool: Pool, bytes: number): void {
  if (!pool.makeRoom(bytes))
    throw new CapacityError(
      option =>
        `The cache is full: ${formatBytes(pool.used)} of ${formatBytes(pool.capacity)} are in use, and ` +
        `${formatBytes(bytes)} more are needed. Raise ${option('kvMemory')}, use a codec with fewer bits, or dispose sequences.`,
    );
}

export function createStepRunner({ device, pool, plan, heads, scale }: RunnerOptions): StepRunner {
  const { headDim, kvHeads } = plan.codecs[0].shape;
  const layers = plan.codecs.length;
  const createRows = (heads: number) => device.createTensor(MAX_ROWS, heads * headDim);
  const scratch = { q: createRows(heads), k: createRows(kvHeads), v: createRows(kvHeads), out: createRows(heads) };

  /** Begins a step of these sequences, or checks that `layer` is the next one of it. */
  const beginOrContinue = (layer: number, rows: readonly LayerRows[]) => {
    if (new Set(rows.map(({ state }) => state)).size < rows.length)
      throw new InputError('A step has a sequence twice. Give each sequence once, with all of its rows.');
    for (const { state, count } of rows) {
      const { nextLayer, count: begun } = state.step ?? { nextLayer: 0, count };
      if (layer !== nextLayer)
        throw new InputError(`A step goes through the layers in order: layer ${nextLayer} is next; got ${layer}.`);
      if (count !== begun)
        throw new ShapeError(`A step has the same number of rows in every layer: ${begun}; got ${count}.`);
    }
    const beginning = rows.filter(({ state }) => !state.step);
    // All or nothing: a plan that fails halfway would leave pages without content.
    const bytes = beginning.reduce((sum, { state, count }) => sum + state.sequence.bytesFor(count + 1), 0);
    checkRoom(pool, bytes);
    for (const { state, count } of beginning) {
      // Stays so if the plan throws.
      state.broken = true;
      state.step = { nextLayer: 0, count, runs: planRows(state.sequence, count) };
      state.broken = false;
    }
  };

  /** The batches of the last step. Devices cache data per array of runs, so all layers use the same arrays. */
  let lastBatches: { runs: readonly unknown[]; batches: RowBatch[] } = { runs: [], batches: [] };
  const batchesOf = (rows: readonly LayerRows[]): RowBatch[] => {
    const runs = rows.map(({ state }) => state.step?.runs ?? []);
    if (runs.length !== lastBatches.runs.length || runs.some((one, i) => one !== lastBatches.runs[i])) {
      const parts = rows.map(({ state: { sequence } }, i) => ({ sequence, runs: runs[i] }));
      lastBatches = { runs, batches: batchRows(parts) };
    }
    return lastBatches.batches;
  };

  /** Adds rows to one layer and, if they have queries, attends. */
  const runLayer = async (layer: number, rows: readonly LayerRows[]): Promise<Float32Array[]> => {
    beginOrContinue(layer, rows);
    await device.ensureMemory?.(rows.map(({ state }) => state.sequence.view));
    const outputs = rows.map(({ queries }) => new Float32Array(queries?.length ?? 0));
    const write = (tensor: Tensor, { row, partRow, count }: PlacedRun, x: Float32Array) =>
      device.writeRows(tensor, row, x.subarray(partRow * tensor.cols, (partRow + count) * tensor.cols));
    const yielder = createYielder();
    for (const batch of batchesOf(rows)) {
      for (const run of batch.rounds.flatMap(({ runs }) => runs)) {
        const { queries, keys, values } = rows[run.part];
        write(scratch.k, run, keys);
        write(scratch.v, run, values);
        if (queries) write(scratch.q, run, queries);
      }
      const attending = rows[0].queries !== undefined;
      for (const { seals, runs } of batch.rounds) {
        if (seals.length > 0) device.seal(layer, seals);
        if (runs.length === 0) continue;
        device.append(layer, scratch.k, scratch.v, runs);
        if (attending) device.attend(layer, scratch.q, scratch.out, runs, scale);
        if (yielder.isDue()) await yielder.yieldNow();
      }
      if (!attending || batch.rows === 0) continue;
      const { cols } = scratch.out;
      const found = await device.readRows(scratch.out, 0, batch.rows);
      for (const { part, partRow, row, count } of batch.rounds.flatMap(({ runs }) => runs))
        outputs[part].set(found.subarray(row * cols, (row + count) * cols), partRow * cols);
    }
    for (const { state, count } of rows) {
      if (!state.step) continue;
      state.step.nextLayer++;
      if (state.step.nextLayer < layers) continue;
      state.sequence.commit(count);
      state.step = undefined;
    }
    return outputs;
  };

  const attendAll = async ({ sequence }: State, layer: number, queries: Float32Array): Promise<Float32Array> => {
    if (sequence.length === 0) throw new InputError('The sequence is empty. Append vectors before you query them.');
    await device.ensureMemory?.([sequence.view]);
    const { view, length } = sequence;
    const { cols } = scratch.q;
    const out = new Float32Array(queries.length);
    for (let done = 0; done < queries.length; done += MAX_ROWS * cols) {
      const rows = queries.subarray(done, done + MAX_ROWS * cols);
      device.writeRows(scratch.q, 0, rows);
      // One run per query, each at the place of the last token: rows of one run would each see one token more.
      const run = { view, count: 1, position: length - 1, sealedPages: view.leaves.length };
      const runs = Array.from({ length: rows.length / cols }, (_, row) => ({ ...run, row }));
      device.attend(layer, scratch.q, scratch.out, runs, scale);
      out.set(await device.readRows(scratch.out, 0, runs.length), done);
    }
    return out;
  };

  return {
    runLayer,
    attendAll,
    dispose() {
      for (const tensor of Object.values(scratch)) device.free(tensor);
    },
  };
}
