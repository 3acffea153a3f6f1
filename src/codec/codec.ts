/**
 * The contract. A codec turns one layer's keys, or its values, into packed pages and back, and lets attention read
 * them packed. It is made for one side and one shape, holds no state, and is named by its spec string.
 *
 * Vectors come in and go out as [token][kv head][dim]. A page holds `pageTokens` tokens of all KV heads; when fewer
 * are written, the rest of the page is zero bytes. Every page of a codec has the same length, `pageBytes`; where lists
 * at its end may be shorter than their room, `encode` says how much of it is used, and the rest is zero too.
 */
import type { Outliers } from '../kernel/device.ts';
import type { Fragment } from '../kernel/fragment.ts';
import type { KeyReader, ValueReader } from '../kernel/js/attend.ts';
import type { Field } from './layout.ts';

export interface Shape {
  headDim: number;
  kvHeads: number;
  pageTokens: number;
  /** The angle by which each adjacent pair of a key's dims turns from one position to the next; absent without RoPE. */
  turn?: Float64Array;
}

export type Side = 'key' | 'value';

interface PageCodec {
  /** This side's own spec, e.g. `tq4-nc`. */
  readonly spec: string;
  readonly shape: Shape;
  readonly pageBytes: number;
  /** The bytes of a page, field by field, for people; and for devices. */
  readonly fields: readonly Field[];
  readonly fragment: Fragment;
  /** Most squared error over squared norm that Gaussian vectors may suffer. */
  readonly budget: number;
  /** Whether encode(decode(page)) gives the same bytes again, for ordinary data. */
  readonly stable: boolean;
  /** Writes a page of which token 0 stands at position `start`; returns the bytes used. */
  encode(x: Float32Array, tokens: number, page: Uint8Array, start: number): number;
  decode(page: Uint8Array, tokens: number, out: Float32Array, start: number): void;
  /** Of a page as any device sealed it; absent where a codec has no lists of outliers. */
  outliers?(page: Uint8Array): Outliers;
}

export interface KeyCodec extends PageCodec, KeyReader {}
export interface ValueCodec extends PageCodec, ValueReader {}
export type Codec = KeyCodec & ValueCodec;

/** Code bits a value: everything a sealed page stores, over its values; room for lists counts in full. */
export function codeBits({ pageBytes, shape }: PageCodec): number {
  return (8 * pageBytes) / (shape.pageTokens * shape.kvHeads * shape.headDim);
}
