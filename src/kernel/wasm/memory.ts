/** Places in a WebAssembly memory: the next free byte, and lists of freed blocks by size. */
import { CapacityError } from '../../errors.ts';

const PAGE = 65536;
const ALIGN = 64;

export interface Heap {
  readonly memory: WebAssembly.Memory;
  /** Bytes handed out now. */
  readonly used: number;
  alloc(bytes: number): number;
  free(address: number, bytes: number): void;
}

export function createHeap(memory: WebAssembly.Memory, maxPages: number): Heap {
  let top = ALIGN;
  let used = 0;
  const freed = new Map<number, number[]>();
  const round = (bytes: number) => Math.max(ALIGN, Math.ceil(bytes / ALIGN) * ALIGN);
  return {
    memory,
    get used() {
      return used;
    },
    alloc(bytes) {
      const size = round(bytes);
      used += size;
      const again = freed.get(size)?.pop();
      if (again !== undefined) return again;
      const address = top;
      // SIMD loads may look a little past the end of what they need.
      const missing = Math.ceil((top + size + ALIGN - memory.buffer.byteLength) / PAGE);
      if (missing > 0) {
        try {
          memory.grow(missing);
        } catch (cause) {
          used -= size;
          throw new CapacityError(
            `The wasm device is out of memory: ${bytes} bytes more do not fit into its ${maxPages / 16} MiB. ` +
              'Use a smaller context, a codec of fewer bits or a smaller model.',
            { cause },
          );
        }
      }
      top += size;
      return address;
    },
    free(address, bytes) {
      const size = round(bytes);
      used -= size;
      const list = freed.get(size) ?? [];
      list.push(address);
      freed.set(size, list);
    },
  };
}
