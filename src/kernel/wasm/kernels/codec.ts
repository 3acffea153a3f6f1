/** The module of one layer's codecs: sealing, preparing queries, attention on pages, finishing. */
import type { Fragment } from '../../fragment.ts';
import { type I32, i32 } from '../emit.ts';
import { type Kernel, moduleBytes } from '../module.ts';
import { additiveKeyScratch, additiveKeys } from './additive-keys.ts';
import { additiveValueScratch, additiveValues } from './additive-values.ts';
import { type AttendShape, attendPages, finishAttention, finishScratch, prepareQueries } from './attend.ts';
import { attendPagesMany, fitsTiles, manyScratch } from './attend-many.ts';
import { genericKeys, genericValues, turnedBytes } from './generic.ts';
import { halfKeys, halfValues } from './half.ts';
import { linearKeys, linearScratch, linearValueScratch, linearValues } from './linear.ts';
import { seal, sealScratch } from './seal.ts';
import { sumScratch } from './sums.ts';
import { tableKeyScratch, tableKeys } from './table-keys.ts';
import { tableValueScratch, tableValues } from './tables.ts';
import { type Tables, unpack } from './unpack.ts';

export interface CodecModule {
  bytes: Uint8Array<ArrayBuffer>;
  /** Names of its kernels. */
  sealKeys: string;
  sealValues: string;
  prepare: string;
  pages: string;
  finish: string;
  /** The same for many rows: f16 pages are read as floats once for all of them, sinks and tail are f32 already. */
  pagesMany: string;
  finishMany: string;
  /** Bytes of one row's prepared queries of one KV head. */
  queryBytes: number;
}

export interface CodecSide {
  fragment: Fragment;
  tables: Tables;
}

/**
 * A thread's scratch while it attends: scores, int8 queries, integer weights, two bytes a code of a page, keys of a
 * page as floats, values of a page as floats, queries turned to a page's start, what many rows need beside. Preparing,
 * finishing and sealing lay it out in their own way.
 */
function scratchLayout(shape: AttendShape, keys: Fragment, values: Fragment) {
  const { group, pageTokens, headDim } = shape;
  const wide = Math.max(keys.codedDim, values.codedDim);
  const integers = 4 * group * pageTokens;
  const sums = integers + Math.max(linearScratch(shape), tableKeyScratch(keys, shape).score);
  const inColumns = sumScratch(shape) + Math.max(tableValueScratch(shape), linearValueScratch(values, shape));
  const codes = sums + Math.max(inColumns, additiveValueScratch(values, shape));
  const keyTile = codes + 2 * pageTokens * wide;
  const valueTile = keyTile + 4 * pageTokens * wide;
  const turned = valueTile + 4 * pageTokens * wide;
  const many = turned + 16 * Math.ceil(Math.max(turnedBytes(keys, shape), additiveKeyScratch(keys, shape)) / 16);
  const end = many + manyScratch(shape, keys.codedDim, values.codedDim);
  // While preparing: scaled queries, then one of them in the codec's domain, or all.
  const spare = 4 * group * headDim;
  const bytes = Math.max(
    end,
    spare + 4 * headDim,
    spare + tableKeyScratch(keys, shape).prepare,
    finishScratch(shape),
    sealScratch(shape),
  );
  return { integers, sums, codes, keyTile, valueTile, turned, many, spare, bytes };
}

export const codecScratch = (shape: AttendShape, keys: Fragment, values: Fragment): number =>
  scratchLayout(shape, keys, values).bytes;

export function codecModule(
  id: string,
  shape: AttendShape,
  keys: CodecSide,
  values: CodecSide,
  scratch: { address: number; stride: number },
  memory: { maxPages: number; shared: boolean },
): CodecModule {
  const at = scratchLayout(shape, keys.fragment, values.fragment);
  // The scratch of the thread that runs the kernel being written.
  let base: I32 = 0;
  const own = (k: Kernel, thread: I32): I32 => {
    base = k.i32(i32.add(scratch.address, i32.mul(thread, scratch.stride)));
    return base;
  };
  const place = (offset: number) => () => i32.add(base, offset);
  const tile = (offset: number) => ({ codes: place(at.codes), floats: place(offset) });
  const [UNPACK_KEYS, UNPACK_VALUES] = [0, 1];
  const anyKeys = genericKeys(keys.fragment, shape, keys.tables, UNPACK_KEYS, tile(at.keyTile), place(at.turned));
  const anyValues = genericValues(values.fragment, shape, UNPACK_VALUES, tile(at.valueTile));
  // Loops of their own know one rotation for all heads and pages; a map a head is the generic one's.
  const oneRotation = keys.fragment.encodeMatrix === undefined;
  const keyCode =
    halfKeys(keys.fragment, shape, anyKeys) ??
    (oneRotation ? linearKeys(keys.fragment, shape, keys.tables, place(at.integers)) : undefined) ??
    (oneRotation ? tableKeys(keys.fragment, shape, keys.tables, place(at.spare), place(at.integers)) : undefined) ??
    additiveKeys(keys.fragment, shape, keys.tables, place(at.turned)) ??
    anyKeys;
  const valueCode =
    halfValues(values.fragment, shape, anyValues) ??
    linearValues(values.fragment, shape, place(at.sums)) ??
    tableValues(values.fragment, shape, place(at.sums)) ??
    additiveValues(values.fragment, shape, values.tables, place(at.sums)) ??
    anyValues;
  const isHalf = ({ fragment }: CodecSide) => fragment.page.kind === 'f16';
  const manyKeys = isHalf(keys) ? anyKeys : keyCode;
  const manyValues = isHalf(values) ? anyValues : valueCode;
  const name = (what: string) => `${what}:${id}`;
  const inFloats = manyKeys === anyKeys && manyValues === anyValues && fitsTiles(shape);
  const pagesMany = inFloats
    ? attendPagesMany(name('pagesMany'), shape, anyKeys, anyValues, (k, thread) => {
        const few = own(k, thread);
        return { few, many: k.i32(i32.add(few, at.many)) };
      })
    : attendPages(name('pagesMany'), shape, manyKeys, manyValues, own);
  const kernels = [
    unpack(name('unpackKeys'), keys.fragment, shape, keys.tables),
    unpack(name('unpackValues'), values.fragment, shape, values.tables),
    prepareQueries(name('prepare'), shape, keyCode, own),
    attendPages(name('pages'), shape, keyCode, valueCode, own),
    pagesMany,
    finishAttention(name('finish'), shape, values.fragment, values.tables, own, 2),
    finishAttention(name('finishMany'), shape, values.fragment, values.tables, own, 4),
    seal(name('sealKeys'), keys.fragment, shape, keys.tables, own),
    seal(name('sealValues'), values.fragment, shape, values.tables, own),
  ];
  return {
    bytes: moduleBytes(kernels, memory),
    sealKeys: name('sealKeys'),
    sealValues: name('sealValues'),
    prepare: name('prepare'),
    pages: name('pages'),
    finish: name('finish'),
    pagesMany: name('pagesMany'),
    finishMany: name('finishMany'),
    queryBytes: keyCode.queryBytes,
  };
}
