/**
 * The weight types of GGUF files. A row is divided into blocks of `block` values, each `bytes` long. A row holds whole
 * blocks only, so rows can be moved without decoding them.
 */
import { ShapeError } from '../../util/errors.ts';

export interface WeightFormat {
  /** The type's number in a GGUF file. */
  readonly id: number;
  /** Values per block. */
  readonly block: number;
  /** Bytes per block. */
  readonly bytes: number;
}

export const weightFormats = {
  F32: { id: 0, block: 1, bytes: 4 },
  F16: { id: 1, block: 1, bytes: 2 },
  BF16: { id: 30, block: 1, bytes: 2 },
  Q8_0: { id: 8, block: 32, bytes: 34 },
  Q4_0: { id: 2, block: 32, bytes: 18 },
  Q4_1: { id: 3, block: 32, bytes: 20 },
  Q5_0: { id: 6, block: 32, bytes: 22 },
  Q5_1: { id: 7, block: 32, bytes: 24 },
  Q2_K: { id: 10, block: 256, bytes: 84 },
  Q3_K: { id: 11, block: 256, bytes: 110 },
  Q4_K: { id: 12, block: 256, bytes: 144 },
  Q5_K: { id: 13, block: 256, bytes: 176 },
  Q6_K: { id: 14, block: 256, bytes: 210 },
  IQ4_NL: { id: 20, block: 32, bytes: 18 },
  IQ4_XS: { id: 23, block: 256, bytes: 136 },
  // Blocks of 32 values and 17 bytes, taken in pairs: everything here is at an even address.
  MXFP4: { id: 39, block: 64, bytes: 34 },
} as const satisfies Record<string, WeightFormat>;

export type WeightType = keyof typeof weightFormats;

export const weightTypes = Object.keys(weightFormats) as WeightType[];

const byId = new Map<number, WeightType>(weightTypes.map(type => [weightFormats[type].id, type]));

/** The weight type with this number in a GGUF file; undefined if it is not supported. */
export const weightTypeById = (id: number): WeightType | undefined => byId.get(id);

/** Size of `values` values, which must fill whole blocks. */
export function weightBytes(type: WeightType, values: number): number {
  const { block, bytes } = weightFormats[type];
  if (!Number.isSafeInteger(values) || values < 0 || values % block !== 0)
    throw new ShapeError(`${type} stores values in blocks of ${block}; ${values} values do not fill whole blocks.`);
  return (values / block) * bytes;
}
