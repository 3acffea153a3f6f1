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
  /** The device has no more memory than is used now. */
  limitToUsed(): void;
  /** Bytes allocated now. */
  readonly used: number;
  /** Whether `bytes` more fit, after reclaiming what is needed. */
  makeRoom(bytes: number): boolean;
  /** Returns a block with one holder. Throws a CapacityError if it does not fit. */
  allocate(bytes: number, partOffsets: readonly number[]): SharedBlock;
  /** The same, with the content of another block. */
  allocateCopy(of: Block, bytes: number, partOffsets: readonly number[]): SharedBlock;
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
  const { reclaim = () => false, onIdle, onBusy } = options;
  let { capacity = Number.POSITIVE_INFINITY } = options;
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
  const allocate: Pool['allocate'] = (bytes, partOffsets) =>
    take(bytes, () => ({ block: device.createBlock(bytes, partOffsets), holders: 1 }));
  const free = ({ block }: SharedBlock) => {
    used -= block.bytes;
    device.free(block);
  };
  return {
    device,
    get capacity() {
      return capacity;
    },
    limitToUsed() {
      capacity = Math.min(capacity, used);
    },
    get used() {
      return used;
    },
    makeRoom,
    allocate,
    allocateCopy(of, ...size) {
      const copy = allocate(...size);
      try {
        device.copyBlock(of, copy.block);
        return copy;
      } catch (error) {
        free(copy);
        throw error;
      }
    },
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
      if (shared.holders === 0) free(shared);
    },
    freeTensor(tensor) {
      used -= tensorBytes(tensor);
      device.free(tensor);
    },
  };
}
