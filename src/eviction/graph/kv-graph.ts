/**
 * The graph of leaves: what is cached or remembered, how leaves are connected, and what follows for eviction and prefetching.
 * It knows a leaf by its key, a hash of the text up to its end. Everything that it learns comes in by a `note` method. Updates
 * take O(log n).
 */
import { addEdge, type Edge, type EdgeKind, signatureOf } from './edges.ts';
import type { GraphLeaf, GraphNode, LeafTier } from './node.ts';
import { createRanking } from './ranking.ts';

/** Options of `createKvGraph`. */
export interface KvGraphOptions {
  /** The kinds of edges that are kept. Default: none, since none has paid on traces (docs/eviction.md). */
  edges?: readonly EdgeKind[];
  /** Leaves that are remembered beyond those in the cache. Default: 262,144. */
  maxRemembered?: number;
}

/** What is known of the leaves of a cache, by key, and what to evict or prefetch next. */
export interface KvGraph {
  /** Leaves that are known. */
  readonly size: number;
  leaf(key: number): GraphLeaf | undefined;
  /** The edges of a leaf, heaviest first. */
  edges(key: number, kind: EdgeKind): readonly Readonly<Edge>[];
  /** A leaf is in use: it was cached, or is used again. Parents come before their children. */
  noteUse(key: number, parent?: number): void;
  /** Nobody uses a leaf any more. */
  noteIdle(key: number): void;
  /** A leaf moved to another tier. It is evicted when it leaves the device. */
  noteMove(key: number, tier: LeafTier): void;
  /**
   * The attention mass that leaves got in one step: it gives their `importance` and the `co_attend` edges. Neither changes the
   * order of eviction, and the engine does not call it: it does not measure the mass of pages.
   */
  noteAttention(keys: ArrayLike<number>, masses: ArrayLike<number>): void;
  /** A vector that describes the content of a leaf, for the `semantic` edges. The engine does not call it. */
  noteEmbedding(key: number, vector: ArrayLike<number>): void;
  /** The next leaf to evict, which is not named again until somebody used it; undefined: none. */
  nextEviction(): number | undefined;
  /** Leaves in lower tiers that are likely to be used soon, likeliest first. `active`: leaves in use. */
  suggestPrefetch(active: readonly number[], count: number): number[];
}

/** About 90 MB when full. */
const MAX_REMEMBERED = 1 << 18;
/** Old leaves that are looked at per use. One use adds one leaf. */
const FORGET_STEPS = 4;
/** The share of a new observation in a leaf's importance. */
const NEW_SHARE = 0.1;
/** A suggestion may be so many edges away. */
const MAX_DISTANCE = 8;

/** A graph of the leaves of one cache: `eviction` of `loadModel` takes it. */
export function createKvGraph({ edges: kinds = [], maxRemembered = MAX_REMEMBERED }: KvGraphOptions = {}): KvGraph {
  const ranking = createRanking();
  /** Oldest first; those that were used meanwhile get a second chance. */
  const nodes = new Map<number, GraphNode>();
  // Kept, because a new iterator would first skip all that was deleted.
  let oldest = nodes.values();
  const kept = new Set(kinds);
  /** Leaves on the device. */
  let cached = 0;
  let lastUsed: GraphNode | undefined;
  /** The last leaf that moved to each tier. */
  const lastMoved = new Map<LeafTier, GraphNode>();
  /** The last leaf with each signature. */
  const similar = new Map<number, GraphNode>();

  const connect = (kind: EdgeKind, from: GraphNode | undefined, to: GraphNode | undefined) => {
    if (!from || !to || from === to || !kept.has(kind)) return;
    from.edges ??= {};
    from.edges[kind] ??= [];
    addEdge(from.edges[kind], to.key);
  };
  const setTier = (node: GraphNode, tier: LeafTier) => {
    cached += Number(tier === 'device') - Number(node.tier === 'device');
    node.tier = tier;
  };
  const forgetOldest = () => {
    for (let step = 0; step < FORGET_STEPS && nodes.size > maxRemembered + 2 * cached; step++) {
      const { value: node, done } = oldest.next();
      if (done) oldest = nodes.values();
      else {
        nodes.delete(node.key);
        if (node.isRecent || ranking.isHeld(node)) nodes.set(node.key, node);
        node.isRecent = false;
      }
    }
  };
  return {
    get size() {
      return nodes.size;
    },
    leaf(key) {
      const node = nodes.get(key);
      return node && { key, uses: node.uses, tier: node.tier, importance: node.importance };
    },
    edges: (key, kind) => sortEdges(nodes.get(key)?.edges?.[kind]),
    noteUse(key, parent) {
      const known = nodes.get(key);
      const node = known ?? ranking.createNode(key);
      if (known) known.isRecent = true;
      else nodes.set(key, node);
      if (!ranking.isHeld(node)) node.parent = parent === undefined ? undefined : nodes.get(parent);
      setTier(node, 'device');
      ranking.use(node);
      connect('prefix_share', node.parent, node);
      connect('temporal', lastUsed, node);
      lastUsed = node;
      forgetOldest();
    },
    noteIdle(key) {
      const node = nodes.get(key);
      if (node) ranking.idle(node);
    },
    noteMove(key, tier) {
      const node = nodes.get(key);
      if (!node) return;
      setTier(node, tier);
      if (tier !== 'device') ranking.remove(node);
      if (tier === 'none') return;
      connect('spill_link', lastMoved.get(tier), node);
      lastMoved.set(tier, node);
    },
    noteAttention(keys, masses) {
      let total = 0;
      for (let i = 0; i < keys.length; i++) total += masses[i];
      let [first, second] = [-1, -1];
      for (let i = 0; i < keys.length; i++) {
        const node = nodes.get(keys[i]);
        if (!node) continue;
        const relative = (masses[i] * keys.length) / total;
        const old = node.importance;
        node.importance = Number.isNaN(old) ? relative : old + NEW_SHARE * (relative - old);
        if (first < 0 || masses[i] > masses[first]) [first, second] = [i, first];
        else if (second < 0 || masses[i] > masses[second]) second = i;
      }
      const [a, b] = [nodes.get(keys[first]), nodes.get(keys[second])];
      connect('co_attend', a, b);
      connect('co_attend', b, a);
    },
    noteEmbedding(key, vector) {
      const node = nodes.get(key);
      if (!node || !kept.has('semantic')) return;
      const signature = signatureOf(vector);
      const other = similar.get(signature);
      similar.set(signature, node);
      connect('semantic', other, node);
      connect('semantic', node, other);
    },
    nextEviction: () => ranking.next()?.key,
    suggestPrefetch(active, count) {
      const found: number[] = [];
      const seen = new Set(active);
      /** Leaves to go on from, and how likely they are. */
      let reached = active.map(key => ({ key, weight: 1 }));
      for (let distance = 0; distance < MAX_DISTANCE && found.length < count && reached.length > 0; distance++) {
        const next: typeof reached = [];
        for (const { key, weight } of reached)
          for (const list of Object.values(nodes.get(key)?.edges ?? {})) {
            const total = list.reduce((sum, edge) => sum + edge.weight, 0);
            for (const edge of list) next.push({ key: edge.to, weight: (weight * edge.weight) / total });
          }
        next.sort((a, b) => b.weight - a.weight);
        reached = next.filter(({ key }) => nodes.has(key) && !seen.has(key) && !!seen.add(key)).slice(0, count);
        for (const { key } of reached) if (nodes.get(key)!.tier === 'stored') found.push(key);
      }
      return found.slice(0, count);
    },
  };
}

const sortEdges = (edges: readonly Edge[] = []) => edges.toSorted((a, b) => b.weight - a.weight);
