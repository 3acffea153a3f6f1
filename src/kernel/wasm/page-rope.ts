/** RoPE rotations by each page's start position, for codecs with page-relative keys. Computed in f64. */
import type { Heap } from './memory.ts';

export interface PageRopeTables {
  /**
   * The table of `page`; the ones of later pages, up to `end`, follow at intervals of `pageRopeBytes`. 0 without
   * frequencies.
   */
  addressOf(frequencies: Float64Array | undefined, page: number, end: number): number;
}

/**
 * Eight f32 per four dims: cos of each pair twice, then sin and -sin of each. Dims that are not rotated have 1 and 0.
 */
export const pageRopeBytes = (headDim: number): number => 8 * headDim;

export function createPageRopeTables(heap: Heap, headDim: number, pageTokens: number): PageRopeTables {
  const tables = new Map<Float64Array, { address: number; pages: number }>();
  const stride = pageRopeBytes(headDim);

  const fill = (frequencies: Float64Array, address: number, page: number) => {
    const out = new Float32Array(heap.memory.buffer, address + page * stride, stride / 4);
    for (let pair = 0; pair < headDim / 2; pair++) {
      const angle = (frequencies[pair] ?? 0) * page * pageTokens;
      const index = 8 * (pair >> 1) + 2 * (pair & 1);
      out.fill(Math.cos(angle), index, index + 2);
      out[index + 4] = Math.sin(angle);
      out[index + 5] = -Math.sin(angle);
    }
  };

  return {
    addressOf(frequencies, page, end) {
      if (!frequencies) return 0;
      let table = tables.get(frequencies);
      if (!table || table.pages < end) {
        if (table) heap.free(table.address, table.pages * stride);
        tables.delete(frequencies);
        const pages = Math.max(64, 2 * end);
        table = { address: heap.alloc(pages * stride), pages };
        for (let p = 0; p < pages; p++) fill(frequencies, table.address, p);
        tables.set(frequencies, table);
      }
      return table.address + page * stride;
    },
  };
}
