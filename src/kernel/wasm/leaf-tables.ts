/** Tables of leaf addresses that kernels read, one per sequence. A sequence is identified by its tail. */
import type { Block, KvView } from '../device.ts';
import type { Heap } from './memory.ts';

export interface LeafTables {
  addressOf(view: KvView): number;
  remove(tail: Block): void;
}

interface Table {
  address: number;
  bytes: number;
  /** The leaves and their `KvView.version` when the table was last written: a tail may go to another sequence. */
  leaves?: readonly Block[];
  version: number;
}

export function createLeafTables(heap: Heap): LeafTables {
  const tables = new Map<Block, Table>();
  const remove = (tail: Block) => {
    const table = tables.get(tail);
    if (table) heap.free(table.address, table.bytes);
    tables.delete(tail);
  };
  return {
    remove,
    addressOf({ leaves, version, tail }) {
      let table = tables.get(tail);
      if (!table || table.bytes < 4 * leaves.length) {
        remove(tail);
        const bytes = 4 * Math.max(256, 2 * leaves.length);
        table = { address: heap.alloc(bytes), bytes, version: -1 };
        tables.set(tail, table);
      }
      if (table.version !== version || table.leaves !== leaves) {
        const addresses = leaves.map(leaf => (leaf as Block & { address: number }).address);
        new Int32Array(heap.memory.buffer, table.address, leaves.length).set(addresses);
        table.version = version;
        table.leaves = leaves;
      }
      return table.address;
    },
  };
}
