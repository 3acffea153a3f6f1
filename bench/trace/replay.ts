/** Replays a trace through the real prefix index, pool and policies; only the blocks hold nothing. */

import { createPool } from '../../src/cache/pool.ts';
import { childHash, createPrefixIndex, hashTokens, rootHash } from '../../src/cache/prefix.ts';
import type { Leaf, PrefixNode } from '../../src/cache/prefix-node.ts';
import { createOrdered, type EvictionPolicy } from '../../src/eviction/eviction.ts';
import { createJsDevice } from '../../src/kernel/js/device.ts';
import { InputError } from '../../src/util/errors.ts';
import { createTracePolicy } from './policies.ts';

/** The blocks of a prompt, in order. Equal numbers at equal places after equal blocks are the same text. */
export interface TraceRequest {
  blocks: readonly number[];
}

export interface Replay {
  policy: string;
  /** Share of all blocks that were found. */
  hitRate: number;
  hits: number;
  blocks: number;
  evictions: number;
  /** Microseconds spent in the policy. */
  usPerRequest: number;
  usPerEviction: number;
}

export function replayTrace(trace: readonly TraceRequest[], capacity: number, name: string): Replay {
  const policy = name === 'belady' ? createBelady(trace) : createTracePolicy<PrefixNode>(name);
  const timed = timePolicy(policy);
  const counts = replayWith(trace, capacity, timed.policy);
  const us = 1000 * timed.ms();
  return {
    policy: name,
    hitRate: counts.blocks > 0 ? counts.hits / counts.blocks : 0,
    ...counts,
    usPerRequest: us / Math.max(1, trace.length),
    usPerEviction: us / Math.max(1, counts.evictions),
  };
}

/** `onRequest` is called after each request with the keys of its leaves. */
export function replayWith(
  trace: readonly TraceRequest[],
  capacity: number,
  policy: EvictionPolicy<PrefixNode>,
  onRequest?: (keys: number[], request: number) => void,
): Pick<Replay, 'hits' | 'blocks' | 'evictions'> {
  const longest = trace.reduce((max, { blocks }) => Math.max(max, blocks.length), 0);
  if (longest > capacity)
    throw new InputError(
      `A capacity of ${capacity} blocks does not hold the longest request, which has ${longest}. Raise --capacity.`,
    );
  const pool = createPool(createJsDevice(), {
    capacity,
    reclaim() {
      evictions++;
      return index.evict();
    },
    onIdle: shared => index.noteIdle(shared as Leaf),
    onBusy: shared => index.noteBusy(shared as Leaf),
  });
  const index = createPrefixIndex(() => pool, { pageTokens: 1, policy });
  let [hits, count, evictions] = [0, 0, 0];
  for (const [request, { blocks }] of trace.entries()) {
    const path = index.find('', blocks, blocks.length);
    hits += path.length;
    count += blocks.length;
    const held = path.map(({ leaf }) => pool.retain(leaf!));
    let node: PrefixNode | undefined = path.at(-1);
    for (const block of blocks.slice(path.length)) {
      const leaf = pool.allocate(1, [0]);
      node = index.insert(node ?? index.root(''), [block], leaf);
      // Every tier below has room: what is evicted stays there.
      node.isStored = true;
      held.push(leaf);
    }
    onRequest?.(
      held.map(({ node }) => node!.key),
      request,
    );
    for (const leaf of held.reverse()) pool.release(leaf);
  }
  return { hits, blocks: count, evictions };
}

/** Adds up the time spent in a policy. */
function timePolicy<T>(policy: EvictionPolicy<T>): { policy: EvictionPolicy<T>; ms(): number } {
  let ms = 0;
  const timed =
    <A extends unknown[], R>(call: (...args: A) => R) =>
    (...args: A): R => {
      const start = performance.now();
      const result = call(...args);
      ms += performance.now() - start;
      return result;
    };
  const { add, next, use, idle, remove } = policy;
  return {
    policy: {
      add: timed(add),
      next: timed(next),
      use: use && timed(use),
      idle: idle && timed(idle),
      remove: remove && timed(remove),
    },
    ms: () => ms,
  };
}

/**
 * Evicts the leaf whose next use is farthest away, among those without children that nobody uses: Belady's rule, restricted
 * to what the index may evict. It knows the whole trace.
 */
function createBelady(trace: readonly TraceRequest[]): EvictionPolicy<PrefixNode> {
  const uses = new Map<number, number[]>();
  trace.forEach(({ blocks }, request) => {
    let key = rootHash('');
    for (const block of blocks) {
      key = childHash(key, hashTokens([block], 0));
      const times = uses.get(key);
      if (times) times.push(request);
      else uses.set(key, [request]);
    }
  });
  for (const times of uses.values()) times.reverse();
  /** Each use takes its time off the list: what is left are later ones. */
  const farthest = createOrdered<PrefixNode>(({ key }) => -(uses.get(key)?.at(-1) ?? Number.POSITIVE_INFINITY));
  return { ...farthest, use: ({ key }) => void uses.get(key)?.pop() };
}
