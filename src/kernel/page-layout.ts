/**
 * The byte layout of a codec's pages, as data. Devices that cannot call the codec (wasm, webgpu) generate their kernels
 * from it. The codec's TypeScript code is the reference; devices are tested against it.
 */
export interface PageLayout {
  /** Length of a coded vector. */
  codedDim: number;
  /**
   * [codedDim][headDim]: transforms a query into the domain of the codes; its transpose transforms sums of coded
   * vectors back. Absent if vectors are coded without a transform. Codecs with one matrix per KV head concatenate them.
   */
  queryMatrix?: Float32Array;
  /** The matrices are block diagonal, with blocks of these sizes. */
  diagonalBlocks?: readonly number[];
  /** [codedDim][headDim]: transforms vectors into the domain of the codes, if `queryMatrix` is not a rotation. */
  encodeMatrix?: Float32Array;
  /** Set if keys are page-relative: the RoPE frequency of each pair, in radians per position. */
  ropeFrequencies?: Float64Array;
  /** [kv head][headDim]: subtracted before coding. */
  mean?: Float32Array;
  /** Bytes before the first head's block. */
  sharedBytes: number;
  /** Bytes per head's block. */
  blockBytes: number;
  /** [kv head][headDim] f16 at this byte of the page: the mean of its vectors, subtracted after the transform. */
  meansOffset?: number;
  encoding: PageEncoding;
}

/** Entries of a quad's first book that encoding starts from, and books of a quad at most (codec/mead/additive.ts). */
export const ADDITIVE_STARTS = 4;
export const MAX_ADDITIVE_BOOKS = 6;

/** Offsets are in bytes: from the start of a head's block, unless noted otherwise. */
export type PageEncoding =
  /** Rows of floats. */
  | { kind: 'f16' }
  | { kind: 'fp8' }
  /** Rows of llama.cpp's blocks of 32 values. */
  | { kind: 'q8_0' }
  | { kind: 'q4_0' }
  /** Scalar quantization: a code is an index into `levels`, multiplied by the token's norm. */
  | {
      kind: 'levels';
      codes: CodeGrid;
      levels: Float32Array;
      /** The levels are evenly spaced. */
      uniform: boolean;
      norms: ScalarArray;
      /** Norms are divided by the norm of the decoded direction. */
      normCorrection: boolean;
    }
  /**
   * Two ranges of dims with different levels, and sign bits of the residual. A coded vector is
   * [levels x norm, +-gain x residual norm].
   */
  | {
      kind: 'hybrid';
      parts: { codes: CodeGrid; firstDim: number; endDim: number; levels: Float32Array }[];
      norms: ScalarArray;
      residual?: { signs: CodeGrid; norms: ScalarArray; gain: number; matrix: Float32Array };
    }
  /** Group-wise affine quantization: f16 min and step per group. Keys may be divided by their norm first. */
  | {
      kind: 'affine';
      codes: CodeGrid;
      rangesOffset: number;
      groupSize: number;
      axis: 'channel' | 'token';
      /** One norm per token and head, or one per token across heads. */
      norms?: ScalarArray & { per: 'head' | 'page' };
    }
  /**
   * Additive quantization: four adjacent dims (a quad) are the sum of one entry from each of the quad's 16-entry
   * codebooks. Columns of nibbles, pageTokens / 2 bytes each, ordered by head, quad and book. `booksPerQuad` is
   * [kv head][quad], `books` is [column][entry][4]. Encoding is greedy, book by book, from each of the four nearest
   * entries of the first book; the smallest error wins.
   */
  | { kind: 'additive'; booksPerQuad: Uint8Array; books: Float32Array }
  /** A column of `bitsPerDim` [kv head][dim] bits per dim (none if 0): two's complement, value (code + 1/2) step. */
  | { kind: 'mixed'; bitsPerDim: Uint8Array; steps: Float32Array }
  /** Product quantization: each sub-vector is an entry of a codebook [entry][dim]. */
  | {
      kind: 'book';
      codes: CodeGrid;
      subvectorDims: number;
      books: Float32Array;
      /** One codebook per head and sub-vector; otherwise one for all. */
      bookPerSubvector: boolean;
    }
  /** Three groups of values, split by four ascending thresholds; nibbles, and outlier lists after the blocks. See codec/oaken. */
  | {
      kind: 'oaken';
      thresholds: readonly number[];
      codes: CodeGrid;
      /** These four are from the start of the page. */
      rangesOffset: number;
      listStartsOffset: number;
      droppedOffset: number;
      listsOffset: number;
      /** Bytes. */
      listsCapacity: number;
      listCountsOffset: number;
    }
  /** The RoPE pairs of a key with the most energy, as they were before RoPE. See codec/tri. */
  | {
      kind: 'spectrum';
      keptPairs: number;
      pairsOffset: number;
      cosines: CodeGrid;
      sines: CodeGrid;
      scales: ScalarArray;
      /** [token][pair]: cos and sin of the rotation from the page's start to the token. */
      ropeCosSin: Float32Array;
    };

/** Whether the encoder searches for the nearest code: the error that remains is then known at no cost. */
export const tracksError = ({ kind }: PageEncoding): boolean => kind === 'additive' || kind === 'book';

/** A grid of codes at byte `offset` of a head's block, packed as in codec/pack.ts. */
export interface CodeGrid {
  offset: number;
  bits: number;
  order: 'rows' | 'columns' | 'pairs';
}

/** One scalar per token, at byte `offset` of a head's block (or of the page). */
export interface ScalarArray {
  offset: number;
  bytes: 2 | 4;
}

/** What the size of a page depends on, in addition to its layout. */
export interface PageShape {
  headDim: number;
  kvHeads: number;
  pageTokens: number;
}
