/** Arrays of f16 or f32 scalars in a page (scales, norms, minima): little endian, at any alignment. */
import { fromF16, toF16 } from '../kernel/float.ts';

export interface Scalars {
  name: 'f16' | 'f32';
  bytes: 2 | 4;
  write(array: Uint8Array, index: number, value: number): void;
  read(array: Uint8Array, index: number): number;
}

export const f16: Scalars = {
  name: 'f16',
  bytes: 2,
  write(array, index, value) {
    const code = toF16(value);
    array[2 * index] = code;
    array[2 * index + 1] = code >> 8;
  },
  read: (array, index) => fromF16(array[2 * index] | (array[2 * index + 1] << 8)),
};

/** Far above any activation, and small enough that decoded values do not overflow. */
const MAX_F32 = 1e38;
const float = new Float32Array(1);
const floatBytes = new Uint8Array(float.buffer);

export const f32: Scalars = {
  name: 'f32',
  bytes: 4,
  write(array, index, value) {
    float[0] = Math.max(-MAX_F32, Math.min(MAX_F32, value));
    array.set(floatBytes, 4 * index);
  },
  read(array, index) {
    floatBytes.set(array.subarray(4 * index, 4 * index + 4));
    return float[0];
  },
};
