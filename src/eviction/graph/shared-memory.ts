/**
 * Memory that the cache and its advisor share, without locks. The cache writes events into a ring; the advisor publishes a
 * ranking: the next leaves to evict. There are two rankings, and the generation says which is the newest: the advisor writes
 * the other one and then raises the generation.
 *
 * control (int32):   WRITTEN, READ, GENERATION, WAKE
 * events (float64):  MAX_EVENTS times kind, key, value
 * rankings (float64): 2 times published (ms since 1970), cycle (ms), stored leaves, cached leaves by source, count, then
 *   BATCH times key, idleSince
 */
import { SOURCES } from '../eviction.ts';
import type { KvGraph } from './kv-graph.ts';

/** Leaves per ranking. */
export const BATCH = 256;
/** A cache uses fewer leaves than this in two seconds. */
export const MAX_EVENTS = 1 << 16;

const [WRITTEN, READ, GENERATION, WAKE] = [0, 1, 2, 3];
const CONTROL_BYTES = 16;
const EVENT_VALUES = 3;
const [PUBLISHED, CYCLE, STORED, CACHED] = [0, 1, 2, 3];
const COUNT = CACHED + SOURCES.length;
const FIRST = COUNT + 1;
const RANKING_VALUES = FIRST + 2 * BATCH;
const EVENTS_BYTES = 8 * EVENT_VALUES * MAX_EVENTS;

/** The value of a use is the parent's key, of idle the time, of a source its index, of removed the index of its tier. */
export const EVENT = { use: 0, idle: 1, source: 2, removed: 3 } as const;

export const createSharedMemory = (): SharedArrayBuffer =>
  new SharedArrayBuffer(CONTROL_BYTES + EVENTS_BYTES + 2 * 8 * RANKING_VALUES);

const viewsOf = (memory: SharedArrayBuffer) => ({
  control: new Int32Array(memory, 0, CONTROL_BYTES / 4),
  events: new Float64Array(memory, CONTROL_BYTES, EVENT_VALUES * MAX_EVENTS),
  rankings: new Float64Array(memory, CONTROL_BYTES + EVENTS_BYTES),
});

/** The side of the cache. Nothing here waits or allocates. */
export interface CacheSide {
  /** Writes an event; false if the ring is full. */
  write(kind: number, key: number, value: number): boolean;
  /** Goes to the next leaf of the newest ranking; false if there is none. */
  advance(): boolean;
  /** The leaf, and when its last use ended as the advisor knew it. */
  readonly key: number;
  readonly idleSince: number;
  /** When the newest ranking was published, in ms since 1970, and how long the advisor took for it. */
  readonly published: number;
  readonly cycleMs: number;
  /** Leaves that the advisor knew then: in lower tiers only, and on the device, by the index of their source. */
  readonly stored: number;
  cachedOf(source: number): number;
}

export function openCacheSide(memory: SharedArrayBuffer): CacheSide {
  const { control, events, rankings } = viewsOf(memory);
  let generation = 0;
  let at = 0;
  let key = 0;
  let idleSince = 0;
  const start = () => (Atomics.load(control, GENERATION) & 1) * RANKING_VALUES;
  return {
    write(kind, name, value) {
      const written = control[WRITTEN];
      if (((written - Atomics.load(control, READ)) | 0) >= MAX_EVENTS) return false;
      const place = (written & (MAX_EVENTS - 1)) * EVENT_VALUES;
      events[place] = kind;
      events[place + 1] = name;
      events[place + 2] = value;
      Atomics.store(control, WRITTEN, (written + 1) | 0);
      return true;
    },
    advance() {
      for (;;) {
        const newest = Atomics.load(control, GENERATION);
        if (newest !== generation) at = 0;
        generation = newest;
        const from = (newest & 1) * RANKING_VALUES;
        const count = rankings[from + COUNT];
        key = rankings[from + FIRST + 2 * at];
        idleSince = rankings[from + FIRST + 2 * at + 1];
        // A newer one was published: this one may be half overwritten.
        if (Atomics.load(control, GENERATION) !== newest) continue;
        if (at >= count) return false;
        at++;
        // Half of it is used: the next one is wanted sooner.
        if (at === count >> 1) {
          Atomics.add(control, WAKE, 1);
          Atomics.notify(control, WAKE);
        }
        return true;
      }
    },
    get key() {
      return key;
    },
    get idleSince() {
      return idleSince;
    },
    get published() {
      return rankings[start() + PUBLISHED];
    },
    get cycleMs() {
      return rankings[start() + CYCLE];
    },
    get stored() {
      return rankings[start() + STORED];
    },
    cachedOf: source => rankings[start() + CACHED + source],
  };
}

/** The side of the advisor. */
export interface AdvisorSide {
  /** Reads events until there are none, or `isDue` says to stop; returns whether all were read. */
  read(visit: (kind: number, key: number, value: number) => void, isDue: () => boolean): boolean;
  publish(
    leaves: readonly { key: number; idleSince: number }[],
    known: Pick<KvGraph, 'stored' | 'cachedBySource'>,
    now: number,
    cycleMs: number,
  ): void;
  /** Sleeps for so long, or until the cache wants a new ranking. Only outside of the main thread. */
  sleep(ms: number): void;
}

export function openAdvisorSide(memory: SharedArrayBuffer): AdvisorSide {
  const { control, events, rankings } = viewsOf(memory);
  let wanted = Atomics.load(control, WAKE);
  return {
    read(visit, isDue) {
      let read = control[READ];
      while (read !== Atomics.load(control, WRITTEN)) {
        const place = (read & (MAX_EVENTS - 1)) * EVENT_VALUES;
        visit(events[place], events[place + 1], events[place + 2]);
        read = (read + 1) | 0;
        Atomics.store(control, READ, read);
        if (isDue()) return false;
      }
      return true;
    },
    publish(leaves, { stored, cachedBySource }, now, cycleMs) {
      const next = (control[GENERATION] + 1) | 0;
      const from = (next & 1) * RANKING_VALUES;
      rankings[from + PUBLISHED] = now;
      rankings[from + CYCLE] = cycleMs;
      rankings[from + STORED] = stored;
      rankings.set(cachedBySource, from + CACHED);
      rankings[from + COUNT] = leaves.length;
      for (const [i, { key, idleSince }] of leaves.entries()) {
        rankings[from + FIRST + 2 * i] = key;
        rankings[from + FIRST + 2 * i + 1] = idleSince;
      }
      Atomics.store(control, GENERATION, next);
    },
    sleep(ms) {
      Atomics.wait(control, WAKE, wanted, ms);
      wanted = Atomics.load(control, WAKE);
    },
  };
}
