/**
 * When leaves are used again, learned online. From each use of a leaf on, its age counts the uses of all leaves. Per class of
 * leaves (by their number of uses) and age, the share of leaves that are used again at this age is estimated, from cached
 * and evicted leaves alike. From it follows how much a leaf is worth: the most hits per time that keeping it to some age can
 * give, a Gittins index. It needs no constants of a workload: what is not known yet is taken from the class with fewer uses,
 * and before anything is known, leaves are worth less the older they are, which is LRU.
 *
 * Classes and ages grow by factors of sqrt(2). Old observations fade.
 */
import type { GraphNode } from './node.ts';
import { createOrder, type Order } from './order.ts';

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
/** Where each age begins; the last one ends nowhere. */
const AGE_START = Float64Array.from({ length: AGES + 1 }, (_, age) => 2 ** (age / 2));

/** A class and an age. */
const CELLS = CLASSES * AGES;
const cellOf = (uses: number, age: number): number =>
  halfOctave(uses, CLASSES) * AGES + halfOctave(Math.max(1, age), AGES);
/** The age at which a leaf leaves a cell. */
const cellEnd = (cell: number): number => AGE_START[(cell % AGES) + 1];

export interface Reuse {
  /** Notes a use of a leaf: the uses before it, and the time since the last of them. */
  note(uses: number, age: number): void;
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
  const values = new Float64Array(CELLS);
  const [hitsUpTo, timeUpTo] = [new Float64Array(AGES + 1), new Float64Array(AGES + 1)];
  const hull = new Uint8Array(AGES + 1);
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

  /**
   * For each age the best ratio of later hits to the time until then, over all ages to which a leaf may be kept: the slope of
   * the concave hull of hits over time from this age on.
   */
  const computeValues = (shares: Float64Array, out: Float64Array) => {
    for (let age = 0, waiting = 1; age < AGES; age++) {
      const hit = Math.min(waiting, shares[age]);
      hitsUpTo[age + 1] = hitsUpTo[age] + hit;
      timeUpTo[age + 1] = timeUpTo[age] + (AGE_START[age + 1] - AGE_START[age]) * (waiting - hit / 2);
      waiting -= hit;
    }
    const slope = (from: number, to: number) =>
      timeUpTo[to] > timeUpTo[from] ? (hitsUpTo[to] - hitsUpTo[from]) / (timeUpTo[to] - timeUpTo[from]) : 0;
    let corners = 0;
    hull[corners++] = AGES;
    for (let from = AGES - 1; from >= 0; from--) {
      while (corners > 1 && slope(from, hull[corners - 1]) <= slope(from, hull[corners - 2])) corners--;
      out[from] = slope(from, hull[corners - 1]);
      hull[corners++] = from;
    }
  };

  return {
    note(uses, age) {
      if (uses > 0) reused[halfOctave(uses, CLASSES)][halfOctave(age, AGES)]++;
      started[halfOctave(uses + 1, CLASSES)]++;
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

/**
 * Least valuable first. Leaves wait in one heap per class and age: there they have the same value, and the oldest is first.
 * `index` and `cellIndex`: where `node.places` has a leaf's place in its heap, and which heap that is.
 */
export function createValueOrder(index: number, cellIndex: number, values: Float64Array, clock: () => number): Order {
  const oldest = Array.from({ length: CELLS }, () => createOrder(index, (a, b) => a.idleSince < b.idleSince));
  /** The cells that have leaves. */
  const occupied = new Set<number>();
  const add = (node: GraphNode) => {
    const cell = cellOf(node.uses, clock() - node.lastUsed);
    node.places[cellIndex] = cell;
    oldest[cell].add(node);
    occupied.add(cell);
  };
  const remove = (node: GraphNode) => {
    const cell = node.places[cellIndex];
    if (cell < 0) return;
    node.places[cellIndex] = -1;
    oldest[cell].remove(node);
    if (!oldest[cell].first()) occupied.delete(cell);
  };
  /** Moves on what has become older; the first of what is left. */
  const firstOf = (cell: number): GraphNode | undefined => {
    for (let node = oldest[cell].first(); node; node = oldest[cell].first()) {
      const age = clock() - node.lastUsed;
      if (age < cellEnd(cell) || cellOf(node.uses, age) === cell) return node;
      remove(node);
      add(node);
    }
    return undefined;
  };
  return {
    add,
    remove,
    first() {
      let best: GraphNode | undefined;
      let least = Number.POSITIVE_INFINITY;
      for (const cell of occupied) {
        const node = firstOf(cell);
        if (!node || values[cell] > least || (values[cell] === least && node.idleSince >= best!.idleSince)) continue;
        best = node;
        least = values[cell];
      }
      return best;
    },
  };
}
