/**
 * CRC-32C (Castagnoli). It finds every burst of errors up to 32 bits and all but one in 2^32 of other damage, processors
 * have instructions for it, and it is small enough to read. It protects against damage, not against forgery.
 *
 * Short inputs use tables, 8 bytes per turn ("slicing by 8"). Long ones are first shortened to some hundred bytes with
 * the same checksum by WASM SIMD (crc32c-fold.ts), where the engine has it: about 10 GB/s instead of 1.
 */
import { createFold } from './crc32c-fold.ts';

/** tables[256 k + b]: the checksum of the byte b followed by k zero bytes. */
const tables = new Int32Array(8 * 256);
for (let byte = 0; byte < 256; byte++) {
  let crc = byte;
  for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >>> 1) ^ 0x82f63b78 : crc >>> 1;
  tables[byte] = crc;
}
for (let i = 256; i < tables.length; i++) tables[i] = (tables[i - 256] >>> 8) ^ tables[tables[i - 256] & 255];

/** Below this, copying to WASM memory does not pay. */
const MIN_FOLD_BYTES = 1024;

/** Made on first use. */
let fold: ReturnType<typeof createFold> | null = null;

/** The checksum of `bytes`, or of what has the checksum `before` followed by `bytes`. An unsigned 32-bit number. */
export function crc32c(bytes: Uint8Array, before = 0): number {
  if (bytes.length < MIN_FOLD_BYTES) return ~update(~before, bytes) >>> 0;
  if (fold === null) fold = createFold();
  return ~(fold ? update(0, fold(~before, bytes)) : update(~before, bytes)) >>> 0;
}

function update(start: number, bytes: Uint8Array): number {
  let crc = start;
  let i = 0;
  for (; i + 8 <= bytes.length; i += 8) {
    crc ^= bytes[i] | (bytes[i + 1] << 8) | (bytes[i + 2] << 16) | (bytes[i + 3] << 24);
    crc =
      tables[1792 | (crc & 255)] ^
      tables[1536 | ((crc >>> 8) & 255)] ^
      tables[1280 | ((crc >>> 16) & 255)] ^
      tables[1024 | (crc >>> 24)] ^
      tables[768 | bytes[i + 4]] ^
      tables[512 | bytes[i + 5]] ^
      tables[256 | bytes[i + 6]] ^
      tables[bytes[i + 7]];
  }
  for (; i < bytes.length; i++) crc = (crc >>> 8) ^ tables[(crc ^ bytes[i]) & 255];
  return crc;
}
