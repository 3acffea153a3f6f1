/**
 * Tails of sequences that have ended. Leaves are whole pages; with its tail, a later prompt continues after the last token
 * that it shares with such a sequence, so that the next turn of a chat reads only what is new. A tail lies below the last
 * leaf of its sequence, and is dropped with it.
 */
import type { IdleSinks } from './idle-sinks.ts';
import type { Pool, SharedBlock } from './pool.ts';
import type { PrefixNode } from './prefix.ts';

/** Where a tail begins in the prefix index: below the node of a leaf, or at the root of a salt. */
export type TailPlace = PrefixNode | string;

/** What is left of a sequence without its leaves. */
export interface DetachedTail {
  readonly place: TailPlace;
  /** The tokens after the last leaf. */
  readonly ids: readonly number[];
  /** A ring, as in the sequence. */
  readonly blocks: readonly (SharedBlock | undefined)[];
  /** If the leaves before it do not have them. */
  readonly sinks?: SharedBlock;
}

/** A tail, and how many of its tokens a prompt shares. */
export interface SharedTail {
  tail: DetachedTail;
  shared: number;
}

export interface KeptTails {
  readonly count: number;
  /** Bytes of all tails. */
  readonly bytes: number;
  keep(tail: DetachedTail): void;
  /** The tail at a place that shares the most tokens with a prompt from token `from` on. */
  find(place: TailPlace, prompt: readonly number[], from: number): SharedTail | undefined;
  /** All tails at a place, the most recently kept one last. */
  at(place: TailPlace): Iterable<DetachedTail>;
  /** Holds a tail, whatever is dropped, while `work` runs. It is now the most recently used one. */
  use<T>(tail: DetachedTail, work: () => T): T;
  /** Drops the least recently used one; false if there is none. */
  dropOldest(): boolean;
  /** Drops all that begin below this node. */
  dropAt(node: PrefixNode): void;
}

export function createKeptTails(pool: () => Pool, idleSinks: IdleSinks): KeptTails {
  /** Least recently used first. */
  const tails = new Set<DetachedTail>();
  const byPlace = new Map<TailPlace, Set<DetachedTail>>();
  let bytes = 0;

  const blocksOf = ({ blocks, sinks }: DetachedTail) => [...blocks, sinks].filter(block => block !== undefined);
  const count = ({ blocks, sinks }: DetachedTail, change: 1 | -1) => {
    for (const shared of blocks) bytes += change * (shared?.block.bytes ?? 0);
    idleSinks.count(sinks, change);
  };
  const drop = (tail: DetachedTail) => {
    const others = byPlace.get(tail.place)!;
    others.delete(tail);
    if (others.size === 0) byPlace.delete(tail.place);
    tails.delete(tail);
    count(tail, -1);
    for (const shared of blocksOf(tail)) pool().release(shared);
  };

  return {
    get count() {
      return tails.size;
    },
    get bytes() {
      return bytes;
    },
    keep(tail) {
      const others = byPlace.get(tail.place) ?? new Set();
      // The turn before this one, or the same question again.
      for (const other of [...others]) if (countShared(other.ids, tail.ids, 0) === other.ids.length) drop(other);
      byPlace.set(tail.place, others.add(tail));
      tails.add(tail);
      count(tail, 1);
    },
    find(place, prompt, from) {
      let best: SharedTail | undefined;
      for (const tail of byPlace.get(place) ?? []) {
        const shared = Math.min(countShared(tail.ids, prompt, from, 0), prompt.length - 1 - from);
        if (shared > (best?.shared ?? 0)) best = { tail, shared };
      }
      return best;
    },
    at: place => byPlace.get(place) ?? [],
    use(tail, work) {
      tails.delete(tail);
      tails.add(tail);
      const held = blocksOf(tail).map(block => pool().retain(block));
      try {
        return work();
      } finally {
        for (const block of held) pool().release(block);
      }
    },
    dropOldest() {
      const [oldest] = tails;
      if (oldest) drop(oldest);
      return oldest !== undefined;
    },
    dropAt(node) {
      for (const tail of [...(byPlace.get(node) ?? [])]) drop(tail);
    },
  };
}

/** How many ids from `start` on are the tokens from `from` on. */
export function countShared(ids: readonly number[], tokens: readonly number[], from: number, start = from): number {
  const max = Math.min(ids.length - start, tokens.length - from);
  let shared = 0;
  while (shared < max && ids[start + shared] === tokens[from + shared]) shared++;
  return shared;
}
