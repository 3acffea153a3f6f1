/** The decisions of the scheduler, as pure functions: which rows run next, who is admitted, and who makes room. */

import type { PrefetchProgress } from '../cache/prefetch.ts';

/** A request as the decisions see it. */
export interface Candidate {
  /** Order of arrival. */
  readonly arrival: number;
  readonly tenant: string;
  /** Rows of the prompt that are still to be run; 0 when tokens are being decoded. */
  readonly promptRows: number;
  /** Whether a row could run now: false while its next token is unknown, or its reader has fallen behind. */
  readonly ready: boolean;
  /** When it last took part in a pass: a count of such turns of all requests; -1 before its first. */
  readonly lastTurn: number;
}

export interface Piece<T> {
  request: T;
  rows: number;
}

/** Fewer rows of a prompt in a pass are not efficient. */
const MIN_PROMPT_ROWS = 8;

/**
 * The rows of the next pass: one per decoding request, then prompt chunks of at most `promptRows` rows together. Prompts get
 * equal shares, so that a short one is not delayed by long ones, and the oldest gets what the others leave. If there are not
 * enough rows, prompts take turns, and so do decoding requests, which leave some rows to the prompts.
 */
export function chooseRows<T extends Candidate>(
  requests: readonly T[],
  maxRows: number,
  promptRows: number,
): Piece<T>[] {
  const ready = requests.filter(request => request.ready).sort((a, b) => a.arrival - b.arrival);
  const prompts = ready.filter(request => request.promptRows > 0);
  const decodeRows = prompts.length > 0 ? Math.max(Math.ceil(maxRows / 2), maxRows - MIN_PROMPT_ROWS) : maxRows;
  const decoding = ready
    .filter(request => request.promptRows === 0)
    .sort((a, b) => a.lastTurn - b.lastTurn)
    .slice(0, decodeRows);
  const pieces = decoding.map(request => ({ request, rows: 1 }));
  let free = Math.min(promptRows, maxRows - decoding.length);
  const share = Math.max(MIN_PROMPT_ROWS, Math.floor(free / Math.max(1, prompts.length)));
  const chunks: Piece<T>[] = [];
  for (const request of prompts.toSorted((a, b) => a.lastTurn - b.lastTurn)) {
    const rows = Math.min(share, free, request.promptRows);
    if (rows > 0) chunks.push({ request, rows });
    free -= rows;
  }
  chunks.sort((a, b) => a.request.arrival - b.request.arrival);
  for (const chunk of chunks) {
    const rows = Math.min(free, chunk.request.promptRows - chunk.rows);
    chunk.rows += rows;
    free -= rows;
  }
  return [...pieces, ...chunks];
}

/** A decoding request as the choice of drafts sees it. */
export interface Drafting {
  /** For each draft that it could have, how likely it and all before it are right. */
  draftProbabilities(): readonly number[];
}

/** Drafts must promise this many times their cost: estimates are noisy. */
const DRAFT_MARGIN = 1.2;
/** Products are computed for so many rows at once, or for one: fewer rows are not faster. */
const ROW_TILE = 4;

const computedRows = (rows: number): number => (rows === 1 ? 1 : ROW_TILE * Math.ceil(rows / ROW_TILE));
/** Rows that drafts add to what is computed. */
const addedRows = (decodeRows: number, drafts: number): number =>
  computedRows(decodeRows + drafts) - computedRows(decodeRows);

/** Before the cost of a row was measured: reading the weights takes as long as computing two. */
const firstRowCost = (decode: number, decodeRows: number): number => decode / (decodeRows + 2);

/**
 * Adds rows with drafts (drafter.ts) to a pass that only decodes: as many as promise the most tokens for the time that they
 * add. The time of a pass without drafts is worth a token of each request.
 */
export function addDrafts<T extends Drafting>(
  pieces: readonly Piece<T>[],
  maxRows: number,
  { decode, perDraftRow }: PassTimes,
): Piece<T>[] {
  if (decode === undefined) return [...pieces];
  const count = pieces.length;
  const rowCost = (perDraftRow ?? firstRowCost(decode, count)) / (decode / count);
  // The most likely first; of a request these are its first ones.
  const drafts = pieces
    .flatMap(piece => piece.request.draftProbabilities().map(probability => ({ piece, probability })))
    .sort((a, b) => b.probability - a.probability)
    .slice(0, maxRows - count);
  let [promised, best, chosen] = [0, 0, 0];
  for (const [i, { probability }] of drafts.entries()) {
    promised += probability;
    const gain = promised - DRAFT_MARGIN * rowCost * addedRows(count, i + 1);
    if (gain > best) [best, chosen] = [gain, i + 1];
  }
  return pieces.map(piece => {
    const added = drafts.slice(0, chosen).filter(draft => draft.piece === piece).length;
    return { ...piece, rows: piece.rows + added };
  });
}

/** The rows of a pass that end with a sampled token. */
export interface SampledRows {
  onDevice: number;
  onHost: number;
}

/**
 * Whether the next pass is recorded while this one runs. It is then without the rows whose token the host samples (log
 * probabilities, a grammar), which take part in every second pass only; but no pass waits until it is recorded. So two
 * passes have 2 `onDevice` + `onHost` tokens instead of twice the sum, in less time: it must be more tokens per second.
 */
export const shouldRunAhead = ({ onDevice, onHost }: SampledRows, passMs: number, recordMs: number): boolean =>
  onHost === 0 || (onDevice > 0 && recordMs * (2 * onDevice + onHost) > passMs * onHost);

/** Waiting requests in the order of their admission: tenants with the fewest running requests first, then by arrival. */
export function admissionOrder<T extends Pick<Candidate, 'arrival' | 'tenant'>>(
  waiting: readonly T[],
  running: readonly Pick<Candidate, 'tenant'>[],
): T[] {
  const counts = new Map<string, number>();
  for (const { tenant } of running) counts.set(tenant, (counts.get(tenant) ?? 0) + 1);
  const queues = new Map<string, T[]>();
  for (const request of [...waiting].sort((a, b) => a.arrival - b.arrival)) {
    const queue = queues.get(request.tenant);
    if (queue) queue.push(request);
    else queues.set(request.tenant, [request]);
  }
  const order: T[] = [];
  while (queues.size > 0) {
    let next: string | undefined;
    for (const [tenant, queue] of queues) {
      if (next === undefined) next = tenant;
      const [load, least] = [counts.get(tenant) ?? 0, counts.get(next) ?? 0];
      if (load < least || (load === least && queue[0].arrival < queues.get(next)![0].arrival)) next = tenant;
    }
    const queue = queues.get(next!)!;
    order.push(queue.shift()!);
    counts.set(next!, (counts.get(next!) ?? 0) + 1);
    if (queue.length === 0) queues.delete(next!);
  }
  return order;
}

/** The request that makes room for the others: the youngest. */
export const chooseVictim = <T extends Pick<Candidate, 'arrival'>>(running: readonly T[]): T | undefined =>
  running.reduce<T | undefined>(
    (youngest, one) => (youngest && youngest.arrival > one.arrival ? youngest : one),
    undefined,
  );

/** A pass of prompt rows only should take about this long, in ms: stopping takes as long. Shorter ones are less efficient. */
const PASS_MS = 250;
/** While tokens are decoded, prompt rows make a pass at most this many times as long, */
const MAX_SLOWDOWN = 4;
/** and add at most about this many ms, or as long as decoding takes on a slow machine: prompts get half of the time. */
const MIXED_PASS_MS = 100;
/** They may add this much in any case: it is hardly noticed, and a GPU takes nearly as long for few rows as for many. */
const MIN_MIXED_PASS_MS = 50;

/** What the last passes took, in ms; undefined before the first. */
export interface PassTimes {
  perPromptRow?: number;
  /** A pass that decodes, without drafts. */
  decode?: number;
  /** What a row with a draft adds to it. */
  perDraftRow?: number;
}

/** Prompt rows in the next pass. While tokens are decoded, they take `share` of its time, if that is given. */
export function promptRowsPerPass(
  { perPromptRow, decode }: PassTimes,
  decoding: boolean,
  maxRows: number,
  share?: number,
): number {
  if (perPromptRow === undefined) return maxRows;
  const rowsIn = (ms: number, min: number) => Math.max(min, Math.min(maxRows, Math.floor(ms / perPromptRow)));
  // One pass reads the weights once: without other rows, that is shared by the prompt's rows.
  if (!decoding) return rowsIn(PASS_MS, MIN_PROMPT_ROWS);
  const decodeMs = decode ?? MIXED_PASS_MS;
  if (share !== undefined) return rowsIn((decodeMs * share) / (1 - share), 1);
  const longest = Math.min((MAX_SLOWDOWN - 1) * decodeMs, Math.max(MIXED_PASS_MS, decodeMs));
  return rowsIn(Math.max(MIN_MIXED_PASS_MS, longest), 1);
}

/** The rows of a pass, by kind. */
export interface PassRows {
  decodeRows: number;
  draftRows?: number;
  promptRows: number;
}

/** Updates the times after a pass. The cost per row grows with the depth of the prompts, so the newest pass counts most. */
export function notePass(
  times: PassTimes,
  { decodeRows, draftRows = 0, promptRows, ms }: PassRows & { ms: number },
): PassTimes {
  const mix = (old: number | undefined, value: number, part = 0.5) =>
    old === undefined ? value : (1 - part) * old + part * value;
  if (draftRows > 0) {
    // Drafts that fill a tile cost nothing, and tell nothing.
    const rows = addedRows(decodeRows, draftRows);
    const cost = Math.max(0.1 * ms, ms - (times.decode ?? 0)) / rows;
    return rows === 0 ? times : { ...times, perDraftRow: mix(times.perDraftRow, cost, 0.25) };
  }
  if (promptRows === 0) {
    const decode = mix(times.decode, ms);
    // One slow pass must not end drafts for good: a cost that was not measured for long is tried again.
    const cost = times.perDraftRow && mix(times.perDraftRow, firstRowCost(decode, decodeRows), 0.01);
    return { ...times, decode, ...(cost && { perDraftRow: cost }) };
  }
  const decode = decodeRows > 0 ? (times.decode ?? 0) : 0;
  return { ...times, perPromptRow: mix(times.perPromptRow, Math.max(0.1 * ms, ms - decode) / promptRows) };
}

/** A request waits at most this long for the next page from a tier, in ms. */
const MAX_PREFETCH_WAIT_MS = 2000;

/**
 * How long a request should still wait for pages that come from tiers, in ms; 0: compute the rest. It waits as long as they
 * come faster than they could be computed, and for the next one no longer than computing all of the rest would take.
 */
export function prefetchWait(
  { arrived, left, arrivedMs, silentMs }: PrefetchProgress,
  { perPromptRow = Number.POSITIVE_INFINITY }: PassTimes,
  pageTokens: number,
): number {
  const computingMs = perPromptRow * pageTokens;
  if (left === 0 || arrivedMs > arrived * computingMs) return 0;
  return Math.max(0, Math.min(MAX_PREFETCH_WAIT_MS, left * computingMs) - silentMs);
}
