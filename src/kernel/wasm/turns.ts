/** Turns to the start of every page, for codecs whose keys are relative to it: made in f64, kept where kernels find them. */
import type { Heap } from './memory.ts';

export interface Turns {
  /** Of page `page`; those of later pages, up to `end`, follow it, `turnBytes` apart. 0 where nothing turns. */
  addressOf(turn: Float64Array | undefined, page: number, end: number): number;
}

/** Eight floats for every four dims: cos a pair twice, then sin and -sin. Dims that do not turn have 1 and 0. */
export const turnBytes = (headDim: number): number => 8 * headDim;

export function createTurns(heap: Heap, headDim: number, pageTokens: number): Turns {
  const tables = new Map<Float64Array, { address: number; pages: number }>();
  const stride = turnBytes(headDim);

  const fill = (turn: Float64Array, address: number, page: number) => {
    const out = new Float32Array(heap.memory.buffer, address + page * stride, stride / 4);
    for (let pair = 0; pair < headDim / 2; pair++) {
      const angle = (turn[pair] ?? 0) * page * pageTokens;
      const at = 8 * (pair >> 1) + 2 * (pair & 1);
      out.fill(Math.cos(angle), at, at + 2);
      out[at + 4] = Math.sin(angle);
      out[at + 5] = -Math.sin(angle);
    }
  };

  return {
    addressOf(turn, page, end) {
      if (!turn) return 0;
      let table = tables.get(turn);
      if (!table || table.pages < end) {
        if (table) heap.free(table.address, table.pages * stride);
        tables.delete(turn);
        const pages = Math.max(64, 2 * end);
        table = { address: heap.alloc(pages * stride), pages };
        for (let p = 0; p < pages; p++) fill(turn, table.address, p);
        tables.set(turn, table);
      }
      return table.address + page * stride;
    },
  };
}
