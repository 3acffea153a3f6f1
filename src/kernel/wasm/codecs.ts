/** Kernels and tables of the codecs in use: made when a layer first asks for them, shared by all layers alike. */
import { fromFp8 } from '../float.ts';
import type { Fragment } from '../fragment.ts';
import type { Additive, AdditiveTables } from './kernels/additive.ts';
import { keyTables } from './kernels/additive-key-tables.ts';
import { valueTables } from './kernels/additive-values.ts';
import type { AttendShape } from './kernels/attend.ts';
import { placeBooks } from './kernels/book.ts';
import { type CodecModule, codecModule, codecScratch } from './kernels/codec.ts';
import { COLUMN_BYTES } from './kernels/mixed.ts';
import { withHalves } from './kernels/quads.ts';
import type { Tables } from './kernels/unpack.ts';
import type { Heap, Limits } from './memory.ts';
import type { Pool } from './pool.ts';

export interface Codecs {
  moduleOf(keys: Fragment, values: Fragment): CodecModule;
}

export function createCodecs(heap: Heap, pool: Pool, shape: AttendShape, limits: Limits): Codecs {
  const modules = new Map<Fragment, Map<Fragment, CodecModule>>();
  const tables = new Map<Fragment, Tables>();
  let count = 0;

  const place = (data: Float32Array) => {
    const address = heap.alloc(4 * data.length);
    new Float32Array(heap.memory.buffer, address, data.length).set(data);
    return address;
  };

  /** See kernels/additive.ts. */
  const placeAdditive = (
    page: Additive,
    matrix: Float32Array,
    blocks: readonly number[] = [shape.headDim],
  ): AdditiveTables => {
    const { counts, books, sweeps } = page;
    const bytes = (data: Uint8Array | Int32Array) => place(new Float32Array(data.buffer));
    const quads = shape.headDim / 4;
    const firsts = Array.from({ length: shape.kvHeads + 1 }, (_, head) =>
      counts.subarray(0, head * quads).reduce((sum, count) => sum + count, 0),
    );
    const keys = keyTables(page, matrix, blocks, shape.pageTokens);
    const values = valueTables(page);
    return {
      counts: bytes(Int32Array.from(counts)),
      firsts: bytes(Int32Array.from(firsts)),
      books: place(withHalves(books)),
      sweeps,
      dots: bytes(keys.dots),
      dotFirsts: bytes(keys.firsts),
      maps: place(keys.maps),
      bytes: bytes(values.bytes),
      steps: place(values.steps),
    };
  };

  /** See kernels/mixed.ts. */
  const placeMixed = ({ bits, steps }: Fragment['page'] & { kind: 'mixed' }): number => {
    const data = new DataView(new ArrayBuffer(COLUMN_BYTES * bits.length));
    let offset = 0;
    bits.forEach((width, i) => {
      data.setInt32(COLUMN_BYTES * i, width, true);
      data.setInt32(COLUMN_BYTES * i + 4, offset, true);
      data.setFloat32(COLUMN_BYTES * i + 8, steps[i], true);
      offset += (shape.pageTokens * width) / 8;
    });
    return place(new Float32Array(data.buffer));
  };

  const tablesOf = (fragment: Fragment): Tables => {
    const known = tables.get(fragment);
    if (known) return known;
    const { page } = fragment;
    const levels = page.kind === 'levels' ? [page.levels] : page.kind === 'hybrid' ? page.parts.map(p => p.levels) : [];
    const made: Tables = {
      matrix: fragment.matrix && place(fragment.matrix),
      encodeMatrix: fragment.encodeMatrix && place(fragment.encodeMatrix),
      mean: fragment.mean && place(fragment.mean),
      levels: levels.map(place),
      residual: page.kind === 'hybrid' && page.residual ? place(page.residual.matrix) : undefined,
      fp8: page.kind === 'fp8' ? place(Float32Array.from({ length: 256 }, (_, code) => fromFp8(code) || 0)) : undefined,
      additive: page.kind === 'additive' ? placeAdditive(page, fragment.matrix!, fragment.blocks) : undefined,
      columns: page.kind === 'mixed' ? placeMixed(page) : undefined,
      turns: page.kind === 'spectrum' ? place(page.turns) : undefined,
      books: page.kind === 'book' ? placeBooks(page, place) : undefined,
    };
    tables.set(fragment, made);
    return made;
  };

  return {
    moduleOf(keys, values) {
      const byValues = modules.get(keys) ?? new Map<Fragment, CodecModule>();
      modules.set(keys, byValues);
      const known = byValues.get(values);
      if (known) return known;
      const stride = Math.ceil(codecScratch(shape, keys, values) / 64) * 64 + 64;
      const scratch = { address: heap.alloc(stride * pool.threads), stride };
      const side = (fragment: Fragment) => ({ fragment, tables: tablesOf(fragment) });
      const module = codecModule(String(count++), shape, side(keys), side(values), scratch, limits);
      pool.load(module.bytes);
      byValues.set(values, module);
      return module;
    },
  };
}
