/**
 * Reduces a long input to 64 bytes with the same CRC. A checksum is linear over XOR, so the first 64 bytes can be
 * replaced by what has the same effect 64 bytes later: each of their 16 words is multiplied by x^512 modulo the
 * polynomial and XORed into the word 64 bytes on.
 *
 * That product of a 32-bit word is the XOR of one table entry per nibble. SIMD has 16-entry tables of bytes (swizzle):
 * 8 nibbles x 4 bytes of the result = 32 tables serve 16 words at a time.
 */
import { i8x16, i32x4, type V128, v128 } from '../kernel/wasm/emit.ts';
import { Kernel, moduleBytes } from '../kernel/wasm/module.ts';
import { swizzle, transpose4x4 } from '../kernel/wasm/ops.ts';

export const FOLD_BYTES = 64;

/** Memory: 32 tables, the state (byte k of all words, for k of 0 to 3), then the input: a piece that stays in L2. */
const STATE = 32 * 16;
const INPUT = STATE + FOLD_BYTES;
const PAGE = 65536;
const PIECE_BYTES = PAGE - INPUT;

/** Folds whole blocks of 64 bytes, starting with the register `crc`. The result is valid until the next call. */
type Fold = (crc: number, bytes: Uint8Array) => Uint8Array;

/** Undefined where there is no WASM SIMD. `multiply` advances a word by 64 bytes. */
export function createFold(multiply: (word: number) => number): Fold | undefined {
  if (typeof WebAssembly === 'undefined') return undefined;
  const modules = [true, false].map(relaxed => moduleBytes([foldKernel(relaxed)], { maxPages: 1, shared: false }));
  const code = modules.find(module => WebAssembly.validate(module));
  if (!code) return undefined;
  const memory = new WebAssembly.Memory({ initial: 1, maximum: 1 });
  const { exports } = new WebAssembly.Instance(new WebAssembly.Module(code), { env: { memory } });
  const run = exports.fold as (end: number) => void;
  const bytes = new Uint8Array(memory.buffer);
  for (let nibble = 0; nibble < 8; nibble++)
    for (let value = 0; value < 16; value++) {
      const product = multiply(value << (4 * nibble));
      for (let k = 0; k < 4; k++) bytes[(4 * nibble + k) * 16 + value] = product >>> (8 * k);
    }
  const folded = new Uint8Array(FOLD_BYTES);
  return (crc, input) => {
    bytes.fill(0, STATE, INPUT);
    for (let at = 0; at < input.length; at += PIECE_BYTES) {
      const piece = input.subarray(at, at + PIECE_BYTES);
      bytes.set(piece, INPUT);
      if (at === 0) for (let k = 0; k < 4; k++) bytes[INPUT + k] ^= crc >>> (8 * k);
      run(INPUT + piece.length);
    }
    for (let i = 0; i < FOLD_BYTES; i++) folded[i] = bytes[STATE + 16 * (i & 3) + (i >> 2)];
    return folded;
  };
}

/** fold(end): folds the blocks from INPUT to `end` into the state. */
function foldKernel(relaxed: boolean): Kernel {
  const k = new Kernel('fold', ['i32']);
  const state = [0, 1, 2, 3].map(i => k.v128(v128.load(STATE, 16 * i)));
  k.forAddresses(INPUT, k.i32Param(0), FOLD_BYTES, address => {
    const next = bytePlanes(
      k,
      [0, 16, 32, 48].map(offset => v128.load(address, offset)),
    ).map(plane => k.v128(plane));
    state.forEach((plane, i) => {
      const nibbles = [plane, i32x4.shrU(plane, 4)].map(x => k.v128(v128.and(x, i8x16.const(15))));
      nibbles.forEach((nibble, high) => {
        next.forEach((sum, byte) => {
          const table = v128.load(0, 16 * (4 * (2 * i + high) + byte));
          k.set(sum, v128.xor(sum, swizzle(relaxed)(table, nibble)));
        });
      });
    });
    state.forEach((plane, i) => {
      k.set(plane, next[i]);
    });
  });
  state.forEach((plane, i) => {
    k.do(v128.store(STATE, plane, 16 * i));
  });
  return k;
}

/** Byte k of 16 words, for k of 0 to 3. */
function bytePlanes(k: Kernel, words: readonly V128[]): V128[] {
  const order = [0, 4, 8, 12].flatMap((_, byte) => [0, 4, 8, 12].map(word => word + byte));
  const sorted = words.map(x => {
    const vector = k.v128(x);
    return k.v128(v128.shuffle(vector, vector, order));
  });
  return transpose4x4(k, sorted);
}
