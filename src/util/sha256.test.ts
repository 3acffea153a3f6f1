import { createHash } from 'node:crypto';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { createSha256, sha256, toHex } from './sha256.ts';

const reference = (bytes: Uint8Array) => createHash('sha256').update(bytes).digest('hex');

describe('sha256', () => {
  it('has the values of the standard', () => {
    const hashOf = (text: string) => toHex(sha256(new TextEncoder().encode(text)));
    expect(hashOf('')).toBe('e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855');
    expect(hashOf('abc')).toBe('ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad');
  });

  it('agrees with node:crypto at every length around the size of a block', () => {
    for (let length = 0; length < 300; length++) {
      const bytes = Uint8Array.from({ length }, (_, i) => i * 41 + length);
      expect(toHex(sha256(bytes))).toBe(reference(bytes));
    }
  });

  it('does not depend on how the bytes are divided', () => {
    fc.assert(
      fc.property(fc.array(fc.uint8Array({ maxLength: 200 }), { maxLength: 8 }), parts => {
        const hasher = createSha256();
        for (const part of parts) hasher.update(part);
        expect(toHex(hasher.digest())).toBe(reference(Buffer.concat(parts)));
      }),
    );
  });

  it('reads views of larger buffers', () => {
    const bytes = Uint8Array.from({ length: 1000 }, (_, i) => i * 7);
    expect(toHex(sha256(bytes.subarray(3, 901)))).toBe(reference(bytes.subarray(3, 901)));
  });

  it('runs several hashes side by side', () => {
    const [a, b] = [createSha256(), createSha256()];
    for (let i = 0; i < 50; i++) {
      a.update(new Uint8Array(i).fill(1));
      b.update(new Uint8Array(i).fill(2));
    }
    expect(toHex(a.digest())).toBe(reference(new Uint8Array(1225).fill(1)));
    expect(toHex(b.digest())).toBe(reference(new Uint8Array(1225).fill(2)));
  });

  it('cannot be updated after its digest', () => {
    const hasher = createSha256();
    hasher.digest();
    expect(() => hasher.update(new Uint8Array(1))).toThrow(/bug/);
  });
});
