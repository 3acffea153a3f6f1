/**
 * The device memory of a cache: blocks with counted holders, within a fixed capacity. Whoever holds a block keeps it; the
 * last holder to release it frees it. When the capacity is reached, cached blocks that nobody uses are reclaimed.
 */

import type { Block, Device, Tensor } from '../kernel/device.ts';
import { assert, CapacityError } from '../util/errors.ts';
import { formatBytes } from '../util/units.ts';

/** A block that several sequences may hold. */
export interface SharedBlock {
  readonly block: Block;
  holders: number;
}

export interface Pool {
  readonly device: Device;
  /** Max bytes. */
  readonly capacity: number;
  /** Bytes allocated now. */
  readonly used: number;
  /** Whether `bytes` more fit, after reclaiming what is needed. */
  makeRoom(bytes: number): boolean;
  /** Returns a block with one holder. Throws a CapacityError if it does not fit. */
  allocate(bytes: number, partOffsets: readonly number[]): SharedBlock;
  allocateTensor(rows: number, cols: number): Tensor;
  retain<T extends SharedBlock>(shared: T): T;
  release(shared: SharedBlock): void;
  freeTensor(tensor: Tensor): void;
}

export interface PoolOptions {
  capacity?: number;
  /** Frees something that nobody uses, such as the least recently used leaf. False if there is nothing left. */
  reclaim?: () => boolean;
  /** Called when a release leaves one holder, which is the prefix index if the block is in it. */
  onIdle?: (shared: SharedBlock) => void;
  /** Called before the block gets a second holder. */
  onBusy?: (shared: SharedBlock) => void;
}

const tensorBytes = ({ rows, cols }: Tensor) => 4 * rows * cols;

export function createPool(device: Device, options: PoolOptions = {}): Pool {
  const { capacity = Number.POSITIVE_INFINITY, reclaim = () => false, onIdle, onBusy } = options;
  let used = 0;
  const makeRoom = (bytes: number): boolean => {
    // Reclaiming everything would not help.
    if (bytes > capacity) return false;
    while (used + bytes > capacity) if (!reclaim()) return false;
    return true;
  };
  /** The device may have less memory than the capacity. */
  const createOrReclaim = <T>(create: () => T): T => {
    for (;;) {
      try {
        return create();
      } catch (error) {
        if (!(error instanceof CapacityError) || !reclaim()) throw error;
      }
    }
  };
  const take = <T>(bytes: number, create: () => T): T => {
    if (!makeRoom(bytes))
      throw new CapacityError(
        option =>
          `The KV cache is full: ${formatBytes(used)} of ${formatBytes(capacity)} are in use, and ${formatBytes(bytes)} more ` +
          `are needed. Raise ${option('kvMemory')}, use a codec with fewer bits, or run fewer conversations at once.`,
      );
    const created = createOrReclaim(create);
    used += bytes;
    return created;
  };
  return {
    device,
    capacity,
    get used() {
      return used;
    },
    makeRoom,
    allocate: (bytes, partOffsets) =>
      take(bytes, () => ({ block: device.createBlock(bytes, partOffsets), holders: 1 })),
    allocateTensor: (rows, cols) => take(4 * rows * cols, () => device.createTensor(rows, cols)),
    retain(shared) {
      assert(shared.holders > 0, 'a freed block cannot be retained');
      if (shared.holders === 1) onBusy?.(shared);
      shared.holders++;
      return shared;
    },
    release(shared) {
      assert(shared.holders > 0, 'a block was released more often than it was retained');
      shared.holders--;
      if (shared.holders === 1) onIdle?.(shared);
      if (shared.holders > 0) return;
      used -= shared.block.bytes;
      device.free(shared.block);
    },
    freeTensor(tensor) {
      used -= tensorBytes(tensor);
      device.free(tensor);
    },
  };
}
