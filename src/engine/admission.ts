/** Which requests are on the device: the others wait, for room, for pages from the tiers, or for a prompt like theirs. */
import { type KvCache, sharedLength } from '../cache/kv-cache.ts';
import type { Pause } from '../cache/pause.ts';
import type { Sequence } from '../cache/sequence.ts';
import { CapacityError, ContextError, type Wording } from '../util/errors.ts';
import { admissionOrder, chooseVictim, type PassTimes, type Piece, prefetchWait } from './schedule.ts';
import { fail, type Task } from './task.ts';

export interface Admission {
  readonly waiting: ReadonlySet<Task>;
  readonly running: ReadonlySet<Task>;
  readonly preemptions: number;
  /** How long requests may still wait for pages that are on their way, in ms. */
  readonly maxWaitMs: number;
  enqueue(task: Task): void;
  /** Opens the sequences of waiting requests while there is room. */
  admit(pause: Pause, times: PassTimes): void;
  /**
   * The rows of the next pass, with room for their leaves and tails: requests are taken off the device until the rows of
   * the others fit. Those are chosen again, because a pass may have had rows of the request that made room only.
   */
  reserve(choose: () => Piece<Task>[]): Piece<Task>[];
  /** Whether there is room for these rows without taking a request off the device. */
  hasRoomFor(pieces: readonly Piece<Task>[]): boolean;
  remove(task: Task): void;
}

/** Fewer tokens are not worth waiting for. */
const MIN_SHARED_TOKENS = 16;

/** How often to look whether room that is held for a while is free again. */
const ROOM_POLL_MS = 20;

const TOO_SMALL: Wording = option =>
  `The KV cache is too small for this request alone. Raise ${option('kvMemory')}, use a codec with fewer bits, or shorten ` +
  'the prompt.';

/** `wake`: pages of a waiting request have arrived. */
export function createAdmission(cache: KvCache, pageTokens: number, maxSequences: number, wake: () => void): Admission {
  const waiting = new Set<Task>();
  const running = new Set<Task>();
  let preemptions = 0;
  let maxWaitMs = Number.POSITIVE_INFINITY;

  /** Begins to fetch pages of its prompt from the tiers, or to decode those that were spilled. */
  const startPrefetch = (task: Task) => {
    task.prefetch = cache.prefetch(task.tokens, task.request.salt, wake, task.request.owner);
  };

  const enqueue = (task: Task) => {
    waiting.add(task);
    task.sharedWith = new WeakMap();
    task.isPrefetchedAgain = false;
    startPrefetch(task);
  };

  const hasRoom = ({ tokens, request, path }: Task): boolean =>
    running.size === 0 || (running.size < maxSequences && cache.fits(tokens, request.salt, running.size, path));

  /** Whether pages of its prompt are on their way, and come sooner than they could be computed. */
  const isPrefetching = (task: Task, times: PassTimes): boolean => {
    // Without a prefetch there was nothing to bring back when it was queued; since then, room may have been made of its pages.
    if ((task.prefetch?.isIncomplete ?? true) && !task.isPrefetchedAgain && hasRoom(task)) {
      task.isPrefetchedAgain = true;
      startPrefetch(task);
    }
    if (!task.prefetch?.isActive) return false;
    const wait = prefetchWait(task.prefetch.progress, times, pageTokens);
    if (wait > 0) maxWaitMs = Math.min(maxWaitMs, wait);
    return wait > 0;
  };

  /** Whether a running prompt will soon have read more of this one than is known: then waiting is cheaper. */
  const isBeingComputed = (task: Task): boolean => {
    if (!cache.sharesLeaves) return false;
    const { tokens, request, path } = task;
    const known = cache.known(tokens, request.salt, path);
    return [...running].some(other => {
      if (other.request.salt !== request.salt || other.promptRows === 0 || other.ended) return false;
      const shared = task.sharedWith.get(other) ?? sharedLength(other.tokens, tokens);
      task.sharedWith.set(other, shared);
      return shared > known && shared >= MIN_SHARED_TOKENS && other.sequence!.length <= shared;
    });
  };

  /** Its leaves stay cached, so coming back is cheap. */
  const preempt = (task: Task) => {
    if (task.sequence) cache.setAside(task.sequence, task.request.owner);
    task.sequence = undefined;
    running.delete(task);
    enqueue(task);
    preemptions++;
  };

  const preemptParked = (): boolean => {
    const parked = [...running].find(task => task.request.isParked() && task.passes === 0);
    if (parked) preempt(parked);
    return parked !== undefined;
  };

  /** Whether conversations that are saved, restored or decoded hold room. They will release it: it is looked at again soon. */
  const isRoomHeld = (): boolean => {
    const own = [...running].reduce((sum, { sequence }) => sum + sequence!.bytes, 0);
    if (cache.stats.used <= own) return false;
    maxWaitMs = Math.min(maxWaitMs, ROOM_POLL_MS);
    return true;
  };

  /** Opens a task's sequence if there is room beside the others. Those whose readers have fallen behind make room. */
  const open = (pause: Pause, task: Task): Sequence | undefined => {
    const { tokens, request } = task;
    for (;;) {
      const isAlone = running.size === 0;
      try {
        if (hasRoom(task)) return cache.open(pause, tokens, request.salt, request.owner);
      } catch (error) {
        if (!(error instanceof CapacityError) || (isAlone && !isRoomHeld())) fail([task], error);
      }
      if (task.ended || !preemptParked()) return undefined;
    }
  };

  const hasRoomFor = (pieces: readonly Piece<Task>[]): boolean =>
    cache.makeRoom(pieces.reduce((sum, { request: task, rows }) => sum + task.sequence!.bytesFor(rows), 0));

  const start = (task: Task, sequence: Sequence) => {
    waiting.delete(task);
    running.add(task);
    task.prefetch?.cancel();
    task.prefetch = undefined;
    task.sequence = sequence;
    task.promptEnd = task.tokens.length;
    if (!task.started) task.request.onStart(sequence.length);
    task.started = true;
  };

  return {
    waiting,
    running,
    get preemptions() {
      return preemptions;
    },
    get maxWaitMs() {
      return maxWaitMs;
    },
    enqueue,
    hasRoomFor,
    admit(pause, times) {
      maxWaitMs = Number.POSITIVE_INFINITY;
      const candidates = [...waiting].filter(task => !task.ended && !task.request.isParked());
      for (const task of admissionOrder(candidates, [...running])) {
        if (isBeingComputed(task) || isPrefetching(task, times)) continue;
        const sequence = open(pause, task);
        if (sequence) start(task, sequence);
        else if (!task.ended) return;
      }
    },
    reserve(choose) {
      for (;;) {
        const pieces = choose();
        if (hasRoomFor(pieces)) return pieces;
        // What is in flight can make room only after it has landed.
        if ([...running].some(({ passes }) => passes > 0)) return [];
        const victim = chooseVictim([...running])!;
        if (running.size > 1) {
          if (!preemptParked()) preempt(victim);
          continue;
        }
        // Pages that a pass leaves behind, in layers with a window, are freed after it: a short one needs the least room.
        const short = pieces.map(piece => ({ ...piece, rows: Math.min(piece.rows, pageTokens) }));
        if (hasRoomFor(short)) return short;
        if (isRoomHeld()) return [];
        fail([victim], new ContextError(TOO_SMALL));
      }
    },
    remove(task) {
      running.delete(task);
      waiting.delete(task);
      task.prefetch?.cancel();
    },
  };
}
