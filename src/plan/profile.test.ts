import { readFileSync, writeFileSync } from 'node:fs';
import { mkdtemp, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { createRandom, normals } from '../codec/parts/random.ts';
import { FormatError, InputError, KvasirError, UnsupportedError } from '../errors.ts';
import { roundF16 } from '../kernel/float.ts';
import { checkProfile, decodeProfile, encodeProfile, type ProfileContent } from './profile.ts';
import { findProfile, readProfile } from './profile-store.ts';

const random = createRandom(1);
const content: ProfileContent = {
  fingerprint: 'ab'.repeat(32),
  shape: { layers: 2, kvHeads: 1, headDim: 16, ropeFrequencies: [1, 0.1, 1 / 3] },
  provenance: {
    model: 'test.gguf',
    tokens: 512,
    context: 64,
    samples: 100,
    seed: 7,
    text: 'cd'.repeat(32),
    sources: [
      { name: 'prose', tokens: 384 },
      { name: 'notes.txt', tokens: 128 },
    ],
    codecs: ['tq4-c'],
    version: '0.1.0',
  },
  learned: [
    { key: { mean: normals(random, 16), book: normals(random, 5001) }, value: {} },
    { key: { mean: normals(random, 16) }, value: { far: normals(random, 6000).map(x => 1e5 * x) } },
  ],
  sensitivities: {
    'tq2-c': [
      { key: 0.01, value: 0.002 },
      { key: 1e-7, value: 0.3 },
    ],
  },
  measurements: [{ kv: 'mead2', bits: 2, kld: 0.02 }],
};

const fixture = (name: string) => fileURLToPath(new URL(`../../test/fixtures/${name}`, import.meta.url));

/** The file with a changed header, the same arrays, and a valid checksum. */
async function withHeader(change: (header: Record<string, unknown>) => void): Promise<Uint8Array<ArrayBuffer>> {
  const bytes = await encodeProfile(content);
  const length = new DataView(bytes.buffer).getUint32(12, true);
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(16, 16 + length)));
  change(header);
  const json = new TextEncoder().encode(JSON.stringify(header));
  const padded = Math.ceil(json.length / 4) * 4;
  const out = new Uint8Array(bytes.length - length + padded).fill(0x20);
  out.set(bytes.subarray(0, 16));
  new DataView(out.buffer).setUint32(12, padded, true);
  out.set(json, 16);
  out.set(bytes.subarray(16 + length), 16 + padded);
  return sealed(out);
}

async function sealed(bytes: Uint8Array<ArrayBuffer>): Promise<Uint8Array<ArrayBuffer>> {
  const hash = await crypto.subtle.digest('SHA-256', bytes.subarray(0, bytes.length - 32));
  bytes.set(new Uint8Array(hash), bytes.length - 32);
  return bytes;
}

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

  it('stores an array in the given type', async () => {
    const { learned } = await decodeProfile(await encodeProfile(content, { book: 'f32', mean: 'f16' }));
    expect(learned[0].key.book).toEqual(content.learned[0].key.book);
    expect(learned[0].key.mean).toEqual(content.learned[0].key.mean!.map(roundF16));
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
    for (const check of wrong) {
      expect(check).toThrow(UnsupportedError);
      expect(check).toThrow(/kvasir calibrate/);
    }
  });

  it('is found next to its model, then in the cache folder; an unreadable path is an error', async () => {
    const dir = await mkdtemp(join(tmpdir(), 'kvasir-profile-'));
    process.env.KVASIR_CACHE = join(dir, 'cache');
    const model = join(dir, 'model.gguf');
    expect(await findProfile(model, content.fingerprint)).toBeUndefined();
    await writeFile(join(dir, 'model.kvprofile'), await encodeProfile(content));
    expect((await findProfile(model, content.fingerprint))?.fingerprint).toBe(content.fingerprint);
    await expect(readProfile(join(dir, 'none'))).rejects.toThrow(InputError);
    await writeFile(join(dir, 'model.kvprofile'), 'no profile');
    await expect(findProfile(model, content.fingerprint)).rejects.toThrow(/model.kvprofile cannot be used/);
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
      await expect(decodeProfile(await sealed(bytes.slice(0, cut)))).rejects.toThrow(FormatError);
  });

  it('of a later format version is an UnsupportedError', async () => {
    const bytes = await encodeProfile(content);
    bytes[8] = 2;
    await expect(decodeProfile(await sealed(bytes))).rejects.toThrow(UnsupportedError);
  });

  it.each<[string, (header: Record<string, never>) => void]>([
    ['an invalid fingerprint', header => Object.assign(header, { fingerprint: 'x' })],
    ['too many layers', header => Object.assign(header.shape, { layers: 1e9 })],
    ['a negative number of heads', header => Object.assign(header.shape, { kvHeads: -1 })],
    ['a fractional number of layers', header => Object.assign(header.shape, { layers: 1.5 })],
    ['too many RoPE frequencies', header => Object.assign(header.shape, { turn: new Array(9).fill(1) })],
    ['a RoPE frequency that is not a number', header => Object.assign(header.shape, { turn: [null] })],
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
    ['incomplete sensitivities', header => Object.assign(header.sensitivities, { tq2: [{ key: 1 }, { key: 1 }] })],
    [
      'null for every key',
      header => Object.assign(header, Object.fromEntries(Object.keys(header).map(key => [key, null]))),
    ],
  ])('with %s and a valid checksum is rejected', async (_, change) => {
    await expect(decodeProfile(await withHeader(change as never))).rejects.toThrow(FormatError);
  });

  it.each([Number.NaN, Number.POSITIVE_INFINITY])('with %f in a codebook and a valid checksum is rejected', async x => {
    const key = { ...content.learned[0].key, book: Float32Array.from([1, x, 2]) };
    const learned = [{ key, value: {} }, content.learned[1]];
    const bytes = await encodeProfile({ ...content, learned });
    await expect(decodeProfile(bytes)).rejects.toThrow(/"book" of layer 0 holds numbers that are not finite/);
  });

  it('3,000 random ones: a typed error or a profile of finite numbers, quickly', async () => {
    const bytes = await encodeProfile({
      ...content,
      learned: [
        { key: { mean: normals(random, 16) }, value: {} },
        { key: {}, value: { book: normals(random, 40) } },
      ],
    });
    const before = Date.now();
    let loaded = 0;
    for (let i = 0; i < 3000; i++) {
      let hostile = bytes.slice();
      for (let n = random.uint32() % 4; n >= 0; n--) hostile[random.uint32() % hostile.length] = random.uint32();
      if (i % 3 === 0) hostile = hostile.slice(0, random.uint32() % hostile.length);
      if (i % 5 !== 0 && hostile.length > 48) hostile = await sealed(hostile);
      try {
        const { learned } = await decodeProfile(hostile);
        for (const sides of learned)
          for (const array of Object.values({ ...sides.key, ...sides.value }))
            expect(array!.every(Number.isFinite)).toBe(true);
        loaded++;
      } catch (error) {
        expect(error).toBeInstanceOf(KvasirError);
      }
    }
    expect(loaded).toBeGreaterThan(0);
    expect(loaded).toBeLessThan(2500);
    expect(Date.now() - before).toBeLessThan(30_000);
  });
});
