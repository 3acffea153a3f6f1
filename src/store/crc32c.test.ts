import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { crc32c } from './crc32c.ts';

/** The definition: one bit at a time. */
function reference(bytes: Uint8Array): number {
  let crc = 0xffffffff;
  for (const byte of bytes) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >>> 1) ^ 0x82f63b78 : crc >>> 1;
  }
  return ~crc >>> 0;
}

describe('crc32c', () => {
  it('has the values of RFC 3720', () => {
    expect(crc32c(new TextEncoder().encode('123456789'))).toBe(0xe3069283);
    expect(crc32c(new Uint8Array(32))).toBe(0x8a9136aa);
    expect(crc32c(new Uint8Array(32).fill(255))).toBe(0x62a8ab43);
    expect(crc32c(Uint8Array.from({ length: 32 }, (_, i) => i))).toBe(0x46dd794e);
    expect(crc32c(new Uint8Array(0))).toBe(0);
  });

  it('agrees with the definition, and continues where it stopped', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 100 }), fc.nat(100), (bytes, cut) => {
        expect(crc32c(bytes)).toBe(reference(bytes));
        expect(crc32c(bytes.subarray(cut), crc32c(bytes.subarray(0, cut)))).toBe(crc32c(bytes));
      }),
    );
  });

  it('agrees with the definition on long inputs, which are folded by WASM', () => {
    const bytes = Uint8Array.from({ length: 140_000 }, (_, i) => (i * i * 31) >> 7);
    const before = crc32c(bytes.subarray(0, 100));
    // From the first one that is folded, over those of a second multiple, to several pieces.
    const around = (length: number) => [length - 1, length, length + 1];
    for (const length of [...[1024, 1088, 10_642, 16_384, 16_384 + 5321, 32_768 + 5321].flatMap(around), 140_000]) {
      expect(crc32c(bytes.subarray(0, length)), `${length} bytes`).toBe(reference(bytes.subarray(0, length)));
      if (length > 100) expect(crc32c(bytes.subarray(100, length), before)).toBe(crc32c(bytes.subarray(0, length)));
    }
  });
});
