/**
 * Puts sealed leaves into the tiers, in the background and in batches. They are read from the device between two passes,
 * and written while further passes run. A leaf that is evicted before it was read is skipped: nothing waits for a slow
 * store, and no memory is kept for it.
 */
import type { Device } from '../kernel/device.ts';
import type { CacheRecord } from '../store/record.ts';
import type { TierChain } from '../store/tier-chain.ts';
import type { NodeKeys } from './node-keys.ts';
import { isIndexed, type PrefixNode, windowPageOf } from './prefix-node.ts';
import { tenantOf } from './salt.ts';

export interface LeafWriterOptions {
  device: Pick<Device, 'readBlock'>;
  chain: Pick<TierChain, 'put' | 'skip' | 'ready'>;
  keys: NodeKeys;
  /** Number of sink tokens. */
  sinks: number;
  /** Runs work between two passes. */
  exclusive<T>(work: () => Promise<T>): Promise<T>;
}

export interface LeafWriter {
  /** A leaf was published. */
  add(node: PrefixNode): void;
  /** The tiers have this leaf: it came from there. */
  remove(node: PrefixNode): void;
  /** Hands all leaves so far to the tiers, without waiting for more. */
  settle(): Promise<void>;
}

/** A batch is collected for this long: reading it from a GPU delays a pass a little. */
const COLLECT_MS = 100;
const BATCH_BYTES = 16 * 2 ** 20;

export function createLeafWriter({ device, chain, keys, sinks, exclusive }: LeafWriterOptions): LeafWriter {
  const pending = new Set<PrefixNode>();
  let running: Promise<void> | undefined;
  let isSettling = false;
  let stopCollecting: () => void = () => {};

  const collect = (): Promise<void> =>
    new Promise(resolve => {
      const timer = setTimeout(resolve, isSettling ? 0 : COLLECT_MS);
      timer.unref?.();
      stopCollecting = () => {
        clearTimeout(timer);
        resolve();
      };
    });

  const takeBatch = (): PrefixNode[] => {
    const batch: PrefixNode[] = [];
    let bytes = 0;
    for (const node of pending) {
      if (bytes >= BATCH_BYTES) break;
      pending.delete(node);
      batch.push(node);
      bytes += node.leaf!.block.bytes;
    }
    return batch;
  };

  const recordsOf = async (node: PrefixNode): Promise<CacheRecord[]> => {
    const windowPage = windowPageOf(node.leaf!);
    const [leaf, windowBytes, sinkBytes] = await Promise.all([
      device.readBlock(node.leaf!.block),
      windowPage && device.readBlock(windowPage.block),
      node.sinks && device.readBlock(node.sinks.block),
    ]);
    const key = keys.of(node);
    const records: CacheRecord[] = [{ kind: 'leaf', key, payload: leaf }];
    if (windowBytes) records.push({ kind: 'window', key, payload: windowBytes });
    if (sinkBytes) records.unshift({ ...keys.sinks(node.salt, textOf(node).slice(0, sinks)), payload: sinkBytes });
    return records;
  };

  const writeBatch = async (batch: readonly PrefixNode[]) => {
    // The reads are recorded between two passes; the next pass does not wait for their bytes.
    const { reads } = await exclusive(async () => ({
      reads: batch.filter(isIndexed).map(async node => ({ node, records: await recordsOf(node) })),
    }));
    chain.skip(batch.length - reads.length);
    const bySalt = new Map<string, CacheRecord[]>();
    for (const { node, records } of await Promise.all(reads)) {
      bySalt.set(node.salt, [...(bySalt.get(node.salt) ?? []), ...records]);
      node.isStored = true;
    }
    for (const [salt, records] of bySalt) chain.put(records, tenantOf(salt));
  };

  const run = async () => {
    while (pending.size > 0) {
      await collect();
      await chain.ready();
      const batch = takeBatch();
      // The device is lost, or the model was disposed.
      await writeBatch(batch).catch(() => chain.skip(batch.length));
    }
    running = undefined;
  };

  return {
    add(node) {
      pending.add(node);
      running ??= run();
      if (pending.size * node.leaf!.block.bytes >= BATCH_BYTES) stopCollecting();
    },
    remove(node) {
      pending.delete(node);
      node.isStored = true;
    },
    async settle() {
      isSettling = true;
      stopCollecting();
      await running;
      isSettling = false;
    },
  };
}

/** The tokens up to the end of a leaf. */
function textOf(node: PrefixNode): number[] {
  const pages: (readonly number[])[] = [];
  for (let at: PrefixNode | undefined = node; at; at = at.parent) pages.unshift(at.tokens);
  return pages.flat();
}
