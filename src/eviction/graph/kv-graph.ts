/**
 * The graph of leaves: what is cached or remembered, how leaves are connected, and what follows for eviction and prefetching.
 * It knows a leaf by its key, a hash of the text up to its end. Everything that it learns comes in by a `note` method, so that
 * it can run in another thread than the cache (advisor.ts). Updates take O(log n).
 */
import { type LeafSource, SOURCES } from '../eviction.ts';
import { MAX_REMEMBERED } from '../memory.ts';
import { createEdges, type Edge, type EdgeKind, type Edges } from './edges.ts';
import { createLeaves } from './leaves.ts';
import { createRanking } from './ranking.ts';
import { signatureOf } from './signature.ts';

/**
 * Where the bytes of a leaf are; `none`: nowhere, it is only remembered; `stored`: in a tier below the device. Which one is
 * not known: leaves are put into all of them, and each evicts on its own.
 */
export const LEAF_TIERS = ['none', 'device', 'stored'] as const;
export type LeafTier = (typeof LEAF_TIERS)[number];

/** A leaf as the graph knows it. */
export interface GraphLeaf {
  readonly key: number;
  /** Attention mass per step, relative to the mean of all leaves: 1 is average. NaN before any was noted. */
  readonly importance: number;
  readonly source: LeafSource;
  /** Uses, also before it was evicted. */
  readonly uses: number;
  readonly tier: LeafTier;
}

export interface KvGraphOptions {
  /** The kinds of edges that are kept. Default: none, since none has paid on traces (docs/eviction.md). */
  edges?: readonly EdgeKind[];
  /** Leaves that are remembered beyond those in the cache. Default: 262,144. */
  maxRemembered?: number;
}

export interface KvGraph {
  /** Leaves that are known. */
  readonly size: number;
  /** Leaves on the device by their source, in the order of SOURCES, and those that only a lower tier has. */
  readonly cachedBySource: ArrayLike<number>;
  readonly stored: number;
  leaf(key: number): GraphLeaf | undefined;
  /** The edges of a leaf, heaviest first. */
  edges(key: number, kind: EdgeKind): Edge[];
  /** A leaf is in use: it was cached, or is used again. Parents come before their children; -1: it is the first of its text. */
  noteUse(key: number, parent: number): void;
  /** Nobody uses a leaf any more. `time` grows with every call. */
  noteIdle(key: number, time: number): void;
  /** A leaf moved to another tier. It is evicted when it leaves the device. */
  noteMove(key: number, tier: LeafTier): void;
  noteSource(key: number, source: LeafSource): void;
  /** The attention that leaves got in one step. */
  noteAttention(keys: ArrayLike<number>, masses: ArrayLike<number>): void;
  /** A vector that describes the content of a leaf. */
  noteEmbedding(key: number, vector: ArrayLike<number>): void;
  /** The next leaf to evict, which is not suggested again until somebody used it; undefined: none. */
  nextEviction(): number | undefined;
  /** The next leaves to evict, in order, children before their parents, and when the last use of each ended. */
  suggestEviction(count: number): { key: number; idleSince: number }[];
  /** Leaves in lower tiers that are likely to be used soon, likeliest first. `active`: leaves in use. */
  suggestPrefetch(active: readonly number[], count: number): number[];
}

const [NONE, DEVICE, STORED] = LEAF_TIERS.keys();
/** The share of a new observation in a leaf's importance. */
const NEW_SHARE = 0.1;
/** A suggestion may be so many edges away. */
const MAX_DISTANCE = 8;

export function createKvGraph({ edges: kinds = [], maxRemembered = MAX_REMEMBERED }: KvGraphOptions = {}): KvGraph {
  const leaves = createLeaves();
  const { nodes, parent, uses, idleSince } = leaves;
  const tier = nodes.column(Uint8Array, 0);
  const source = nodes.column(Uint8Array, 0);
  const importance = nodes.column(Float32Array, Number.NaN);
  const ranking = createRanking(leaves);
  const edges = new Map<EdgeKind, Edges>(kinds.map(kind => [kind, createEdges(nodes)]));
  /** The last leaf with each signature, by key. */
  const similar = new Map<number, number>();
  const cachedBySource = new Float64Array(SOURCES.length);
  let [cached, stored] = [0, 0];
  let lastUsed = -1;
  /** The last leaf that moved to each tier, by key. */
  const lastMoved = new Float64Array(LEAF_TIERS.length).fill(-1);

  const connect = (kind: EdgeKind, from: number, to: number) => {
    if (from >= 0 && from !== to) edges.get(kind)?.add(from, to);
  };
  const setTier = (slot: number, to: number) => {
    const from = tier.data[slot];
    if (from === to) return;
    const change = Number(to === DEVICE) - Number(from === DEVICE);
    cached += change;
    cachedBySource[source.data[slot]] += change;
    stored += Number(to === STORED) - Number(from === STORED);
    tier.data[slot] = to;
  };
  const forgetOldest = () => {
    for (let slot = nodes.oldest(); slot >= 0 && nodes.size > maxRemembered + 2 * cached; ) {
      const following = nodes.after(slot);
      if (ranking.isHeld(slot)) nodes.touch(slot);
      else {
        setTier(slot, NONE);
        nodes.remove(slot);
      }
      slot = following;
    }
  };
  const describe = (slot: number): GraphLeaf => ({
    key: nodes.key.data[slot],
    importance: importance.data[slot],
    source: SOURCES[source.data[slot]],
    uses: uses.data[slot],
    tier: LEAF_TIERS[tier.data[slot]],
  });
  /** Calls `visit` with the slot of a leaf that is known. */
  const withSlot = (key: number, visit: (slot: number) => void) => {
    const slot = nodes.find(key);
    if (slot >= 0) visit(slot);
  };
  return {
    get size() {
      return nodes.size;
    },
    cachedBySource,
    get stored() {
      return stored;
    },
    leaf(key) {
      const slot = nodes.find(key);
      return slot < 0 ? undefined : describe(slot);
    },
    edges(key, kind) {
      const slot = nodes.find(key);
      return slot < 0 ? [] : (edges.get(kind)?.of(slot) ?? []);
    },
    noteUse(key, above) {
      const known = nodes.find(key);
      const slot = known < 0 ? nodes.add(key) : known;
      nodes.touch(slot);
      const up = nodes.find(above);
      parent.data[slot] = up;
      setTier(slot, DEVICE);
      ranking.use(slot);
      connect('prefix_share', up, slot);
      connect('temporal', nodes.find(lastUsed), slot);
      lastUsed = key;
      forgetOldest();
    },
    noteIdle: (key, time) =>
      withSlot(key, slot => {
        idleSince.data[slot] = time;
        ranking.idle(slot);
      }),
    noteMove: (key, to) =>
      withSlot(key, slot => {
        const index = LEAF_TIERS.indexOf(to);
        setTier(slot, index);
        if (index !== DEVICE) ranking.remove(slot);
        if (to === 'none') return;
        connect('spill_link', nodes.find(lastMoved[index]), slot);
        lastMoved[index] = key;
      }),
    noteSource: (key, by) =>
      withSlot(key, slot => {
        const before = tier.data[slot];
        setTier(slot, NONE);
        source.data[slot] = SOURCES.indexOf(by);
        setTier(slot, before);
      }),
    noteAttention(keys, masses) {
      let total = 0;
      for (let i = 0; i < keys.length; i++) total += masses[i];
      let [first, second] = [-1, -1];
      for (let i = 0; i < keys.length; i++) {
        withSlot(keys[i], slot => {
          const relative = (masses[i] * keys.length) / total;
          const old = importance.data[slot];
          importance.data[slot] = Number.isNaN(old) ? relative : old + NEW_SHARE * (relative - old);
        });
        if (first < 0 || masses[i] > masses[first]) [first, second] = [i, first];
        else if (second < 0 || masses[i] > masses[second]) second = i;
      }
      if (second < 0) return;
      const [a, b] = [nodes.find(keys[first]), nodes.find(keys[second])];
      if (a < 0 || b < 0) return;
      connect('co_attend', a, b);
      connect('co_attend', b, a);
    },
    noteEmbedding: (key, vector) =>
      withSlot(key, slot => {
        if (!edges.has('semantic')) return;
        const bucket = signatureOf(vector);
        const other = nodes.find(similar.get(bucket) ?? -1);
        similar.set(bucket, key);
        if (other < 0) return;
        connect('semantic', other, slot);
        connect('semantic', slot, other);
      }),
    nextEviction() {
      const slot = ranking.next();
      return slot < 0 ? undefined : nodes.key.data[slot];
    },
    suggestEviction: count =>
      ranking.preview(count).map(slot => ({ key: nodes.key.data[slot], idleSince: idleSince.data[slot] })),
    suggestPrefetch(active, count) {
      const found = new Set<number>();
      const seen = new Set(active.map(nodes.find));
      seen.delete(-1);
      /** Leaves to go on from, and how likely they are. */
      let reached = [...seen].map(slot => ({ slot, weight: 1 }));
      for (let distance = 0; distance < MAX_DISTANCE && found.size < count && reached.length > 0; distance++) {
        const next: typeof reached = [];
        for (const { slot, weight } of reached)
          for (const list of edges.values()) {
            const out = list.of(slot);
            const total = out.reduce((sum, edge) => sum + edge.weight, 0);
            for (const edge of out) {
              const to = nodes.find(edge.to);
              if (to >= 0 && !seen.has(to)) next.push({ slot: to, weight: (weight * edge.weight) / total });
            }
          }
        next.sort((a, b) => b.weight - a.weight);
        reached = next.filter(({ slot }) => !seen.has(slot) && !!seen.add(slot)).slice(0, count);
        for (const { slot } of reached) if (tier.data[slot] > DEVICE) found.add(nodes.key.data[slot]);
      }
      return [...found].slice(0, count);
    },
  };
}
