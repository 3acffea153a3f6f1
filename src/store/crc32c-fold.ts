/**
 * Shortens an input to some hundred bytes with the same CRC, by XOR alone.
 *
 * A CRC is the remainder of a polynomial over GF(2): a multiple of the generator can be added to the input without
 * changing it. Multiples with few terms, such as 1 + x^8a + x^8b + x^8c, are found by search. Such a one cancels a byte
 * when the byte is XORed into those that follow at the distances a, b and c, and it cancels 64 bytes at once if no
 * distance is shorter. Byte by byte only what is left at the end has to be divided.
 */
import { i32, type V128, v128 } from '../kernel/wasm/emit.ts';
import { Kernel, moduleBytes } from '../kernel/wasm/module.ts';

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
  const code = moduleBytes([foldKernel('long', LONG), foldKernel('short', SHORT)], { maxPages: 1, shared: false });
  if (!WebAssembly.validate(code)) return undefined;
  const memory = new WebAssembly.Memory({ initial: 1, maximum: 1 });
  const { exports } = new WebAssembly.Instance(new WebAssembly.Module(code), { env: { memory } });
  const bytes = new Uint8Array(memory.buffer);
  const multiples = Object.entries({ long: LONG, short: SHORT }).map(([name, distances]) => ({
    reach: Math.max(...distances),
    run: exports[name] as (bytes: number, shift: number) => void,
  }));

  const shorten = (multiple: (typeof multiples)[number], crc: number, input: Uint8Array): Uint8Array => {
    const { reach, run } = multiple;
    const start = roundUp(reach);
    const cancelled = BLOCK * Math.max(0, Math.floor((input.length - reach) / BLOCK));
    bytes.fill(0, 0, start);
    // From here it reaches the first bytes of the input, and nothing else.
    for (let k = 0; k < 4; k++) bytes[start - reach + k] = crc >>> (8 * k);
    for (let at = 0; at < cancelled; at += PIECE_BYTES) {
      const piece = input.subarray(at, Math.min(at + PIECE_BYTES, cancelled));
      bytes.set(piece, start);
      run(piece.length, 0);
      bytes.copyWithin(0, piece.length, piece.length + start);
    }
    // What is left is not cancelled: it only receives.
    const left = bytes.subarray(LEFT, LEFT + input.length - cancelled);
    left.set(input.subarray(cancelled));
    bytes.fill(0, start, start + roundUp(left.length));
    run(left.length, LEFT - start);
    return left;
  };
  return (crc, input) => {
    const [long, short] = multiples;
    return input.length < 2 * long.reach ? shorten(short, crc, input) : shorten(short, 0, shorten(long, crc, input));
  };
}

/**
 * (bytes, shift): XORs into each block from `start + shift` on what is at the distances before it, without the shift.
 */
function foldKernel(name: string, distances: readonly number[]): Kernel {
  const start = roundUp(Math.max(...distances));
  const k = new Kernel(name, ['i32', 'i32']);
  k.forAddresses(0, k.i32Param(0), BLOCK, address => {
    const target = k.i32(i32.add(address, k.i32Param(1)));
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
