/** Runs the steps of a vector cache on its device, layer by layer. */
import type { Pool } from '../cache/pool.ts';
import type { Sequence, SequenceRun } from '../cache/sequence.ts';
import type { Device, KvRun, SealRequest, Tensor } from '../kernel/device.ts';
import { tailCapacity } from '../kernel/visibility.ts';
import { groupRunsByRound, type Round } from '../model/batch.ts';
import type { Plan } from '../plan/plan.ts';
import { createYielder } from '../platform/event-loop.ts';
import { CapacityError, InputError, ShapeError } from '../util/errors.ts';
import { formatBytes } from '../util/units.ts';

/** An open sequence. */
export interface State {
  sequence: Sequence;
  /** The step that has begun and not yet passed the last layer. */
  step?: { nextLayer: number; count: number; runs: SequenceRun[] };
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

/** Its calls must not overlap: they share the activations. */
export interface StepRunner {
  /** Adds rows to one layer. Returns their attention, one array per sequence; empty arrays for rows without queries. */
  runLayer(layer: number, rows: readonly LayerRows[]): Promise<Float32Array[]>;
  /** Attention of each query over all tokens. */
  attendAll(sequence: Sequence, layer: number, queries: Float32Array): Promise<Float32Array>;
}

/** A run at its place in a batch. */
interface PlacedRun extends KvRun {
  /** Its first row among those of its sequence. */
  sequenceRow: number;
}

/** As many rows as fit into the activations. */
interface RowBatch {
  rows: number;
  rounds: { seals: readonly SealRequest[]; runs: PlacedRun[] }[];
}

/** Rows of the activations: more only where pages are larger, since a run is not divided. */
const BATCH_ROWS = 512;

/** `heads`: query heads. `scale`: factor on every score. */
export function createStepRunner(device: Device, pool: Pool, plan: Plan, heads: number, scale: number): StepRunner {
  const { headDim, kvHeads } = plan.codecs[0].shape;
  const maxRows = Math.max(BATCH_ROWS, tailCapacity({ pageTokens: plan.pageTokens, recent: plan.window.recent }));
  const createRows = (heads: number) => device.createTensor(maxRows, heads * headDim);
  const [q, k, v, out] = [heads, kvHeads, kvHeads, heads].map(createRows);

  /** The batches of the last steps. Devices cache data per array of runs, so all layers use the same arrays. */
  let last: { steps: readonly unknown[]; batches: RowBatch[] } = { steps: [], batches: [] };
  const batchesOf = (rows: readonly LayerRows[]): RowBatch[] => {
    const steps = rows.map(({ state }) => state.step);
    if (steps.length !== last.steps.length || steps.some((step, i) => step !== last.steps[i])) {
      const placed = rows.map(({ state: { sequence, step } }) => ({ chunk: { sequence }, row: 0, runs: step!.runs }));
      last = { steps, batches: divideIntoBatches(groupRunsByRound(placed), maxRows) };
    }
    return last.batches;
  };

  return {
    async runLayer(layer, rows) {
      const beginning = beginOrContinue(pool, layer, rows);
      try {
        await device.ensureMemory?.(rows.map(({ state }) => state.sequence.view));
      } catch (error) {
        abandon(beginning);
        throw error;
      }
      const outputs = rows.map(({ queries }) => new Float32Array(queries?.length ?? 0));
      const partOf = new Map(rows.map((part, i) => [part.state.sequence.view, { ...part, output: outputs[i] }]));
      const attends = rows[0].queries !== undefined;
      const write = (tensor: Tensor, { row, sequenceRow, count }: PlacedRun, x: Float32Array) =>
        device.writeRows(tensor, row, x.subarray(sequenceRow * tensor.cols, (sequenceRow + count) * tensor.cols));
      const yielder = createYielder();
      for (const batch of batchesOf(rows)) {
        const placed = batch.rounds.flatMap(({ runs }) => runs);
        for (const run of placed) {
          const { queries, keys, values } = partOf.get(run.view)!;
          write(k, run, keys);
          write(v, run, values);
          if (queries) write(q, run, queries);
        }
        for (const { seals, runs } of batch.rounds) {
          if (seals.length > 0) device.seal(layer, seals);
          if (runs.length === 0) continue;
          device.append(layer, k, v, runs);
          if (attends) device.attend(layer, q, out, runs, { scale });
          if (yielder.isDue()) await yielder.yieldNow();
        }
        if (!attends || batch.rows === 0) continue;
        const found = await device.readRows(out, 0, batch.rows);
        for (const { view, row, sequenceRow, count } of placed)
          partOf
            .get(view)!
            .output.set(found.subarray(row * out.cols, (row + count) * out.cols), sequenceRow * out.cols);
      }
      for (const { state } of rows) endLayer(state, plan.codecs.length);
      return outputs;
    },
    async attendAll({ view, length }, layer, queries) {
      if (length === 0) throw new InputError('The sequence is empty. Append vectors before you query them.');
      await device.ensureMemory?.([view]);
      const output = new Float32Array(queries.length);
      for (let done = 0; done < queries.length; done += maxRows * q.cols) {
        const rows = queries.subarray(done, done + maxRows * q.cols);
        device.writeRows(q, 0, rows);
        // One run per query, each at the place of the last token: rows of one run would each see one token more.
        const run = { view, count: 1, position: length - 1, sealedPages: view.leaves.length };
        const runs = Array.from({ length: rows.length / q.cols }, (_, row) => ({ ...run, row }));
        device.attend(layer, q, out, runs, { scale });
        output.set(await device.readRows(out, 0, runs.length), done);
      }
      return output;
    },
  };
}

/** Begins a step of these sequences, or checks that `layer` is the next one of it. Returns those that begin. */
function beginOrContinue(pool: Pool, layer: number, rows: readonly LayerRows[]): readonly LayerRows[] {
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
  const bytes = beginning.reduce((sum, { state, count }) => sum + state.sequence.bytesFor(count + 1), 0);
  if (!pool.makeRoom(bytes))
    throw new CapacityError(
      option =>
        `The cache is full: ${formatBytes(pool.used)} of ${formatBytes(pool.capacity)} are in use, and ` +
        `${formatBytes(bytes)} more are needed. Raise ${option('kvMemory')}, use a codec with fewer bits, or dispose sequences.`,
    );
  try {
    for (const { state, count } of beginning)
      state.step = { nextLayer: 0, count, runs: planRows(state.sequence, count) };
  } catch (error) {
    abandon(beginning);
    throw error;
  }
  return beginning;
}

/** The device has less memory than the cache may use: none of them has begun. Cropping drops what was planned. */
function abandon(beginning: readonly LayerRows[]): void {
  for (const { state } of beginning) {
    state.step = undefined;
    state.sequence.crop(state.sequence.length);
  }
}

function endLayer(state: State, layers: number): void {
  const step = state.step!;
  if (++step.nextLayer < layers) return;
  state.sequence.commit(step.count);
  state.step = undefined;
}

/**
 * Plans `count` new rows. The plan is one row longer than the step: a page that the row after the step would seal is sealed
 * by the step, so that what can be read does not depend on whether another step follows. Its run has no rows.
 */
function planRows(sequence: Sequence, count: number): SequenceRun[] {
  const runs = sequence.plan(count + 1);
  const last = runs[runs.length - 1];
  return [...runs.slice(0, -1), { ...last, count: last.count - 1 }];
}

function divideIntoBatches(rounds: readonly Round[], maxRows: number): RowBatch[] {
  const batches: RowBatch[] = [{ rows: 0, rounds: [] }];
  for (const { seals, runs } of rounds) {
    let batch = batches[batches.length - 1];
    let placed: PlacedRun[] = [];
    batch.rounds.push({ seals, runs: placed });
    for (const run of runs) {
      if (run.count === 0) continue;
      if (batch.rows + run.count > maxRows) {
        placed = [];
        batch = { rows: 0, rounds: [{ seals: [], runs: placed }] };
        batches.push(batch);
      }
      placed.push({ ...run, sequenceRow: run.row, row: batch.rows });
      batch.rows += run.count;
    }
  }
  return batches;
}
