/** WebAssembly memories and their allocator: everything from `top` on is free, and so are the gaps below it. */
import { CapacityError } from '../../util/errors.ts';
import { formatBytes } from '../../util/units.ts';
import { PAGE_BYTES } from './module.ts';

const ALIGN = 64;
/** The smallest memory to try, in pages (64 MiB): models do not fit into less. */
const MIN_PAGES = 1024;

export interface MemoryLimits {
  /** Max size of a memory, in pages of 64 KiB. */
  maxPages: number;
  shared: boolean;
}

export interface Heap {
  readonly memory: WebAssembly.Memory;
  /** Bytes allocated now. */
  readonly used: number;
  /** Bytes that the memory may grow to. The engine can still refuse to grow it that far. */
  readonly capacity: number;
  alloc(bytes: number): number;
  /** The same, filled with zeros. Memory that was never used is zero, and takes no space until it is written. */
  allocZeroed(bytes: number): number;
  free(address: number, bytes: number): void;
  /** Whether `bytes` more fit behind the last allocation; grows the memory if needed. */
  reserve(bytes: number): boolean;
}

/**
 * Engines reserve address space for the maximum size; if one refuses, half the size is tried, and so on. The initial
 * size is a quarter of the maximum, because V8 may silently reserve less address space than requested, down to the
 * initial size. Pages cost nothing until they are written.
 */
export function openMemory({ maxPages, shared }: MemoryLimits): Heap {
  let refused: unknown;
  for (let maximum = maxPages; maximum >= Math.min(MIN_PAGES, maxPages); maximum = Math.floor(maximum / 2)) {
    try {
      return createHeap(new WebAssembly.Memory({ initial: Math.ceil(maximum / 4), maximum, shared }), maximum);
    } catch (error) {
      if (!(error instanceof RangeError)) throw error;
      refused = error;
    }
  }
  throw new CapacityError(
    `WebAssembly refuses a memory of ${formatBytes(maxPages * PAGE_BYTES)}, and any smaller one down to ` +
      `${formatBytes(Math.min(MIN_PAGES, maxPages) * PAGE_BYTES)}. Close other programs or tabs, or raise this ` +
      "process's address space limit: each memory reserves 10 GiB of it, unless Node runs with " +
      '`--disable-wasm-trap-handler`.',
    { cause: refused },
  );
}

function createHeap(memory: WebAssembly.Memory, maxPages: number): Heap {
  let top = ALIGN;
  let used = 0;
  /** Everything from here on was never allocated. */
  let unused = ALIGN;
  /** Sorted by address; no two are adjacent, and none is adjacent to `top`. */
  const gaps: { address: number; size: number }[] = [];
  const round = (bytes: number) => Math.max(ALIGN, Math.ceil(bytes / ALIGN) * ALIGN);
  const reserve = (bytes: number) => {
    // SIMD loads may read a little past the end of an allocation.
    const missing = Math.ceil((top + round(bytes) + ALIGN - memory.buffer.byteLength) / PAGE_BYTES);
    if (missing <= 0) return true;
    try {
      memory.grow(missing);
      return true;
    } catch (error) {
      // A page count above the WebAssembly limit is a TypeError.
      if (error instanceof RangeError || error instanceof TypeError) return false;
      throw error;
    }
  };
  const allocate = (size: number): number | undefined => {
    const found = gaps.findIndex(gap => gap.size >= size);
    if (found >= 0) {
      const gap = gaps[found];
      const { address } = gap;
      gap.address += size;
      gap.size -= size;
      if (gap.size === 0) gaps.splice(found, 1);
      return address;
    }
    if (!reserve(size)) return undefined;
    top += size;
    return top - size;
  };
  const alloc = (bytes: number): number => {
    const size = round(bytes);
    const address = allocate(size);
    if (address === undefined)
      throw new CapacityError(
        option =>
          `The wasm device is out of memory: it holds ${formatBytes(used)} and cannot allocate ` +
          `${formatBytes(bytes)} more. ` +
          `Use a smaller ${option('context')}, fewer conversations, a codec with fewer bits or a smaller model.`,
      );
    used += size;
    unused = Math.max(unused, top);
    return address;
  };
  return {
    memory,
    capacity: maxPages * PAGE_BYTES,
    reserve,
    get used() {
      return used;
    },
    alloc,
    allocZeroed(bytes) {
      const end = unused;
      const address = alloc(bytes);
      const dirty = Math.min(bytes, end - address);
      if (dirty > 0) new Uint8Array(memory.buffer, address, dirty).fill(0);
      return address;
    },
    free(address, bytes) {
      const size = round(bytes);
      used -= size;
      const after = gaps.findIndex(gap => gap.address > address);
      const index = after < 0 ? gaps.length : after;
      gaps.splice(index, 0, { address, size });
      // Merge with the next gap and with the previous one.
      for (const i of [index, index - 1]) {
        if (i < 0 || i + 1 >= gaps.length || gaps[i].address + gaps[i].size !== gaps[i + 1].address) continue;
        gaps[i].size += gaps[i + 1].size;
        gaps.splice(i + 1, 1);
      }
      const last = gaps[gaps.length - 1];
      if (last.address + last.size === top) {
        top = last.address;
        gaps.pop();
      }
    },
  };
}
