/** The module of one layer's codecs: sealing, preparing queries, attention on pages, finishing. */
import type { Fragment } from '../../fragment.ts';
import { type I32, i32, type Kernel, moduleBytes } from '../emit.ts';
import { type AttendShape, attendPages, finishAttention, finishScratch, prepareQueries } from './attend.ts';
import { genericKeys, genericValues } from './generic.ts';
import { seal, sealScratch } from './seal.ts';
import { type Tables, unpack } from './unpack.ts';

export interface CodecModule {
  bytes: Uint8Array<ArrayBuffer>;
  /** Names of its kernels. */
  sealKeys: string;
  sealValues: string;
  prepare: string;
  pages: string;
  finish: string;
  /** Bytes of one row's prepared queries of one KV head. */
  queryBytes: number;
}

export interface CodecSide {
  fragment: Fragment;
  tables: Tables;
}

/** Scratch a thread needs for these codecs. */
export function codecScratch(shape: AttendShape, keys: Fragment, values: Fragment): number {
  const { group, pageTokens } = shape;
  const wide = Math.max(keys.codedDim, values.codedDim);
  const attention = 4 * group * pageTokens + 9 * pageTokens * wide;
  return Math.max(attention, finishScratch(shape), sealScratch(shape), 4 * group * shape.headDim);
}

export function codecModule(
  id: string,
  shape: AttendShape,
  keys: CodecSide,
  values: CodecSide,
  scratch: { address: number; stride: number },
  memory: { maxPages: number; shared: boolean },
): CodecModule {
  const own = (_k: Kernel, thread: I32): I32 => i32.add(scratch.address, i32.mul(thread, scratch.stride));
  const { group, pageTokens } = shape;
  const wide = Math.max(keys.fragment.codedDim, values.fragment.codedDim);

  // Keys and values of a page are unpacked side by side behind the scores.
  let base: I32 = 0;
  const tile = (offset: number) => ({
    codes: () => i32.add(base, 4 * group * pageTokens),
    floats: () => i32.add(base, 4 * group * pageTokens + pageTokens * wide + offset),
  });
  const scores = (k: Kernel, thread: I32): I32 => {
    base = k.i32(own(k, thread));
    return base;
  };
  const [UNPACK_KEYS, UNPACK_VALUES] = [0, 1];
  const keyCode = genericKeys(keys.fragment, shape, keys.tables, UNPACK_KEYS, tile(0));
  const valueCode = genericValues(values.fragment, shape, UNPACK_VALUES, tile(4 * pageTokens * wide));
  const name = (what: string) => `${what}:${id}`;
  const kernels = [
    unpack(name('unpackKeys'), keys.fragment, shape, keys.tables),
    unpack(name('unpackValues'), values.fragment, shape, values.tables),
    prepareQueries(name('prepare'), shape, keyCode, own),
    attendPages(name('pages'), shape, keyCode, valueCode, scores),
    finishAttention(name('finish'), shape, values.fragment.codedDim, values.tables, own),
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
    queryBytes: keyCode.queryBytes,
  };
}
