/**
 * A codec as data, for devices that cannot call it: where the bytes of a page lie and what a code stands for. The
 * reference in TypeScript says the same in code; a device is tested against that.
 */
export interface Fragment {
  /** Length of a coded vector. */
  codedDim: number;
  /**
   * [codedDim][headDim]: takes a query into the domain of the codes; its transpose takes sums of coded vectors back.
   * Absent where the codes are of the vectors themselves. With one for every KV head they follow one another.
   */
  matrix?: Float32Array;
  /** The maps mix dims in blocks of these sizes alone, in order; all that lies outside them is zero. */
  blocks?: readonly number[];
  /** [codedDim][headDim] likewise: takes vectors into the domain, where `matrix` is no rotation and cannot. */
  encodeMatrix?: Float32Array;
  /** Keys are turned back by their page's start, and queries page by page: the angle of each pair a position. */
  turn?: Float64Array;
  /** [kv head][headDim], subtracted before coding. */
  mean?: Float32Array;
  /** Bytes before the first head's block, and of a block. */
  sharedBytes: number;
  blockBytes: number;
  page: PageFragment;
}

export type PageFragment =
  /** Rows of floats. */
  | { kind: 'f16' }
  | { kind: 'fp8' }
  /** Rows of llama.cpp's blocks of 32. */
  | { kind: 'q8_0' }
  | { kind: 'q4_0' }
  /** Codes into a table of levels, times the token's norm. */
  | {
      kind: 'levels';
      codes: GridFragment;
      levels: Float32Array;
      uniform: boolean;
      norms: ScalarsFragment;
      corrected: boolean;
    }
  /** Two parts with a table each, and signs of the residual: a coded vector is [levels x norm, +-gain x residual]. */
  | {
      kind: 'hybrid';
      parts: { codes: GridFragment; first: number; end: number; levels: Float32Array }[];
      norms: ScalarsFragment;
      residual?: { signs: GridFragment; norms: ScalarsFragment; gain: number; matrix: Float32Array };
    }
  /** Codes with a range a group; keys may be divided by their norm first, one a head or one for all heads. */
  | {
      kind: 'affine';
      codes: GridFragment;
      ranges: number;
      group: number;
      axis: 'channel' | 'token';
      norms?: ScalarsFragment & { per: 'head' | 'page' };
    }
  /**
   * Quads as sums of entries of 16-entry books: columns of nibbles in the order of heads, quads and books, each
   * pageTokens / 2 bytes. `counts` is [kv head][quad] columns, `books` [column][entry][4]. A quad is coded greedily, book
   * by book; then each entry is chosen again with the others fixed, `sweeps` times over.
   */
  | { kind: 'additive'; counts: Uint8Array; books: Float32Array; sweeps: number }
  /** Columns of `bits` [kv head][dim] each (none where 0), two's complement, for (code + 1/2) step. */
  | { kind: 'mixed'; bits: Uint8Array; steps: Float32Array }
  /** Each run of `dims` dims an entry of a book [entry][dim]: one book, or one a head and run. */
  | { kind: 'book'; codes: GridFragment; dims: number; books: Float32Array; own: boolean }
  /** Three groups by four thresholds (ascending), nibbles, and lists of outliers after the blocks; see codec/oaken. */
  | {
      kind: 'oaken';
      thresholds: readonly number[];
      codes: GridFragment;
      /** Bytes into the page. */
      ranges: number;
      starts: number;
      dropped: number;
      lists: number;
      /** Of the lists. */
      room: number;
      /** Bytes into a block. */
      counts: number;
    }
  /** A key's largest pairs, as they were before the turn of their token: [token][pair] cos and sin; see codec/tri. */
  | {
      kind: 'spectrum';
      kept: number;
      pairs: number;
      cosines: GridFragment;
      sines: GridFragment;
      scales: ScalarsFragment;
      turns: Float32Array;
    };

/** A grid of codes from byte `offset` of a head's block on, as codec/pack.ts lays it out. */
export interface GridFragment {
  offset: number;
  bits: number;
  order: 'rows' | 'columns' | 'pairs';
}

/** An array of scalars, one a token, from byte `offset` of a head's block (or of the page) on. */
export interface ScalarsFragment {
  offset: number;
  bytes: 2 | 4;
}
