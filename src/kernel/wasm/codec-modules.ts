/** Kernels and tables of the codecs in use: loaded before the first pass, shared by all layers with the same codecs. */
import { assert } from '../../util/errors.ts';
import { fromFp8 } from '../float.ts';
import type { PageLayout } from '../page-layout.ts';
import type { AdditiveEncoding, AdditiveTables } from './kernels/additive.ts';
import { additiveKeyTables } from './kernels/additive-key-tables.ts';
import { additiveValueTables } from './kernels/additive-values.ts';
import type { AttentionShape } from './kernels/attend.ts';
import { type CodecModule, codecModule, codecScratch } from './kernels/codec-module.ts';
import { type CodecTables, RESIDUAL_SIGNS } from './kernels/dequantize-page.ts';
import { COLUMN_ENTRY_BYTES } from './kernels/mixed-bit-columns.ts';
import { uploadCodebooks } from './kernels/product-codebook.ts';
import { withHalfNorms } from './kernels/quad-codebook.ts';
import type { Heap, MemoryLimits } from './memory.ts';
import type { Pool } from './pool.ts';

export interface CodecModules {
  /** Compiles the kernels of a pair of codecs, unless it has them. */
  load(keys: PageLayout, values: PageLayout): Promise<void>;
  moduleOf(keys: PageLayout, values: PageLayout): CodecModule;
}

export function createCodecModules(heap: Heap, pool: Pool, shape: AttentionShape, limits: MemoryLimits): CodecModules {
  const modules = new Map<PageLayout, Map<PageLayout, { module: CodecModule; loaded: Promise<void> }>>();
  const tables = new Map<PageLayout, CodecTables>();
  let count = 0;
  let scratch = { address: 0, stride: 0 };

  /** Kernels keep nothing in their scratch between calls, so modules share one: it is allocated anew only for a larger module. */
  const scratchOf = (keys: PageLayout, values: PageLayout) => {
    const stride = Math.ceil(codecScratch(shape, keys, values) / 64) * 64 + 64;
    if (stride > scratch.stride) scratch = { address: heap.alloc(stride * pool.threads), stride };
    return scratch;
  };

  const upload = (data: Float32Array) => {
    const address = heap.alloc(4 * data.length);
    new Float32Array(heap.memory.buffer, address, data.length).set(data);
    return address;
  };

  /** See kernels/additive.ts. */
  const uploadAdditive = (
    encoding: AdditiveEncoding,
    matrix: Float32Array,
    blocks: readonly number[] = [shape.headDim],
  ): AdditiveTables => {
    const { booksPerQuad, books } = encoding;
    const uploadBytes = (data: Uint8Array | Int32Array) => upload(new Float32Array(data.buffer));
    const quads = shape.headDim / 4;
    const firstColumns = Array.from({ length: shape.kvHeads + 1 }, (_, head) =>
      booksPerQuad.subarray(0, head * quads).reduce((sum, count) => sum + count, 0),
    );
    const keys = additiveKeyTables(encoding, matrix, blocks, shape.pageTokens);
    const values = additiveValueTables(encoding);
    return {
      columnCounts: uploadBytes(Int32Array.from(booksPerQuad)),
      firstColumns: uploadBytes(Int32Array.from(firstColumns)),
      books: upload(withHalfNorms(books)),
      keyBooks: uploadBytes(keys.keyBooks),
      firstKeyBooks: uploadBytes(keys.firstKeyBooks),
      queryMaps: upload(keys.queryMaps),
      valueBooks: uploadBytes(values.bytes),
      valueSteps: upload(values.steps),
    };
  };

  /** See kernels/mixed-bit-columns.ts. */
  const uploadMixed = ({ bitsPerDim, steps }: PageLayout['encoding'] & { kind: 'mixed' }): number => {
    const data = new DataView(new ArrayBuffer(COLUMN_ENTRY_BYTES * bitsPerDim.length));
    let offset = 0;
    bitsPerDim.forEach((width, i) => {
      data.setInt32(COLUMN_ENTRY_BYTES * i, width, true);
      data.setInt32(COLUMN_ENTRY_BYTES * i + 4, offset, true);
      data.setFloat32(COLUMN_ENTRY_BYTES * i + 8, steps[i], true);
      offset += (shape.pageTokens * width) / 8;
    });
    return upload(new Float32Array(data.buffer));
  };

  const tablesOf = (layout: PageLayout): CodecTables => {
    const known = tables.get(layout);
    if (known) return known;
    const { encoding } = layout;
    const created: CodecTables = {
      queryMatrix: layout.queryMatrix && upload(layout.queryMatrix),
      encodeMatrix: layout.encodeMatrix && upload(layout.encodeMatrix),
      mean: layout.mean && upload(layout.mean),
      levels: [],
    };
    if (encoding.kind === 'levels') created.levels = [upload(encoding.levels)];
    if (encoding.kind === 'hybrid') {
      created.levels = [...encoding.parts.map(({ levels }) => levels), RESIDUAL_SIGNS].map(upload);
      created.residual = encoding.residual && upload(encoding.residual.matrix);
    }
    if (encoding.kind === 'fp8')
      created.fp8 = upload(Float32Array.from({ length: 256 }, (_, code) => fromFp8(code) || 0));
    if (encoding.kind === 'additive')
      created.additive = uploadAdditive(encoding, layout.queryMatrix!, layout.diagonalBlocks);
    if (encoding.kind === 'mixed') created.mixedColumns = uploadMixed(encoding);
    if (encoding.kind === 'spectrum') created.tokenRope = upload(encoding.ropeCosSin);
    if (encoding.kind === 'book') created.books = uploadCodebooks(encoding, upload);
    tables.set(layout, created);
    return created;
  };

  return {
    async load(keys, values) {
      const byValues = modules.get(keys) ?? new Map();
      modules.set(keys, byValues);
      const known = byValues.get(values);
      if (known) return known.loaded;
      const side = (layout: PageLayout) => ({ layout, tables: tablesOf(layout) });
      const module = codecModule(String(count++), shape, side(keys), side(values), scratchOf(keys, values), limits);
      const loaded = pool.load(module.bytes);
      byValues.set(values, { module, loaded });
      return loaded;
    },
    moduleOf(keys, values) {
      const known = modules.get(keys)?.get(values);
      assert(known, 'a codec is used before its kernels are loaded');
      return known.module;
    },
  };
}
