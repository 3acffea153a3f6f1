/**
 * Shortens an input to some hundred bytes with the same CRC, by XOR alone.
 *
 * A CRC is the remainder of a polynomial over GF(2): a multiple of the generator can be added to the input without
 * changing it. Multiples with few terms, such as 1 + x^8a + x^8b + x^8c, are found by search. Such a one cancels a byte
 * when the byte is XORed into those that follow at the distances a, b and c, and it cancels 64 bytes at once if no
 * distance is shorter. Byte by byte only what is left at the end has to be divided.
 */
import { i32, type V128, v128 } from '../kernel/wasm/emit.ts';
import { instantiate, Kernel, moduleBytes, PAGE_BYTES, signature } from '../kernel/wasm/module.ts';

/**
 * Distances in bytes. The shortest multiple of CRC-32C with four terms reaches 5275 bytes. These reach a little further,
 * and their distances are longer: loads do not wait for stores. What is left is shortened with one of six terms.
 */
const LONG = [1747, 2830, 5321];
const SHORT = [154, 177, 183, 258, 290];

const BLOCK = 64;
const VECTORS = [0, 16, 32, 48];
const roundUp = (bytes: number) => Math.ceil(bytes / BLOCK) * BLOCK;

/** Memory: bytes that were cancelled before, the input in pieces that stay in the L1 cache, and what is left. */
const PIECE_BYTES = 2 ** 14;
const LEFT = roundUp(Math.max(...LONG)) + PIECE_BYTES;

/** Shortens an input that starts with the register `crc`. The result is valid until the next call. */
type Fold = (crc: number, bytes: Uint8Array) => Uint8Array;

/** Undefined where there is no WASM SIMD. */
export function createFold(): Fold | undefined {
  if (typeof WebAssembly === 'undefined') return undefined;
  const kernels = { long: foldKernel('long', LONG), short: foldKernel('short', SHORT) };
  if (!WebAssembly.validate(moduleBytes(Object.values(kernels), { maxPages: 1, shared: false }))) return undefined;
  const { memory, calls } = instantiate(kernels, PAGE_BYTES);
  const bytes = new Uint8Array(memory.buffer);
  const long = { reach: Math.max(...LONG), run: calls.long };
  const short = { reach: Math.max(...SHORT), run: calls.short };

  const shorten = (multiple: typeof long, crc: number, input: Uint8Array): Uint8Array => {
    const { reach, run } = multiple;
    const start = roundUp(reach);
    const cancelled = BLOCK * Math.max(0, Math.floor((input.length - reach) / BLOCK));
    bytes.fill(0, 0, start);
    // From here it reaches the first bytes of the input, and nothing else.
    for (let k = 0; k < 4; k++) bytes[start - reach + k] = crc >>> (8 * k);
    for (let at = 0; at < cancelled; at += PIECE_BYTES) {
      const piece = input.subarray(at, Math.min(at + PIECE_BYTES, cancelled));
      bytes.set(piece, start);
      run({ bytes: piece.length, shift: 0 });
      bytes.copyWithin(0, piece.length, piece.length + start);
    }
    // What is left is not cancelled: it only receives.
    const left = bytes.subarray(LEFT, LEFT + input.length - cancelled);
    left.set(input.subarray(cancelled));
    bytes.fill(0, start, start + roundUp(left.length));
    run({ bytes: left.length, shift: LEFT - start });
    return left;
  };
  return (crc, input) => {
    return input.length < 2 * long.reach ? shorten(short, crc, input) : shorten(short, 0, shorten(long, crc, input));
  };
}

/**
 * XORs into each block from `start + shift` on what is at the distances before it, without the shift.
 */
function foldKernel(name: string, distances: readonly number[]) {
  const start = roundUp(Math.max(...distances));
  const k = new Kernel(signature(name, 'bytes', 'shift'));
  k.forAddresses(0, k.params.bytes, BLOCK, address => {
    const target = k.i32(i32.add(address, k.params.shift));
    const sums = VECTORS.map(offset => {
      const near = distances.map(distance => v128.load(address, start - distance + offset));
      return k.v128(near.reduce((sum: V128, vector) => v128.xor(sum, vector), v128.load(target, start + offset)));
    });
    sums.forEach((sum, i) => {
      k.do(v128.store(target, sum, start + VECTORS[i]));
    });
  });
  return k;
}
