/**
 * The codec interface. A codec packs one layer's keys or values into pages, unpacks them, and computes attention on the
 * packed bytes. It is created for one side and one shape, is stateless, and is named by its spec string.
 *
 * Vectors are [token][kv head][dim]. A page holds `pageTokens` tokens of all KV heads; unused tokens are zero bytes. Every
 * page of a codec has the same length, `pageBytes`. Lists of variable length are at its end, padded with zeros; `encode`
 * returns the number of bytes used.
 */
import type { PageCodec as DevicePageCodec } from '../kernel/device.ts';
import type { KeyReader, ValueReader } from '../kernel/page-readers.ts';
import type { Field } from './page-fields.ts';

export interface Shape {
  headDim: number;
  kvHeads: number;
  pageTokens: number;
  /** RoPE frequency of each adjacent pair of a key's dims, in radians per position; absent without RoPE. */
  ropeFrequencies?: Float64Array;
}

export type Side = 'key' | 'value';
export const SIDES: readonly Side[] = ['key', 'value'];

export interface PageCodec extends DevicePageCodec {
  /** Spec of this side, e.g. `tq4-raw`. */
  readonly spec: string;
  readonly shape: Shape;
  /** The fields of a page, for documentation. */
  readonly fields: readonly Field[];
  /** Maximum relative squared error on Gaussian vectors. */
  readonly budget: number;
  /** What its paper proves of the error on Gaussian vectors, if anything. */
  readonly bounds?: DistortionBounds;
  /** Set if it uses defaults in place of what calibration would measure: which, and the command. */
  readonly notice?: string;
  /** Whether encode(decode(page)) reproduces the page, for ordinary data. */
  readonly isIdempotent: boolean;
  /** Mean squared error of a token of the calibration text, in the domain of the codes; absent if it was not measured. */
  readonly expectedError?: number;
}

/** Bounds of an expected error, apart from the rounding of norms. */
export interface DistortionBounds {
  /**
   * `mse`: the squared error over the squared norm. `innerProduct`: the squared error of inner products with random unit
   * vectors, times the number of dims, over the squared norm.
   */
  measure: 'mse' | 'innerProduct';
  /** No codec with as many bits has a smaller error on all vectors. */
  lower: number;
  /** This codec's error is at most that. */
  upper: number;
}

export interface KeyCodec extends PageCodec, KeyReader {}
export interface ValueCodec extends PageCodec, ValueReader {}
export type Codec = KeyCodec & ValueCodec;

/** Code bits per value: all bytes of a sealed page, including the full capacity of lists. */
export function codeBits({ pageBytes, shape }: PageCodec): number {
  return (8 * pageBytes) / (shape.pageTokens * shape.kvHeads * shape.headDim);
}
