/** Dequantizes weights to floats: the reference for the matmul kernels. */
import { ShapeError } from '../../util/errors.ts';
import { fromBf16, fromF16 } from '../float.ts';
import { createSplitBlock, groupSize, halvesOf, isQuantized, splitters } from './split.ts';
import { type WeightType, weightBytes, weightFormats } from './types.ts';

/** Decodes `bytes` into `out`. The lengths must match. */
export function dequantize(type: WeightType, bytes: Uint8Array, out: Float32Array): void {
  const needed = weightBytes(type, out.length);
  if (bytes.length !== needed)
    throw new ShapeError(`${out.length} ${type} values need ${needed} bytes; got ${bytes.length}.`);
  if (type === 'F32') new Uint8Array(out.buffer, out.byteOffset, needed).set(bytes);
  else if (!isQuantized(type)) {
    const decode = type === 'F16' ? fromF16 : fromBf16;
    for (let i = 0; i < out.length; i++) out[i] = decode(bytes[2 * i] | (bytes[2 * i + 1] << 8));
  } else {
    const { block, bytes: size } = weightFormats[type];
    const group = groupSize(type);
    const split = createSplitBlock(type);
    const halves = halvesOf(bytes);
    for (let at = 0, to = 0; at < halves.length; at += size / 2, to += block) {
      splitters[type](halves, at, split);
      for (let i = 0; i < block; i++) {
        const g = Math.floor(i / group);
        out[to + i] = split.scales[g] * split.codes[i] + split.mins[g];
      }
    }
  }
}
