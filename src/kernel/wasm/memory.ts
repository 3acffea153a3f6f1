/** WebAssembly memories, and places in them: everything from `top` on is free, and so are the gaps below it. */
import { CapacityError } from '../../errors.ts';
import { formatBytes } from '../../units.ts';

const PAGE = 65536;
const ALIGN = 64;
/** Pages of the smallest memory that is tried, 64 MiB: models do not fit into less. */
const LEAST = 1024;

export interface Limits {
  /** Max size of a memory, in pages of 64 KiB. */
  maxPages: number;
  shared: boolean;
}

export interface Heap {
  readonly memory: WebAssembly.Memory;
  /** Bytes handed out now. */
  readonly used: number;
  /** Bytes that the memory may grow to. The engine may still refuse to grow it as far. */
  readonly capacity: number;
  alloc(bytes: number): number;
  free(address: number, bytes: number): void;
  /** Whether so many bytes more fit behind what was handed out; the memory grows until they do. */
  reserve(bytes: number): boolean;
}

/**
 * Engines reserve addresses for all that a memory may grow to; where they refuse, half as much is tried, and so on. A memory
 * begins with a quarter of it, which costs nothing until it is written: V8 quietly reserves less than asked, down to that.
 */
export function openMemory({ maxPages, shared }: Limits): Heap {
  let refused: unknown;
  for (let maximum = maxPages; maximum >= Math.min(LEAST, maxPages); maximum = Math.floor(maximum / 2)) {
    try {
      return createHeap(new WebAssembly.Memory({ initial: Math.ceil(maximum / 4), maximum, shared }), maximum);
    } catch (error) {
      if (!(error instanceof RangeError)) throw error;
      refused = error;
    }
  }
  throw new CapacityError(
    `WebAssembly refuses a memory of ${formatBytes(maxPages * PAGE)}, and any smaller one down to ` +
      `${formatBytes(Math.min(LEAST, maxPages) * PAGE)}. Close other programs or tabs, or raise the limit of this ` +
      "process's address space: without `node --disable-wasm-trap-handler`, every memory takes 10 GiB of it.",
    { cause: refused },
  );
}

function createHeap(memory: WebAssembly.Memory, maxPages: number): Heap {
  let top = ALIGN;
  let used = 0;
  /** In order of their addresses; no two touch, and none touches `top`. */
  const gaps: { address: number; size: number }[] = [];
  const round = (bytes: number) => Math.max(ALIGN, Math.ceil(bytes / ALIGN) * ALIGN);
  const reserve = (bytes: number) => {
    // SIMD loads may look a little past the end of what they need.
    const missing = Math.ceil((top + round(bytes) + ALIGN - memory.buffer.byteLength) / PAGE);
    if (missing <= 0) return true;
    try {
      memory.grow(missing);
      return true;
    } catch (error) {
      // A number of pages that no memory can have is a TypeError.
      if (error instanceof RangeError || error instanceof TypeError) return false;
      throw error;
    }
  };
  const place = (size: number): number | undefined => {
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
  return {
    memory,
    capacity: maxPages * PAGE,
    reserve,
    get used() {
      return used;
    },
    alloc(bytes) {
      const size = round(bytes);
      const address = place(size);
      if (address === undefined)
        throw new CapacityError(
          `The wasm device is out of memory: it holds ${formatBytes(used)} and cannot take ${formatBytes(bytes)} more. ` +
            'Use a smaller context, fewer conversations, a codec of fewer bits or a smaller model.',
        );
      used += size;
      return address;
    },
    free(address, bytes) {
      const size = round(bytes);
      used -= size;
      const after = gaps.findIndex(gap => gap.address > address);
      const at = after < 0 ? gaps.length : after;
      gaps.splice(at, 0, { address, size });
      // Joins it with the gap behind it and with the one before.
      for (const i of [at, at - 1]) {
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
