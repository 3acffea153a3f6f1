import { createHash } from 'node:crypto';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { InputError } from '../util/errors.ts';
import { toHex } from '../util/sha256.ts';
import { type CacheIdentity, childKey, leafKeys, rootKey } from './leaf-key.ts';

const identity: CacheIdentity = {
  model: 'ab'.repeat(32),
  rope: 'cd'.repeat(32),
  plan: 'tq4/tq3+sink4 page128 layers30',
  tables: '',
  arithmetic: 'wasm relaxed',
  format: 3,
  salt: 'tenant é',
};

describe('leaf keys', () => {
  it('are those of stored leaves', () => {
    const root = rootKey(identity);
    expect(toHex(root)).toBe('43e18882ed9da98efdf316829cb91ddddb3dea5ec23a3d51d1c8d906d14ff72c');
    const first = childKey(root, [1, 2, 3, 128000]);
    expect(toHex(first)).toBe('d4000a25c6e26fc6c2b346916783b78e57bb6721cc2b693d7b318dcd891bd159');
    expect(toHex(childKey(first, []))).toBe('d5776a458c6cec8710ae844dc4a3824328301332a0fc8cc53a222e42e0f2b829');
  });

  it('are sha256 of the encoding that the file documents', () => {
    const u32 = (n: number) => [n & 255, (n >> 8) & 255, (n >> 16) & 255, n >>> 24];
    const texts = [
      'kvasir leaf 1',
      ...[identity.model, identity.rope, identity.plan, '', 'wasm relaxed', '3', 'tenant é'],
    ];
    const encoded = texts.flatMap(text => [...u32(Buffer.byteLength(text)), ...Buffer.from(text)]);
    const root = createHash('sha256').update(Uint8Array.from(encoded)).digest();
    expect(toHex(rootKey(identity))).toBe(root.toString('hex'));
    const child = createHash('sha256')
      .update(root)
      .update(Uint8Array.from([7, 70_000].flatMap(u32)))
      .digest('hex');
    expect(toHex(childKey(rootKey(identity), Int32Array.of(7, 70_000)))).toBe(child);
  });

  it('differ if any field differs, wherever the text is divided between fields', () => {
    const text = fc.string({ unit: 'grapheme', maxLength: 6 });
    const fields = fc.record({ model: text, rope: text, plan: text, tables: text, arithmetic: text, salt: text });
    fc.assert(
      fc.property(fields, fields, fc.constantFrom(3, 4), (a, b, format) => {
        const same = JSON.stringify(a) === JSON.stringify(b) && format === 3;
        expect(toHex(rootKey({ ...a, format: 3 })) === toHex(rootKey({ ...b, format }))).toBe(same);
        const moved = { ...a, model: a.model + a.rope, rope: '' };
        expect(toHex(rootKey({ ...a, format })) === toHex(rootKey({ ...moved, format }))).toBe(a.rope === '');
      }),
    );
  });

  it('depend on all tokens before, and on nothing after', () => {
    const root = rootKey(identity);
    const tokens = Int32Array.from({ length: 20 }, (_, i) => i * i);
    const keys = leafKeys(root, tokens, 4, 5).map(toHex);
    expect(new Set(keys).size).toBe(5);
    expect(keys[1]).toBe(toHex(childKey(childKey(root, [0, 1, 4, 9]), [16, 25, 36, 49])));
    const changed = tokens.slice();
    changed[9]++;
    expect(leafKeys(root, changed, 4, 5).map((key, i) => toHex(key) === keys[i])).toEqual([
      ...[true, true, false, false, false],
    ]);
  });

  it('refuse text that is not Unicode, so that no two salts have the same key', () => {
    expect(() => rootKey({ ...identity, salt: 'a\ud800' })).toThrow(InputError);
  });
});
