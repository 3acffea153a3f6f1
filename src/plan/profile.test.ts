import { readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { content, withChecksum, withHeader } from '../../test/support/profile.ts';
import { roundF16 } from '../../test/support/round-f16.ts';
import { FormatError, UnsupportedError } from '../util/errors.ts';
import { checkProfile, decodeProfile, encodeProfile } from './profile.ts';

const fixture = (name: string) => fileURLToPath(new URL(`../../test/fixtures/${name}`, import.meta.url));

describe('a profile', () => {
  it('is decoded as it was encoded, long arrays rounded to f16', async () => {
    const bytes = await encodeProfile(content);
    const { hash, ...decoded } = await decodeProfile(bytes);
    const book = content.learned[0].key.book!.map(roundF16);
    expect(decoded).toEqual({
      ...content,
      learned: [{ ...content.learned[0], key: { ...content.learned[0].key, book } }, content.learned[1]],
    });
    expect(hash).toBe(Buffer.from(bytes.subarray(-32)).toString('hex'));
    expect(await encodeProfile(decoded)).toEqual(bytes);
  });

  it('of format version 1 has these bytes', async () => {
    const path = fixture('profile-1.kvprofile');
    const small = { ...content, learned: [content.learned[0], { key: {}, value: {} }] };
    if (process.env.KVASIR_GOLDEN === 'write') writeFileSync(path, await encodeProfile(small));
    const golden = new Uint8Array(readFileSync(path));
    expect(await encodeProfile(small)).toEqual(golden);
    expect((await decodeProfile(golden)).learned[0].key.mean).toEqual(content.learned[0].key.mean);
  });

  it('of Kvasir 0.1.0 is still readable, without the names of its model and texts and without measurements', async () => {
    const { learned, provenance, measurements } = await decodeProfile(
      new Uint8Array(readFileSync(fixture('profile-0.1.0.kvprofile'))),
    );
    expect(learned[0].key.mean).toEqual(content.learned[0].key.mean);
    expect(provenance).toEqual({ ...content.provenance, model: '', text: 'self', sources: [] });
    expect(measurements).toEqual([]);
  });

  it('stores names of files without control characters, and not longer than it may', async () => {
    const sources = [{ name: `\x1b]0;a\x07 \u202e${'b'.repeat(300)}`, tokens: 1 }];
    const provenance = { ...content.provenance, model: 'a\nb.gguf', sources };
    const decoded = await decodeProfile(await encodeProfile({ ...content, provenance }));
    expect(decoded.provenance.model).toBe('a\ufffdb.gguf');
    expect(decoded.provenance.sources[0].name).toBe(`\ufffd]0;a\ufffd \ufffd${'b'.repeat(192)}`);
  });

  it('is only valid for its model', async () => {
    const profile = await decodeProfile(await encodeProfile(content));
    const { shape, fingerprint } = content;
    checkProfile(profile, shape, fingerprint);
    checkProfile(profile, shape);
    const wrong = [
      () => checkProfile(profile, shape, 'cd'.repeat(32)),
      () => checkProfile(profile, { ...shape, layers: 3 }),
      () => checkProfile(profile, { ...shape, kvHeads: 2 }),
      () => checkProfile(profile, { ...shape, ropeFrequencies: [1, 0.1, 0.3] }, fingerprint),
    ];
    expect(wrong[3]).toThrow(/another RoPE/);
    for (const check of wrong) {
      expect(check).toThrow(UnsupportedError);
      expect(check).toThrow(/kvasir calibrate/);
    }
  });
});

describe('an invalid profile', () => {
  it('truncated anywhere is rejected', async () => {
    const bytes = await encodeProfile(content);
    const header = new DataView(bytes.buffer).getUint32(12, true);
    const cuts = [
      0,
      1,
      7,
      8,
      12,
      15,
      16,
      47,
      48,
      16 + header - 1,
      16 + header,
      16 + header + 50,
      bytes.length - 33,
      bytes.length - 1,
    ];
    for (const cut of cuts) await expect(decodeProfile(bytes.slice(0, cut))).rejects.toThrow(FormatError);
    // Even with a valid checksum.
    for (const cut of cuts.filter(cut => cut >= 48))
      await expect(decodeProfile(await withChecksum(bytes.slice(0, cut)))).rejects.toThrow(FormatError);
  });

  it('of a later format version is an UnsupportedError', async () => {
    const bytes = await encodeProfile(content);
    bytes[8] = 2;
    await expect(decodeProfile(await withChecksum(bytes))).rejects.toThrow(UnsupportedError);
  });

  it.each<[string, (header: Record<string, never>) => unknown]>([
    ['an invalid fingerprint', header => Object.assign(header, { fingerprint: 'x' })],
    ['too many layers', header => Object.assign(header.shape, { layers: 1e9 })],
    ['a negative number of heads', header => Object.assign(header.shape, { kvHeads: -1 })],
    ['a fractional number of layers', header => Object.assign(header.shape, { layers: 1.5 })],
    ['too many RoPE frequencies', header => Object.assign(header.shape, { turn: new Array(9).fill(1) })],
    ['a RoPE frequency that is not a number', header => Object.assign(header.shape, { turn: [null] })],
    ['local RoPE frequencies that are no array', header => Object.assign(header.shape, { localRopeFrequencies: 1 })],
    ['windows of another number of layers', header => Object.assign(header.shape, { attentionWindows: [8] })],
    ['a window of no tokens', header => Object.assign(header.shape, { attentionWindows: [0, null] })],
    ['an array longer than the file', header => Object.assign(header.arrays[0], { length: 2 ** 31 })],
    ['an array of negative length', header => Object.assign(header.arrays[0], { length: -4 })],
    ['an array of the wrong length', header => Object.assign(header.arrays[0], { length: 12 })],
    ['an array of a missing layer', header => Object.assign(header.arrays[0], { layer: 2 })],
    ['an array of an unknown side', header => Object.assign(header.arrays[0], { side: 'query' })],
    ['an array of an unknown type', header => Object.assign(header.arrays[0], { type: 'f64' })],
    ['an array with an invalid name', header => Object.assign(header.arrays[0], { name: '__proto__' })],
    ['two arrays of the same name', header => Object.assign(header.arrays[1], { name: 'mean' })],
    ['no list of arrays', header => Object.assign(header, { arrays: {} })],
    ['too many arrays', header => Object.assign(header, { arrays: new Array(70_000).fill(header.arrays[0]) })],
    ['no provenance', header => Object.assign(header, { made: null })],
    ['sensitivities of too few layers', header => Object.assign(header.sensitivities, { tq2: [] })],
    ['sensitivities of something that is not a spec', header => Object.assign(header.sensitivities, { 'tq 2': [] })],
    ['incomplete sensitivities', header => Object.assign(header.sensitivities, { tq2: [{ key: 1 }, { key: 1 }] })],
    [
      'too many measurements',
      header => Object.assign(header, { measurements: Array(1001).fill(header.measurements[0]) }),
    ],
    ['a negative measurement', header => Object.assign(header.measurements[0], { kld: -1 })],
    ['a measurement without bits', header => Object.assign(header.measurements[0], { bits: null })],
    ['measurements that are no list', header => Object.assign(header, { measurements: { length: 1 } })],
    ['too many sources', header => Object.assign(header.made, { sources: Array(1001).fill({ name: 'a', tokens: 1 }) })],
    ['a source without tokens', header => Object.assign(header.made, { sources: [{ name: 'a' }] })],
    [
      'a source with a long name',
      header => Object.assign(header.made, { sources: [{ name: 'a'.repeat(201), tokens: 1 }] }),
    ],
    [
      'null for every key',
      header => Object.assign(header, Object.fromEntries(Object.keys(header).map(key => [key, null]))),
    ],
  ])('with %s and a valid checksum is rejected', async (_, change) => {
    await expect(decodeProfile(await withHeader(change))).rejects.toThrow(FormatError);
  });

  it.each([Number.NaN, Number.POSITIVE_INFINITY])('with %f in a codebook and a valid checksum is rejected', async x => {
    const key = { ...content.learned[0].key, book: Float32Array.from([1, x, 2]) };
    const learned = [{ key, value: {} }, content.learned[1]];
    const bytes = await encodeProfile({ ...content, learned });
    await expect(decodeProfile(bytes)).rejects.toThrow(/"book" of layer 0 holds numbers that are not finite/);
  });
});
