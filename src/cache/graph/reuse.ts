/**
 * When leaves are used again, learned online. From each use of a leaf on, its age counts the uses of all leaves. Per class of
 * leaves (by their number of uses) and age, the share of leaves that are used again at this age is estimated, from cached
 * and evicted leaves alike. From it follows how much a leaf is worth: the most hits per time that keeping it to some age can
 * give, a Gittins index. It needs no constants of a workload: what is not known yet is taken from the class with fewer uses,
 * and before anything is known, leaves are worth less the older they are, which is LRU.
 *
 * Classes and ages grow by factors of sqrt(2). Old observations fade.
 */
import type { EvictionPolicy } from '../eviction.ts';
import type { GraphNode } from './node.ts';

const CLASSES = 25;
const AGES = 60;
/** A class with fewer observations than this is mostly taken from the one below it. */
const PRIOR_LEAVES = 32;
/** Observations fade by 1/e within so many turnovers of the cache. */
const MEMORY = 128;
/** The tables are computed anew so often per turnover. */
const CYCLES = 16;
const MIN_CYCLE = 64;
const MAX_CHECKPOINTS = 2048;

const halfOctave = (x: number, count: number) => Math.min(count - 1, Math.floor(2 * Math.log2(x)));
const classOf = (node: GraphNode) => halfOctave(node.uses, CLASSES);
const cellOf = (node: GraphNode, now: number) =>
  classOf(node) * AGES + halfOctave(Math.max(1, now - node.lastUsed), AGES);
/** Where each age bucket begins; the last one ends nowhere. */
const AGE_START = Float64Array.from({ length: AGES + 1 }, (_, age) => 2 ** (age / 2));

export interface Reuse {
  /** Notes a use, before `node` is changed by it. */
  note(node: GraphNode, now: number): void;
  /** Computes the tables anew when it is time to; says whether it did. */
  update(now: number, capacity: number): boolean;
  /** Hits per time that a leaf is worth, by class and age: see `cellOf`. */
  readonly values: Float64Array;
}

export function createReuse(): Reuse {
  const reused = Array.from({ length: CLASSES }, () => new Float64Array(AGES));
  /** Uses per class, fading; and what they were at earlier times. */
  const started = new Float64Array(CLASSES);
  let checkpoints: { time: number; started: Float64Array }[] = [];
  const share = Array.from({ length: CLASSES }, () => new Float64Array(AGES));
  const values = new Float64Array(CLASSES * AGES);
  let updated = 0;

  /** The checkpoint at or before a time. */
  const checkpointAt = (time: number) => {
    let [low, high] = [0, checkpoints.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (checkpoints[middle].time <= time) low = middle + 1;
      else high = middle;
    }
    return checkpoints[low - 1]?.started;
  };

  /** The share of a class's leaves that is used again at each age. */
  const estimateShares = (now: number) => {
    for (let age = 0; age < AGES; age++) {
      // Leaves that have been this old by now, whether they were used again before or not.
      const before = checkpointAt(now - (AGE_START[age] + AGE_START[age + 1]) / 2);
      let [hits, count] = [0, 0];
      for (let i = 0; i < CLASSES; i++) {
        hits += reused[i][age];
        count += before?.[i] ?? 0;
      }
      let prior = (hits + 0.5 / AGES) / (count + 1);
      for (let i = 0; i < CLASSES; i++) {
        prior = (reused[i][age] + PRIOR_LEAVES * prior) / ((before?.[i] ?? 0) + PRIOR_LEAVES);
        share[i][age] = prior;
      }
    }
  };

  /** For each age the best ratio of later hits to the time until then, over all ages to which a leaf may be kept. */
  const computeValues = (shares: Float64Array, out: Float64Array) => {
    let left = 1;
    for (let from = 0; from < AGES; from++) {
      let [best, hits, time, waiting] = [0, 0, 0, left];
      for (let to = from; to < AGES && waiting > 0; to++) {
        const hit = Math.min(waiting, shares[to]);
        hits += hit;
        time += (AGE_START[to + 1] - AGE_START[to]) * (waiting - hit / 2);
        waiting -= hit;
        best = Math.max(best, hits / time);
      }
      out[from] = best;
      left -= Math.min(left, shares[from]);
    }
  };

  return {
    note(node, now) {
      if (node.uses > 0) reused[classOf(node)][halfOctave(now - node.lastUsed, AGES)]++;
      started[halfOctave(node.uses + 1, CLASSES)]++;
    },
    update(now, capacity) {
      if (now - updated < Math.max(MIN_CYCLE, capacity / CYCLES)) return false;
      checkpoints.push({ time: now, started: started.slice() });
      if (checkpoints.length > MAX_CHECKPOINTS) checkpoints = checkpoints.slice(MAX_CHECKPOINTS / 2);
      const fading = Math.exp((updated - now) / (MEMORY * Math.max(MIN_CYCLE, capacity)));
      for (const table of [started, ...reused]) for (let i = 0; i < table.length; i++) table[i] *= fading;
      updated = now;
      estimateShares(now);
      for (let i = 0; i < CLASSES; i++) computeValues(share[i], values.subarray(i * AGES, (i + 1) * AGES));
      return true;
    },
    values,
  };
}

const MIN_COMPACTED = 1024;

/** Least valuable first. Candidates wait in one queue per class and age: equal values, oldest first. */
export function createByValue(reuse: Reuse, clock: () => number): EvictionPolicy<GraphNode> {
  interface Entry {
    node: GraphNode;
    lastUsed: number;
  }
  interface Queue {
    entries: Entry[];
    head: number;
  }
  const queues = new Map<number, Queue>();
  let size = 0;
  let maxSize = MIN_COMPACTED;
  const isCurrent = ({ node, lastUsed }: Entry) => node.lastUsed === lastUsed;
  const enqueue = (id: number, entry: Entry) => {
    const queue = queues.get(id);
    if (queue) queue.entries.push(entry);
    else queues.set(id, { entries: [entry], head: 0 });
  };
  const compact = () => {
    size = 0;
    for (const [id, queue] of queues) {
      const entries = queue.entries.slice(queue.head).filter(isCurrent);
      size += entries.length;
      if (entries.length > 0) queues.set(id, { entries, head: 0 });
      else queues.delete(id);
    }
    maxSize = Math.max(MIN_COMPACTED, 2 * size);
  };
  /** The first candidate of a queue, after moving on those that have become older. */
  const first = (id: number, queue: Queue): Entry | undefined => {
    for (; queue.head < queue.entries.length; queue.head++) {
      const entry = queue.entries[queue.head];
      if (!isCurrent(entry)) {
        size--;
        continue;
      }
      if (clock() - entry.lastUsed < AGE_START[(id % AGES) + 1]) return entry;
      const cell = cellOf(entry.node, clock());
      if (cell === id) return entry;
      enqueue(cell, entry);
    }
    queues.delete(id);
    return undefined;
  };
  return {
    add(node) {
      if (++size > maxSize) compact();
      enqueue(cellOf(node, clock()), { node, lastUsed: node.lastUsed });
    },
    next() {
      let [best, least]: [Queue | undefined, number] = [undefined, Number.POSITIVE_INFINITY];
      for (const [id, queue] of queues) {
        const entry = first(id, queue);
        if (!entry) continue;
        const value = reuse.values[id];
        if (value < least || (value === least && entry.lastUsed < best!.entries[best!.head].lastUsed))
          [best, least] = [queue, value];
      }
      if (!best) return undefined;
      size--;
      const { node } = best.entries[best.head++];
      if (best.head > 256 && 2 * best.head > best.entries.length) {
        best.entries = best.entries.slice(best.head);
        best.head = 0;
      }
      return node;
    },
  };
}
