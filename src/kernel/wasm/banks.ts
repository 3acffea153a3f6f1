/**
 * The memories of a device. The first holds all but weights; weights go on in further ones where it would get too full, each
 * with kernels of its own.
 */
import type { Block, Tensor, Weights } from '../device.ts';
import { type Heap, type Limits, openMemory } from './memory.ts';
import type { Pool } from './pool.ts';

/** Where something lies. */
export interface Placed {
  address: number;
  /** The memory; the first unless given. */
  bank?: number;
}

export const at = (handle: Tensor | Weights | Block): number => (handle as unknown as Placed).address;

interface Bank {
  heap: Heap;
  /** Names of its kernels end in it. */
  suffix: string;
  rooms: Map<string, { address: number; bytes: number }>;
}

export class Banks {
  private readonly banks: Bank[];
  /** Bytes of the first memory that weights leave free. */
  private kept: number;

  constructor(
    readonly first: Heap,
    private readonly pool: Pool,
    private readonly kernels: Uint8Array<ArrayBuffer>,
    private readonly limits: Limits,
  ) {
    pool.load(kernels);
    this.kept = first.capacity / 4;
    this.banks = [{ heap: first, suffix: '', rooms: new Map() }];
  }

  get bytes(): number {
    return this.banks.reduce((sum, { heap }) => sum + heap.used, 0);
  }

  raw(address: number, length: number, bank = 0): Uint8Array {
    return new Uint8Array(this.banks[bank].heap.memory.buffer, address, length);
  }

  floats(address: number, length: number): Float32Array {
    return new Float32Array(this.first.memory.buffer, address, length);
  }

  /** A kernel of a memory. */
  kernel(name: string, bank: number): string {
    return name + this.banks[bank].suffix;
  }

  /** Room that grows as needed and is reused from step to step. */
  room(name: string, bytes: number, bank = 0): number {
    const { heap, rooms } = this.banks[bank];
    const has = rooms.get(name);
    if (has && has.bytes >= bytes) return has.address;
    if (has) {
      heap.free(has.address, has.bytes);
      rooms.delete(name);
    }
    // Twice the old one: what all the old ones leave behind is then less than one more.
    const size = Math.max(bytes, 2 * (has?.bytes ?? 0));
    const address = heap.alloc(size);
    rooms.set(name, { address, bytes: size });
    return address;
  }

  /** Keeps so many bytes of the first memory for caches and tensors, or as many as it can have; returns how many. */
  reserve(bytes: number): number {
    const rooms = this.first.capacity / 8;
    const fits = (bytes: number) => this.first.reserve(bytes + rooms);
    let [low, high] = [fits(bytes) ? bytes : 0, bytes];
    while (high - low > bytes / 256) {
      const middle = Math.floor((low + high) / 2);
      if (fits(middle)) low = middle;
      else high = middle;
    }
    this.kept = low + rooms;
    return low;
  }

  /** In the newest memory if that leaves enough for the cache and for activations, else in a new one. */
  placeWeights(bytes: number): Required<Placed> {
    const last = this.banks.length - 1;
    const { heap } = this.banks[last];
    const kept = last === 0 ? this.kept : heap.capacity / 4;
    if (heap.used === 0 || heap.reserve(bytes + kept)) return { address: heap.alloc(bytes), bank: last };
    const bank = last + 1;
    const next = { heap: openMemory(this.limits), suffix: `@${bank}`, rooms: new Map() };
    this.pool.load(this.kernels, { memory: next.heap.memory, suffix: next.suffix });
    this.banks.push(next);
    return { address: next.heap.alloc(bytes), bank };
  }
}
