/**
 * The rows of a pass: chunks of sequences, and the runs of rows that read the same sealed pages. Decode rows come first, then
 * prefill rows.
 */
import type { Sequence, SequenceRun } from '../cache/sequence.ts';
import type { KvRun, KvView, SamplingRequest, SealRequest } from '../kernel/device.ts';

export interface Chunk {
  sequence: Sequence;
  /** Token ids, or handles of tokens that the device sampled. */
  tokens: ArrayLike<number>;
  /** Whether the rows are prefill or decode; by default a chunk of more than one token is prefill. */
  prefill?: boolean;
  /** The last tokens that are guesses: they are added without ids. Default: 0. */
  drafts?: number;
  /** Read the f16 pages of a sequence in shadow or two-tier mode, instead of its codes. Default: false. */
  exact?: boolean;
  /** Which rows need logits. */
  logits: 'all' | 'last' | 'none';
  /** Sample the last row on the device, if it can, and return the token instead of its logits. */
  sampling?: Omit<SamplingRequest, 'row'>;
}

interface PlacedRuns {
  chunk: Pick<Chunk, 'sequence' | 'exact'>;
  /** First row in the batch. */
  row: number;
  runs: readonly SequenceRun[];
  prefill?: boolean;
}

export interface PlacedChunk extends PlacedRuns {
  chunk: Chunk;
}

/** Whether a chunk's rows are prefill rows. The parts of a split chunk must all set `prefill`. */
export const isPrefill = ({ prefill, tokens }: Chunk): boolean => prefill ?? tokens.length > 1;

/** Gives every chunk its rows in the batch: decode rows first, then prefill rows. */
export function assignRows(chunks: readonly Chunk[]): { placed: PlacedChunk[]; rows: number; prefillRows: number } {
  const placed = chunks.map(chunk => ({
    ...{ chunk, row: 0, prefill: isPrefill(chunk) },
    runs: chunk.sequence.plan(chunk.tokens.length),
  }));
  let rows = 0;
  let decodeRows = 0;
  for (const prefill of [false, true]) {
    for (const part of placed.filter(part => part.prefill === prefill)) {
      part.row = rows;
      rows += part.chunk.tokens.length;
    }
    if (!prefill) decodeRows = rows;
  }
  return { placed, rows, prefillRows: rows - decodeRows };
}

/** Without the guesses. */
export const knownTokens = ({ tokens, drafts }: Chunk): ArrayLike<number> =>
  drafts ? Array.prototype.slice.call(tokens, 0, -drafts) : tokens;

export function tokenIdsByRow(placed: readonly PlacedChunk[], rows: number): Uint32Array {
  const ids = new Uint32Array(rows);
  for (const { chunk, row } of placed) ids.set(Array.from(chunk.tokens), row);
  return ids;
}

export interface Round {
  runs: KvRun[];
  seals: SealRequest[];
}

/** The runs of a chunk depend on each other, so round i holds the i-th run of every chunk. */
export function groupRunsByRound(placed: readonly PlacedRuns[]): Round[] {
  const rounds: Round[] = [];
  for (const { chunk, row, runs, prefill } of placed) {
    const { view, exactView } = chunk.sequence;
    runs.forEach((run, i) => {
      rounds[i] ??= { runs: [], seals: [] };
      const { runs, seals } = rounds[i];
      runs.push({ ...run, view: (chunk.exact && exactView) || view, row: row + run.row, prefill });
      seals.push(...sealRequests(view, run));
      if (exactView) seals.push(...sealRequests(exactView, run));
    });
  }
  return rounds;
}

/** The rows of a chunk that need logits, counted from its first row. */
export function logitRows(placed: PlacedChunk): { placed: PlacedChunk; row: number }[] {
  const { logits, tokens } = placed.chunk;
  const count = logits === 'all' ? tokens.length : logits === 'last' ? 1 : 0;
  return Array.from({ length: count }, (_, i) => ({ placed, row: tokens.length - count + i }));
}

/** The page whose codes this run is the first to read, if there is one. */
export function sealRequests(view: KvView, { sealsPage, sealedPages }: SequenceRun): SealRequest[] {
  return sealsPage ? [{ view, page: sealedPages - 1 }] : [];
}
