/**
 * Streaming sha256 (FIPS 180-4). Web Crypto hashes only what is in memory as a whole, and models are not; in Node,
 * node:crypto is eight times as fast, and files on disk use it (model/fingerprint.ts).
 */
import { assert } from './errors.ts';

export interface Sha256 {
  /** Appends bytes to what is hashed. */
  update(bytes: Uint8Array): Sha256;
  /** The hash, 32 bytes. The hasher cannot be used afterwards. */
  digest(): Uint8Array<ArrayBuffer>;
}

const BLOCK_BYTES = 64;

/** First 32 bits of the fractional parts of the square roots of the first 8 primes. */
const INITIAL_STATE = Int32Array.from([
  0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
]);

/** First 32 bits of the fractional parts of the cube roots of the first 64 primes. */
const ROUND_CONSTANTS = Int32Array.from([
  0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98,
  0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786,
  0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8,
  0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13,
  0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819,
  0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a,
  0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
  0xc67178f2,
]);

/** The message schedule of a block: filled and used within one call. */
const words = new Int32Array(64);

export function createSha256(): Sha256 {
  const state = INITIAL_STATE.slice();
  const pending = new Uint8Array(BLOCK_BYTES);
  let pendingBytes = 0;
  let totalBytes = 0;
  let isDone = false;
  const hasher: Sha256 = {
    update(bytes) {
      assert(!isDone, 'a sha256 is updated after its digest');
      totalBytes += bytes.length;
      let at = 0;
      if (pendingBytes > 0) {
        at = Math.min(bytes.length, BLOCK_BYTES - pendingBytes);
        pending.set(bytes.subarray(0, at), pendingBytes);
        pendingBytes += at;
        if (pendingBytes < BLOCK_BYTES) return hasher;
        hashBlocks(state, pending, 0, BLOCK_BYTES);
      }
      const end = bytes.length - ((bytes.length - at) % BLOCK_BYTES);
      hashBlocks(state, bytes, at, end);
      pending.set(bytes.subarray(end));
      pendingBytes = bytes.length - end;
      return hasher;
    },
    digest() {
      // A one bit, zeros, and the length in bits as a big-endian u64 complete the last block.
      const messageBytes = totalBytes;
      const padding = new Uint8Array(BLOCK_BYTES - ((messageBytes + 8) % BLOCK_BYTES) + 8);
      padding[0] = 0x80;
      const view = new DataView(padding.buffer);
      view.setUint32(padding.length - 8, Math.floor(messageBytes / 2 ** 29));
      view.setUint32(padding.length - 4, (messageBytes * 8) % 2 ** 32);
      hasher.update(padding);
      isDone = true;
      const digest = new DataView(new ArrayBuffer(32));
      state.forEach((word, i) => {
        digest.setInt32(4 * i, word);
      });
      return new Uint8Array(digest.buffer);
    },
  };
  return hasher;
}

/** The sha256 of bytes in memory. */
export const sha256 = (bytes: Uint8Array): Uint8Array<ArrayBuffer> => createSha256().update(bytes).digest();

const HEX = Array.from({ length: 256 }, (_, byte) => byte.toString(16).padStart(2, '0'));
export const toHex = (bytes: Uint8Array): string => bytes.reduce((text, byte) => text + HEX[byte], '');

/** Hashes the whole blocks of bytes[from, to). Every sum is cut to 32 bits at once: engines then keep to integers. */
function hashBlocks(state: Int32Array, bytes: Uint8Array, from: number, to: number): void {
  for (let at = from; at < to; at += BLOCK_BYTES) {
    fillSchedule(bytes, at);
    let a = state[0];
    let b = state[1];
    let c = state[2];
    let d = state[3];
    let e = state[4];
    let f = state[5];
    let g = state[6];
    let h = state[7];
    // Four rounds per turn, so that the variables change places only once. More would not be inlined any more.
    for (let i = 0; i < 64; i += 4) {
      h = (((h + mixE(e, f, g)) | 0) + ((ROUND_CONSTANTS[i] + words[i]) | 0)) | 0;
      d = (d + h) | 0;
      h = (h + mixA(a, b, c)) | 0;
      g = (((g + mixE(d, e, f)) | 0) + ((ROUND_CONSTANTS[i + 1] + words[i + 1]) | 0)) | 0;
      c = (c + g) | 0;
      g = (g + mixA(h, a, b)) | 0;
      f = (((f + mixE(c, d, e)) | 0) + ((ROUND_CONSTANTS[i + 2] + words[i + 2]) | 0)) | 0;
      b = (b + f) | 0;
      f = (f + mixA(g, h, a)) | 0;
      e = (((e + mixE(b, c, d)) | 0) + ((ROUND_CONSTANTS[i + 3] + words[i + 3]) | 0)) | 0;
      a = (a + e) | 0;
      e = (e + mixA(f, g, h)) | 0;
      const a4 = e;
      const b4 = f;
      const c4 = g;
      const d4 = h;
      e = a;
      f = b;
      g = c;
      h = d;
      a = a4;
      b = b4;
      c = c4;
      d = d4;
    }
    state[0] += a;
    state[1] += b;
    state[2] += c;
    state[3] += d;
    state[4] += e;
    state[5] += f;
    state[6] += g;
    state[7] += h;
  }
}

/** Expands the 16 words of a block to 64. */
function fillSchedule(bytes: Uint8Array, at: number): void {
  for (let i = 0, j = at; i < 16; i++, j += 4)
    words[i] = (bytes[j] << 24) | (bytes[j + 1] << 16) | (bytes[j + 2] << 8) | bytes[j + 3];
  for (let i = 16; i < 64; i++) {
    const x = words[i - 15];
    const y = words[i - 2];
    const sigma0 = ((x >>> 7) | (x << 25)) ^ ((x >>> 18) | (x << 14)) ^ (x >>> 3);
    const sigma1 = ((y >>> 17) | (y << 15)) ^ ((y >>> 19) | (y << 13)) ^ (y >>> 10);
    words[i] = (((words[i - 16] + sigma0) | 0) + ((words[i - 7] + sigma1) | 0)) | 0;
  }
}

// Few calls, so that engines inline all of them.
const mixA = (a: number, b: number, c: number) =>
  ((((a >>> 2) | (a << 30)) ^ ((a >>> 13) | (a << 19)) ^ ((a >>> 22) | (a << 10))) + ((a & b) ^ (c & (a ^ b)))) | 0;
const mixE = (e: number, f: number, g: number) =>
  ((((e >>> 6) | (e << 26)) ^ ((e >>> 11) | (e << 21)) ^ ((e >>> 25) | (e << 7))) + (g ^ (e & (f ^ g)))) | 0;
