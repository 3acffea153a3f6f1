/**
 * CRC-32C (Castagnoli), table-driven, 8 bytes per turn ("slicing by 8"). It finds every burst of errors up to 32 bits and
 * all but one in 2^32 of other damage, processors have instructions for it, and it is small enough to read. It protects
 * against damage, not against forgery.
 */

/** tables[256 k + b]: the checksum of the byte b followed by k zero bytes. */
const tables = new Int32Array(8 * 256);
for (let byte = 0; byte < 256; byte++) {
  let crc = byte;
  for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >>> 1) ^ 0x82f63b78 : crc >>> 1;
  tables[byte] = crc;
}
for (let i = 256; i < tables.length; i++) tables[i] = (tables[i - 256] >>> 8) ^ tables[tables[i - 256] & 255];

/** The checksum of `bytes`, or of what has the checksum `before` followed by `bytes`. An unsigned 32-bit number. */
export function crc32c(bytes: Uint8Array, before = 0): number {
  let crc = ~before;
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
  return ~crc >>> 0;
}
