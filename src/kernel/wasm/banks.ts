/**
 * The memories of a device. The first holds all but weights; weights go on in further ones where it would get too full, each
 * with kernels of its own.
 */
import type { Block, Tensor, Weights } from '../device.ts';
import { createHeap, type Heap } from './memory.ts';
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

export interface BankOptions {
  /** Most of a memory, 64 KiB each. */
  maxPages: number;
  shared: boolean;
}

export const openMemory = ({ maxPages, shared }: BankOptions): Heap =>
  createHeap(new WebAssembly.Memory({ initial: 16, maximum: maxPages, shared }), maxPages);

export class Banks {
  private readonly banks: Bank[];

  constructor(
    readonly first: Heap,
    private readonly pool: Pool,
    private readonly kernels: Uint8Array<ArrayBuffer>,
    private readonly options: BankOptions,
  ) {
    pool.load(kernels);
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
    if (has) heap.free(has.address, has.bytes);
    const size = Math.ceil(bytes * 1.25);
    const room = { address: heap.alloc(size), bytes: size };
    rooms.set(name, room);
    return room.address;
  }

  /** In the newest memory if it has room to spare for the cache and for activations, else in a new one. */
  placeWeights(bytes: number): Required<Placed> {
    const most = this.options.maxPages * 65536;
    const last = this.banks.length - 1;
    const { heap } = this.banks[last];
    if (heap.used === 0 || heap.used + bytes + most / 4 <= most) return { address: heap.alloc(bytes), bank: last };
    const bank = last + 1;
    const next = { heap: openMemory(this.options), suffix: `@${bank}`, rooms: new Map() };
    this.pool.load(this.kernels, { memory: next.heap.memory, suffix: next.suffix });
    this.banks.push(next);
    return { address: next.heap.alloc(bytes), bank };
  }
}
