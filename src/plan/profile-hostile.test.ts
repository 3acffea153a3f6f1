/** Hostile profiles: whatever the bytes, decoding ends soon in a typed error or in a profile that is safe to use. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { cpuTime } from '../../test/support/cpu-time.ts';
import { smallContent, withChecksum, withHeader, withHeaderText } from '../../test/support/profile.ts';
import { FormatError, KvasirError } from '../util/errors.ts';
import { decodeProfile, encodeProfile, type Profile } from './profile.ts';

const bytes = await encodeProfile(smallContent);

/** Undefined if it is refused; fails on an error that is not typed, and on a profile with unsafe content. */
async function decode(file: Uint8Array<ArrayBuffer>): Promise<Profile | undefined> {
  const profile = await decodeProfile(file).catch(error => {
    expect(error).toBeInstanceOf(KvasirError);
    expect(error.message).not.toMatch(/[^\P{C}\n]/u);
    return undefined;
  });
  if (!profile) return undefined;
  const { shape, learned, sensitivities, provenance, measurements } = profile;
  expect(learned).toHaveLength(shape.layers);
  for (const sides of learned)
    for (const array of [...Object.values(sides.key), ...Object.values(sides.value)])
      expect(array?.every(Number.isFinite)).toBe(true);
  for (const rows of Object.values(sensitivities)) {
    expect(rows).toHaveLength(shape.layers);
    expect(rows.every(({ key, value }) => Number.isFinite(key) && Number.isFinite(value))).toBe(true);
  }
  const strings = [
    ...[provenance.model, provenance.text, provenance.version, ...provenance.codecs, ...Object.keys(sensitivities)],
    ...provenance.sources.map(({ name }) => name),
    ...measurements.map(({ kv }) => kv),
  ];
  for (const text of strings) expect(text).toMatch(/^[^\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]{0,200}$/u);
  return profile;
}

describe('bytes', () => {
  it('any flipped bit is caught by the checksum', async () => {
    for (let bit = 0; bit < 8 * bytes.length; bit += 7) {
      const flipped = bytes.slice();
      flipped[bit >> 3] ^= 1 << (bit & 7);
      expect(await decode(flipped)).toBeUndefined();
    }
  });

  it('changed and cut anywhere, with a valid checksum', async () => {
    const change = fc.tuple(fc.nat(bytes.length - 1), fc.nat(255));
    const cut = fc.option(fc.nat(bytes.length), { nil: bytes.length });
    const outcomes = { loaded: 0, refused: 0 };
    await fc.assert(
      fc.asyncProperty(fc.array(change, { maxLength: 4 }), cut, async (changes, length) => {
        const hostile = bytes.slice();
        for (const [at, value] of changes) hostile[at] = value;
        const file = hostile.slice(0, length);
        const profile = await decode(file.length >= 48 ? await withChecksum(file) : file);
        outcomes[profile ? 'loaded' : 'refused']++;
      }),
      { numRuns: 3000 },
    );
    expect(outcomes.loaded).toBeGreaterThan(0);
    expect(outcomes.refused).toBeGreaterThan(500);
  });

  it('any bytes after the magic', async () => {
    await fc.assert(
      fc.asyncProperty(fc.uint8Array({ minLength: 40, maxLength: 400 }), async tail => {
        const file = new Uint8Array([...bytes.subarray(0, 12), ...tail]);
        await decode(await withChecksum(file));
      }),
      { numRuns: 500 },
    );
  });
});

describe('a header', () => {
  const paths = async () => {
    const found: string[][] = [];
    await withHeader(header => {
      const walk = (value: unknown, path: string[]) => {
        if (path.length > 0) found.push(path);
        if (typeof value === 'object' && value !== null)
          for (const [key, item] of Object.entries(value)) walk(item, [...path, key]);
      };
      walk(header, []);
    }, smallContent);
    return found;
  };
  const replaced = (path: readonly string[], value: unknown) =>
    withHeader(header => {
      let parent: Record<string, unknown> = header;
      for (const key of path.slice(0, -1)) parent = parent[key] as Record<string, unknown>;
      parent[path[path.length - 1]] = value;
    }, smallContent);

  it('with a value of any type in any place', async () => {
    const number = fc.oneof(fc.constantFrom(-1, 0, 0.5, 2 ** 31, 2 ** 32, 2 ** 53, 1e308), fc.integer());
    const value = fc.oneof(
      number,
      fc.json().map(text => JSON.parse(text)),
      fc.string({ unit: 'binary' }),
    );
    await fc.assert(
      fc.asyncProperty(fc.constantFrom(...(await paths())), value, async (path, item) => {
        await decode(await replaced(path, item));
      }),
      { numRuns: 1500 },
    );
  });

  it.each([
    ['the name of the model', ['made', 'model']],
    ['the text', ['made', 'text']],
    ['the version', ['made', 'version']],
    ['a source', ['made', 'sources', '0', 'name']],
    ['a codec', ['made', 'codecs', '0']],
    ['a measurement', ['measurements', '0', 'kv']],
    ['an array', ['arrays', '0', 'name']],
  ])('with a terminal escape sequence in %s is refused', async (_, path) => {
    for (const text of ['\x1b[2Jmead2', 'mead2\x9b31m', 'a\u202eb', 'a\rb', 'a\u2028b'])
      await expect(decodeProfile(await replaced(path, text))).rejects.toThrow(FormatError);
  });

  it.each(['__proto__', 'constructor', 'toString', '\x1b[2J'])('with sensitivities of %j', async name => {
    const rows = '[{"key":1,"value":1},{"key":1,"value":1}]';
    const file = await withHeader(
      header =>
        JSON.stringify(header).replace('"sensitivities":{', `"sensitivities":{${JSON.stringify(name)}:${rows},`),
      smallContent,
    );
    const profile = await decode(file);
    expect(Object.getPrototypeOf(profile?.sensitivities ?? {})).toBe(Object.prototype);
    expect({}).not.toHaveProperty('key');
  });

  it('with __proto__ in every object changes no prototype', async () => {
    const file = await withHeader(
      header => JSON.stringify(header).replaceAll('{', '{"__proto__":{"polluted":true},'),
      smallContent,
    );
    await decode(file);
    expect(({} as { polluted?: boolean }).polluted).toBeUndefined();
  });

  it('that is nested deeply or very long is refused quickly', async () => {
    const before = cpuTime();
    for (const text of [
      '['.repeat(2 ** 20),
      `${'{"a":'.repeat(2 ** 18)}1${'}'.repeat(2 ** 18)}`,
      '"'.padEnd(2 ** 24, 'a'),
    ])
      await expect(decodeProfile(await withHeaderText(text, bytes))).rejects.toThrow(FormatError);
    expect(cpuTime() - before).toBeLessThan(10_000);
  });

  it('with counts far beyond the file allocates nothing', async () => {
    for (const length of [2 ** 31, 2 ** 30, 1e6])
      await expect(decodeProfile(await replaced(['arrays', '0', 'length'], length))).rejects.toThrow(/ends within/);
    await expect(decodeProfile(await replaced(['shape', 'layers'], 4096))).rejects.toThrow(FormatError);
  });
});
