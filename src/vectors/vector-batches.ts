/** How the rows of a step are divided among device calls. */
import type { Sequence, SequenceRun } from '../cache/sequence.ts';
import type { Block, KvRun, KvView } from '../kernel/device.ts';

/** Max rows per batch: the activations of a step are this high. */
export const MAX_ROWS = 512;

/** The rows of one sequence in a step. */
export interface StepPart {
  sequence: Sequence;
  runs: readonly SequenceRun[];
}

/** A run at its place: `row` counts in the batch, `partRow` in the rows of part `part`. */
export interface PlacedRun extends KvRun {
  part: number;
  partRow: number;
}

/** At most one run of each sequence: the next one reads what this one appends. */
export interface Round {
  /** Pages to seal before the runs. */
  seals: { view: KvView; page: number; leaf: Block }[];
  runs: PlacedRun[];
}

export interface RowBatch {
  rows: number;
  rounds: Round[];
}

/**
 * Plans `count` new rows. The plan is one row longer than the step: a page that the row after the step would seal is sealed
 * by the step, so that what can be read does not depend on whether another step follows. Its run has no rows.
 */
export function planRows(sequence: Sequence, count: number): SequenceRun[] {
  const runs = sequence.plan(count + 1);
  const last = runs[runs.length - 1];
  return [...runs.slice(0, -1), { ...last, count: last.count - 1 }];
}

/** Divides rows into batches that fit the activations, and batches into rounds. */
export function batchRows(parts: readonly StepPart[]): RowBatch[] {
  const pieces = parts.map(({ runs }) => runs.flatMap(splitRun));
  const batches: RowBatch[] = [{ rows: 0, rounds: [] }];
  for (let i = 0; i < Math.max(...pieces.map(({ length }) => length)); i++) {
    let batch = batches[batches.length - 1];
    let round: Round | undefined;
    for (const [part, { [i]: run }] of pieces.entries()) {
      if (!run) continue;
      if (batch.rows + run.count > MAX_ROWS) {
        batch = { rows: 0, rounds: [] };
        batches.push(batch);
        round = undefined;
      }
      if (!round) {
        round = { seals: [], runs: [] };
        batch.rounds.push(round);
      }
      const { view } = parts[part].sequence;
      const page = run.sealedPages - 1;
      if (run.sealsPage) round.seals.push({ view, page, leaf: view.leaves[page - view.firstLeaf] });
      if (run.count > 0) round.runs.push({ ...run, view, part, partRow: run.row, row: batch.rows });
      batch.rows += run.count;
    }
  }
  return batches;
}

/** A run of a large page may be longer than a batch. */
function splitRun(run: SequenceRun): SequenceRun[] {
  const { row, count, position, sealsPage } = run;
  const pieces: SequenceRun[] = [];
  for (let done = 0; done === 0 || done < count; done += MAX_ROWS)
    pieces.push({
      ...run,
      row: row + done,
      position: position + done,
      count: Math.min(MAX_ROWS, count - done),
      sealsPage: sealsPage && done === 0,
    });
  return pieces;
}
