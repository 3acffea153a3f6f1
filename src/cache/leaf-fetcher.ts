/**
 * Fetches the leaves of a prompt from the tiers, in the background, while its request waits. Each leaf is in the index, for
 * all requests, as soon as its bytes are verified and on the device; a chain is used as far as it goes. It takes no more
 * memory than any other leaf would get, and holds nothing: what it has fetched can be evicted again.
 *
 * Of layers with a window, only the pages are fetched that are visible after the chain.
 *
 * One chain at a time, so that the common beginning of several prompts is fetched once.
 */

import type { Device } from '../kernel/device.ts';
import { leafKeys } from '../store/leaf-key.ts';
import type { RecordName } from '../store/leaf-store.ts';
import type { TierChain } from '../store/tier-chain.ts';
import { CapacityError } from '../util/errors.ts';
import {
  f16Block,
  f16BlockBytes,
  firstVisiblePage,
  isValidLeaf,
  isValidWindowPage,
  type LeafLayout,
  leafBlock,
  windowBlock,
} from './leaf.ts';
import type { NodeKeys } from './node-keys.ts';
import type { Pool, SharedBlock } from './pool.ts';
import { createPrefetchState, type Prefetch, type PrefetchState } from './prefetch.ts';
import type { PrefixIndex } from './prefix.ts';
import { isIndexed, type PrefixNode, windowPageOf } from './prefix-node.ts';
import { tenantOf } from './salt.ts';
import { sinkPage } from './sequence.ts';

export interface LeafFetcherOptions {
  device: Pick<Device, 'ensureMemory' | 'writeBlock'>;
  pool: Pool;
  index: PrefixIndex;
  leaf: LeafLayout;
  shape: { kvHeads: number; headDim: number; pageTokens: number; sinks: number };
  chain: Pick<TierChain, 'get' | 'put'>;
  keys: NodeKeys;
  /** Runs work between two passes. */
  exclusive<T>(work: () => Promise<T>): Promise<T>;
  /** The clock, in ms. */
  now(): number;
  /** Of the leaves on a path: after how many of them a text can go on. */
  countUsable(path: readonly PrefixNode[]): number;
  /** A leaf from a tier is in the index. */
  onFetched(node: PrefixNode): void;
}

/** Fetches what the index lacks of a prompt; undefined if tiers cannot help. `onChange`: a page arrived, or it has ended. */
export type FetchLeaves = (prompt: readonly number[], salt: string, onChange: () => void) => Prefetch | undefined;

/** A record to fetch, and what puts it on the device: false if it cannot. */
interface Wanted {
  name: RecordName;
  place(payload: Uint8Array): Promise<boolean>;
}

interface Arrival extends Wanted {
  payload: Uint8Array;
  tier: number;
}

/** Max bytes that wait for the device. */
const MAX_ARRIVED_BYTES = 32 * 2 ** 20;

export function createLeafFetcher(options: LeafFetcherOptions): FetchLeaves {
  const { device, pool, index, leaf: layout, shape, chain, keys, exclusive, now, countUsable, onFetched } = options;
  const { pageTokens } = shape;
  const f16Shape = { ...shape, layers: layout.layers };
  let queue: Promise<void> = Promise.resolve();

  /** A block with memory; undefined if there is no room. `parent` is not evicted for it. */
  const allocate = async (size: [bytes: number, offsets: number[]], parent?: PrefixNode) => {
    let shared: SharedBlock | undefined;
    try {
      shared = parent ? index.keeping(parent, () => pool.allocate(...size)) : pool.allocate(...size);
      // All that it looks at is which blocks need memory.
      await device.ensureMemory?.([{ leaves: [shared.block], tail: [], sinkBlock: shared.block }]);
      return shared;
    } catch (error) {
      if (shared) pool.release(shared);
      if (error instanceof CapacityError) return undefined;
      throw error;
    }
  };

  /** `noteLast`: the last leaf of the prompt that was in the index or has come. */
  const fetchChain = async (
    prompt: readonly number[],
    salt: string,
    state: PrefetchState,
    noteLast: (node?: PrefixNode) => void,
    onChange: () => void,
  ) => {
    if (state.isCancelled) return;
    const path = index.find(salt, prompt, prompt.length - 1);
    noteLast(path.at(-1));
    const pages = Math.floor((prompt.length - 1) / pageTokens);
    let parent = path.at(-1);
    let page = path.length;
    /** With windows, leaves are of no use before the pages of their window. */
    const pagesLeft = () =>
      pages - (layout.windowPage ? countUsable(index.find(salt, prompt, page * pageTokens)) : page);
    /** Until the page in which they end arrives. */
    let sinkBytes: Uint8Array | undefined;

    const placeSinks = (payload: Uint8Array): boolean => {
      sinkBytes = payload;
      return payload.length === f16BlockBytes(f16Shape, shape.sinks);
    };

    const placeWindowPage = async (payload: Uint8Array, node: PrefixNode): Promise<boolean> => {
      if (!isValidWindowPage(layout, payload)) return false;
      const windowPage = await allocate(windowBlock(layout), parent);
      state.isBlocked = !windowPage;
      if (!windowPage) return false;
      device.writeBlock(windowPage.block, payload);
      if (isIndexed(node)) index.addWindowPage(node, windowPage);
      pool.release(windowPage);
      state.note(page - path.length, pagesLeft());
      return isIndexed(node);
    };

    const placeLeaf = async (payload: Uint8Array): Promise<boolean> => {
      if (!isValidLeaf(layout, payload)) return false;
      const held: SharedBlock[] = [];
      const place = async (size: [bytes: number, offsets: number[]], bytes: Uint8Array) => {
        const shared = await allocate(size, parent);
        if (!shared) return undefined;
        held.push(shared);
        device.writeBlock(shared.block, bytes);
        return shared;
      };
      try {
        const endsSinks = page === sinkPage(shape);
        const sinks = endsSinks ? await place(f16Block(f16Shape, shape.sinks), sinkBytes!) : undefined;
        const leaf = await place(leafBlock(layout), payload);
        state.isBlocked = !leaf || (endsSinks && !sinks);
        // What precedes it may have been evicted meanwhile.
        if (!leaf || state.isBlocked || (parent && !isIndexed(parent))) return false;
        const tokens = prompt.slice(page * pageTokens, (page + 1) * pageTokens);
        parent = index.insert(parent ?? index.root(salt), tokens, leaf, sinks);
        noteLast(parent);
        onFetched(parent);
      } finally {
        for (const shared of held) pool.release(shared);
      }
      page++;
      state.note(page - path.length, pagesLeft());
      return true;
    };

    const fetchRecords = async (wanted: readonly Wanted[]) => {
      const arrived: Arrival[] = [];
      let arrivedBytes = 0;
      let writing: Promise<void> | undefined;
      const write = async () => {
        for (let next = arrived.shift(); next && !state.isCancelled; next = arrived.shift()) {
          const { name, payload, tier, place } = next;
          arrivedBytes -= payload.length;
          if (await place(payload)) {
            if (tier > 0) chain.put([{ ...name, payload }], tenantOf(salt), tier);
            onChange();
          } else state.isCancelled = true;
        }
        writing = undefined;
      };
      let at = 0;
      for await (const { payload, tier } of chain.get(wanted.map(({ name }) => name))) {
        if (state.isCancelled) break;
        arrived.push({ ...wanted[at++], payload: payload.slice(), tier });
        arrivedBytes += payload.length;
        writing ??= exclusive(write);
        // Awaited below, or after the loop.
        writing.catch(() => {});
        if (arrivedBytes > MAX_ARRIVED_BYTES) await writing;
      }
      await writing;
    };

    await fetchRecords(
      chainNames(prompt, salt, path, pages).map(name => ({
        name,
        place: name.kind === 'sinks' ? async payload => placeSinks(payload) : placeLeaf,
      })),
    );
    if (!layout.windowPage || state.isCancelled) return;
    const visible = index.find(salt, prompt, page * pageTokens).slice(firstVisiblePage(layout, page, pageTokens));
    const missing = visible.filter(({ leaf }) => !windowPageOf(leaf!));
    await fetchRecords(
      missing.map(node => ({
        name: { kind: 'window', key: keys.of(node) },
        place: payload => placeWindowPage(payload, node),
      })),
    );
  };

  /** The records of the pages after `path`, and of the sinks if their page is among them. */
  const chainNames = (prompt: readonly number[], salt: string, path: readonly PrefixNode[], pages: number) => {
    const tokens = Int32Array.from(prompt).subarray(path.length * pageTokens);
    const parent = path.at(-1);
    const leaves = leafKeys(parent ? keys.of(parent) : keys.root(salt), tokens, pageTokens, pages - path.length);
    const names = leaves.map((key): RecordName => ({ kind: 'leaf', key }));
    return path.length > sinkPage(shape) ? names : [keys.sinks(salt, prompt.slice(0, shape.sinks)), ...names];
  };

  return (prompt, salt, onChange) => {
    const pages = Math.floor((prompt.length - 1) / pageTokens);
    // Fewer pages than the sinks have are of no use.
    if (pages <= sinkPage(shape)) return undefined;
    const path = index.find(salt, prompt, prompt.length - 1);
    let last = path.at(-1);
    const noteLast = (node?: PrefixNode) => {
      last = node;
    };
    const state = createPrefetchState(pages - countUsable(path), () => last !== undefined && !isIndexed(last), now);
    if (!state.isActive) return state;
    const copy = [...prompt];
    const fetch = queue.then(() => fetchChain(copy, salt, state, noteLast, onChange));
    queue = state.end(fetch, onChange);
    return state;
  };
}
