/** Whether a kind of edges says which evicted leaves come back soon. */
import type { EdgeKind } from '../../src/eviction/graph/edges.ts';
import { createKvGraph } from '../../src/eviction/graph/kv-graph.ts';
import { createPolicy } from '../../src/eviction/policies.ts';
import { InputError } from '../../src/util/errors.ts';
import { replayWith, type TraceRequest } from './replay.ts';

/** The others need attention or embeddings, which a trace does not have. */
const KINDS: readonly EdgeKind[] = ['prefix_share', 'temporal', 'spill_link'];
/** Suggestions per request. */
const MAX_SUGGESTIONS = 8;
/** A suggestion was right if the leaf is used within so many requests. */
const SOON = 50;

export interface Prefetched {
  capacity: number;
  edges: EdgeKind;
  suggested: number;
  used: number;
}

/** Counts the leaves that are suggested after each request, and those of them that are used soon. */
export function countPrefetched(trace: readonly TraceRequest[], capacity: number, kind: string): Prefetched {
  const edges = KINDS.find(known => known === kind);
  if (!edges) throw new InputError(`Unknown kind of edges "${kind}". Kinds: ${KINDS.join(', ')}.`);
  const graph = createKvGraph({ edges: [edges] });
  /** Suggested leaves, and the last request in which a use counts. */
  const pending = new Map<number, number>();
  const counts = { suggested: 0, used: 0 };
  replayWith(trace, capacity, createPolicy(graph), (keys, request) => {
    for (const key of keys) {
      if (request <= (pending.get(key) ?? -1)) counts.used++;
      pending.delete(key);
    }
    for (const key of graph.suggestPrefetch(keys, MAX_SUGGESTIONS)) {
      if (request <= (pending.get(key) ?? -1)) continue;
      counts.suggested++;
      pending.set(key, request + SOON);
    }
  });
  return { capacity, edges, ...counts };
}
