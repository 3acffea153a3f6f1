/**
 * The WebAssembly memories of a device. The main memory holds everything but weights that do not fit in it; those go to
 * additional memories, each with its own instances of the kernels.
 */
import type { Block, Tensor, Weights } from '../device.ts';
import { type Heap, type MemoryLimits, openMemory } from './memory.ts';
import type { Pool } from './pool.ts';

export interface Allocation {
  address: number;
  /** Index of the memory; 0, the main one, if absent. */
  memory?: number;
}

export const addressOf = (handle: Tensor | Weights | Block): number => (handle as unknown as Allocation).address;

interface DeviceMemory {
  heap: Heap;
  /** Appended to the names of its kernels. */
  suffix: string;
  scratch: Map<string, { address: number; bytes: number }>;
}

export class Memories {
  private readonly memories: DeviceMemory[];
  /** Bytes of the main memory that are not used for weights. */
  private reservedBytes: number;

  constructor(
    readonly main: Heap,
    private readonly pool: Pool,
    private readonly kernels: Uint8Array<ArrayBuffer>,
    private readonly limits: MemoryLimits,
  ) {
    this.reservedBytes = main.capacity / 4;
    this.memories = [{ heap: main, suffix: '', scratch: new Map() }];
  }

  get bytes(): number {
    return this.memories.reduce((sum, { heap }) => sum + heap.used, 0);
  }

  bytesAt(address: number, length: number, memory = 0): Uint8Array {
    return new Uint8Array(this.memories[memory].heap.memory.buffer, address, length);
  }

  floatsAt(address: number, length: number): Float32Array {
    return new Float32Array(this.main.memory.buffer, address, length);
  }

  /** The name under which the pool knows a kernel's instance for a memory. */
  kernelName(name: string, memory: number): string {
    return name + this.memories[memory].suffix;
  }

  /** The address of a named buffer that is reused from step to step and grows as needed. */
  scratch(name: string, bytes: number, memory = 0): number {
    const { heap, scratch } = this.memories[memory];
    const old = scratch.get(name);
    if (old && old.bytes >= bytes) return old.address;
    if (old) {
      heap.free(old.address, old.bytes);
      scratch.delete(name);
    }
    // Doubling keeps the space left behind by all old buffers below the size of the new one.
    const size = Math.max(bytes, 2 * (old?.bytes ?? 0));
    const address = heap.alloc(size);
    scratch.set(name, { address, bytes: size });
    return address;
  }

  /** Reserves up to `bytes` of the main memory for caches and tensors; returns how many it could reserve. */
  reserve(bytes: number): number {
    const scratchBytes = this.main.capacity / 8;
    const fits = (bytes: number) => this.main.reserve(bytes + scratchBytes);
    let [low, high] = [fits(bytes) ? bytes : 0, bytes];
    while (high - low > bytes / 256) {
      const middle = Math.floor((low + high) / 2);
      if (fits(middle)) low = middle;
      else high = middle;
    }
    this.reservedBytes = low + scratchBytes;
    return low;
  }

  /** Uses the newest memory if that leaves enough for the cache and for activations, otherwise opens another one. */
  async allocateWeights(bytes: number): Promise<Required<Allocation>> {
    const last = this.memories.length - 1;
    const { heap } = this.memories[last];
    const reserved = last === 0 ? this.reservedBytes : heap.capacity / 4;
    if (heap.used === 0 || heap.reserve(bytes + reserved)) return { address: heap.alloc(bytes), memory: last };
    const memory = last + 1;
    const next = { heap: openMemory(this.limits), suffix: `@${memory}`, scratch: new Map() };
    await this.pool.load(this.kernels, { memory: next.heap.memory, suffix: next.suffix });
    this.memories.push(next);
    return { address: next.heap.alloc(bytes), memory };
  }
}
