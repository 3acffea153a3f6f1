/** The WASM module of one pair of codecs: seal pages, transform queries, attend pages, combine splits. */
import type { PageLayout } from '../../page-layout.ts';
import { index } from '../emit.ts';
import { fieldOffsets } from '../fields.ts';
import { moduleBytes } from '../module.ts';
import { additiveKeyScratch, additiveKeys } from './additive-keys.ts';
import { additiveValueScratch, additiveValues } from './additive-values.ts';
import { affineValueScratch, affineValues } from './affine-values.ts';
import {
  type AttentionShape,
  attendPages,
  combineSplits,
  combineSplitsScratch,
  type ThreadScratch,
  transformQueries,
} from './attend.ts';
import {
  attendPagesInt8Tiles,
  fitsInt8Tiles,
  hasInt8Keys,
  hasInt8Values,
  int8TileScratch,
} from './attend-int8-tiles.ts';
import { attendPagesTiled, tiledScratch, vectorsOfTiles } from './attend-tiled.ts';
import { columnSumScratch } from './column-sums.ts';
import { type CodecTables, dequantizePage } from './dequantize-page.ts';
import { dequantizedKeys, dequantizedValues, pageRelativeQueryBytes } from './dequantized.ts';
import { f16Keys, f16Values } from './f16-rows.ts';
import { int8DotKeyScratch, int8DotKeys } from './int8-dot-keys.ts';
import { levelValueScratch, levelValues } from './level-values.ts';
import { lookupTableKeyScratch, lookupTableKeys } from './lookup-table-keys.ts';
import { sealPage, sealScratch } from './seal.ts';

/** The module's bytes, and the signatures of its kernels. */
export type CodecModule = ReturnType<typeof codecModule>;

export interface CodecSide {
  layout: PageLayout;
  tables: CodecTables;
}

/** Offsets in a thread's scratch while it attends. Other kernels use their own layout. */
function scratchLayout(shape: AttentionShape, keys: PageLayout, values: PageLayout) {
  const { group, pageTokens, headDim } = shape;
  const maxDim = Math.max(keys.codedDim, values.codedDim);
  const columnValues = columnSumScratch(shape) + Math.max(levelValueScratch(shape), affineValueScratch(values, shape));
  const relativeQueries = Math.max(pageRelativeQueryBytes(keys, shape), additiveKeyScratch(keys, shape));
  const attending = fieldOffsets({
    scores: 4 * group * pageTokens,
    quantizedKeys: Math.max(int8DotKeyScratch(shape), lookupTableKeyScratch(keys, shape).score),
    probabilities: Math.max(columnValues, additiveValueScratch(values, shape)),
    codes: 2 * pageTokens * maxDim,
    keyTile: 4 * pageTokens * maxDim,
    valueTile: 4 * pageTokens * maxDim,
    relativeQueries: 16 * Math.ceil(relativeQueries / 16),
    multiRow: Math.max(tiledScratch(shape, keys.codedDim, values.codedDim), int8TileScratch(shape)),
  });
  // In transformQuery: the scaled queries, then one or all of them after the transform.
  const transformed = 4 * group * headDim;
  const bytes = Math.max(
    attending.bytes,
    transformed + 4 * headDim,
    transformed + lookupTableKeyScratch(keys, shape).transform,
    combineSplitsScratch(shape),
    sealScratch(shape),
  );
  return { ...attending, transformed, bytes };
}

export const codecScratch = (shape: AttentionShape, keys: PageLayout, values: PageLayout): number =>
  scratchLayout(shape, keys, values).bytes;

export function codecModule(
  id: string,
  shape: AttentionShape,
  keys: CodecSide,
  values: CodecSide,
  scratch: { address: number; stride: number },
  memory: { maxPages: number; shared: boolean },
) {
  const offsets = scratchLayout(shape, keys.layout, values.layout);
  const name = (kernel: string) => `${kernel}:${id}`;
  const threadScratch: ThreadScratch = (k, thread) => k.i32(index(scratch.address, scratch.stride, thread));
  // The first kernels of the module, which the others call by index.
  const dequantizeKeys = dequantizePage(name('dequantizeKeys'), keys.layout, shape, keys.tables);
  const dequantizeValues = dequantizePage(name('dequantizeValues'), values.layout, shape, values.tables);
  const floatKeys = dequantizedKeys(
    keys.layout,
    shape,
    keys.tables,
    { index: 0, ...dequantizeKeys.signature },
    { codes: offsets.codes, floats: offsets.keyTile },
    offsets.relativeQueries,
  );
  const floatValues = dequantizedValues(
    values.layout,
    shape,
    { index: 1, ...dequantizeValues.signature },
    { codes: offsets.codes, floats: offsets.valueTile },
  );
  // The specialized key loops need one rotation for all heads and pages.
  const oneRotation = keys.layout.encodeMatrix === undefined;
  const keyEmitter =
    f16Keys(keys.layout, shape, floatKeys) ??
    (oneRotation ? int8DotKeys(keys.layout, shape, keys.tables, offsets.quantizedKeys) : undefined) ??
    (oneRotation
      ? lookupTableKeys(keys.layout, shape, keys.tables, offsets.transformed, offsets.quantizedKeys)
      : undefined) ??
    additiveKeys(keys.layout, shape, keys.tables, offsets.relativeQueries) ??
    floatKeys;
  const valueEmitter =
    f16Values(values.layout, shape, floatValues) ??
    affineValues(values.layout, shape, offsets.probabilities) ??
    levelValues(values.layout, shape, offsets.probabilities) ??
    additiveValues(values.layout, shape, values.tables, offsets.probabilities) ??
    floatValues;
  const isF16 = ({ layout }: CodecSide) => layout.encoding.kind === 'f16';
  const multiRowKeys = isF16(keys) ? floatKeys : keyEmitter;
  const multiRowValues = isF16(values) ? floatValues : valueEmitter;
  const allFloats = multiRowKeys === floatKeys && multiRowValues === floatValues;
  const vectors = allFloats ? vectorsOfTiles(shape, keys.layout.codedDim, values.layout.codedDim) : undefined;
  const multiRowName = name('attendPagesMultiRow');
  const attendMultiRow = vectors
    ? attendPagesTiled(multiRowName, shape, floatKeys, floatValues, threadScratch, offsets.multiRow, vectors)
    : fitsInt8Tiles(shape) && hasInt8Keys(multiRowKeys) && hasInt8Values(multiRowValues)
      ? attendPagesInt8Tiles(multiRowName, shape, multiRowKeys, multiRowValues, threadScratch, offsets.multiRow)
      : attendPages(multiRowName, shape, multiRowKeys, multiRowValues, threadScratch);
  const { layout, tables } = values;
  const transformQuery = transformQueries(name('transformQuery'), shape, keyEmitter, threadScratch);
  const attend = attendPages(name('attendPages'), shape, keyEmitter, valueEmitter, threadScratch, {
    keys: keys.layout,
    values: layout,
  });
  const combine = combineSplits(name('combineSplits'), shape, layout, tables, threadScratch, 2);
  const combineMultiRow = combineSplits(name('combineSplitsMultiRow'), shape, layout, tables, threadScratch, 4);
  const sealKeys = sealPage(name('sealKeys'), keys.layout, shape, keys.tables, threadScratch);
  const sealValues = sealPage(name('sealValues'), layout, shape, tables, threadScratch);
  const attention = [transformQuery, attend, attendMultiRow, combine, combineMultiRow];
  return {
    bytes: moduleBytes([dequantizeKeys, dequantizeValues, ...attention, sealKeys, sealValues], memory),
    sealKeys: sealKeys.signature,
    sealValues: sealValues.signature,
    transformQuery: transformQuery.signature,
    attendPages: attend.signature,
    combineSplits: combine.signature,
    /** For many rows: f16 pages are converted to f32 once for all of them; sinks and tail must be f32. */
    attendPagesMultiRow: attendMultiRow.signature,
    combineSplitsMultiRow: combineMultiRow.signature,
    /** Bytes of one row's transformed queries for one KV head. */
    queryBytes: keyEmitter.queryBytes,
  };
}
