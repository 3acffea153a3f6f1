import { expect, it } from 'vitest';
import { createJsDevice } from '../kernel/js/device.ts';
import { createHostStore } from '../store/host-store.ts';
import type { LeafKey } from '../store/leaf-key.ts';
import { createTierChain } from '../store/tier-chain.ts';
import { createLeafWriter, type LeafWriter } from './leaf-writer.ts';
import { createNodeKeys } from './node-keys.ts';
import { createPool, type Pool } from './pool.ts';
import { createPrefixIndex, type PrefixIndex } from './prefix.ts';
import type { Leaf } from './prefix-node.ts';

const LEAF_BYTES = 64;

/** An index whose leaves are written to host memory, each with bytes of its own. */
function create() {
  const device = createJsDevice();
  const store = createHostStore({ capacity: 1e6 });
  const chain = createTierChain([{ store, isOwned: true }]);
  const keys = createNodeKeys(salt => new Uint8Array(32).fill(salt.length) as LeafKey);
  const pool: Pool = createPool(device, { onIdle: shared => index.noteIdle(shared as Leaf) });
  const writer: LeafWriter = createLeafWriter({ device, chain, keys, sinks: 3, exclusive: work => work() });
  const index: PrefixIndex = createPrefixIndex(() => pool, {
    pageTokens: 2,
    onInsert(node) {
      keys.add(node);
      writer.add(node);
    },
  });
  /** Inserts pages of two tokens each; the sinks end in the second. */
  const insert = (salt: string, ...tokens: number[]) => {
    let parent = index.root(salt);
    for (let at = 0; at < tokens.length; at += 2) {
      const leaf = pool.allocate(LEAF_BYTES, [0]);
      const sinks = at === 2 ? pool.allocate(16, [0]) : undefined;
      device.writeBlock(leaf.block, new Uint8Array(LEAF_BYTES).fill(tokens[at]));
      parent = index.insert(parent, tokens.slice(at, at + 2), leaf, sinks);
      pool.release(leaf);
      if (sinks) pool.release(sinks);
    }
    return parent;
  };
  const settle = async () => {
    await writer.settle();
    await new Promise(resolve => setTimeout(resolve));
    return chain.stats[0];
  };
  return { store, keys, index, writer, insert, settle };
}

it('puts every leaf once, and the sinks with the page in which they end', async () => {
  const { store, keys, insert, settle } = create();
  const last = insert('', 1, 2, 3, 4, 5, 6);
  expect(await settle()).toMatchObject({ records: 4, puts: 4, skipped: 0 });
  expect(await settle()).toMatchObject({ records: 4, puts: 4 });
  const names = [keys.sinks('', [1, 2, 3]), { kind: 'leaf' as const, key: keys.of(last) }];
  const sizes: number[] = [];
  for await (const payload of store.get(names)) sizes.push(payload.length);
  expect(sizes).toEqual([16, LEAF_BYTES]);
});

it('waits for a batch, and reads what is still there', async () => {
  const { store, index, insert, settle } = create();
  insert('', 1, 2, 3, 4, 5, 6);
  expect(store.stats.puts).toBe(0);
  index.evict();
  expect(await settle()).toMatchObject({ records: 3, skipped: 1 });
});

it('does not put what came from a tier', async () => {
  const { writer, insert, settle } = create();
  writer.remove(insert('', 1, 2));
  expect(await settle()).toMatchObject({ puts: 0, skipped: 0 });
});

it('names the leaves of each salt apart', async () => {
  const { insert, settle } = create();
  insert('a', 1, 2);
  insert('bb', 1, 2);
  expect(await settle()).toMatchObject({ records: 2 });
});
