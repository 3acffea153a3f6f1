/** Hostile session files: whatever the bytes, reading ends soon in a typed error, and nothing is returned. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { ALL_CASES } from '../../test/support/matrix.ts';
import {
  createSession,
  decodeSession,
  encodeRecords,
  encodeSession,
  expected,
  identity,
  recordsOf,
  smallSession,
} from '../../test/support/small-session.ts';
import { rootKey } from '../store/leaf-key.ts';
import type { CacheRecord } from '../store/record.ts';
import { FormatError, KvasirError } from '../util/errors.ts';

const MUTATIONS = ALL_CASES ? 10_000 : 2000;

const bytes = await encodeSession(smallSession);
const records = await recordsOf(bytes);
const [manifest, first, second, sinks, tail] = records;

/** Undefined if it is refused; fails on an error that is not typed or that could control a terminal. */
const decode = (file: Uint8Array) =>
  decodeSession(file).catch(error => {
    expect(error).toBeInstanceOf(KvasirError);
    expect(error.message).not.toMatch(/[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/u);
    return undefined;
  });

const refusal = async (file: Uint8Array): Promise<string> => {
  const error = await decodeSession(file).then(
    () => expect.unreachable('was read'),
    error => error,
  );
  expect(error).toBeInstanceOf(FormatError);
  return error.message;
};

describe('bytes', () => {
  it('cut anywhere', async () => {
    for (let length = 0; length < bytes.length; length++) expect(await decode(bytes.slice(0, length))).toBeUndefined();
    expect(await refusal(new Uint8Array(0))).toMatch('it ends before its manifest');
    const withoutTail = encodeRecords(records.slice(0, -1));
    expect(await refusal(withoutTail)).toMatch('it ends before its tail');
  });

  it('with any bit flipped', async () => {
    for (let bit = 0; bit < 8 * bytes.length; bit++) {
      const flipped = bytes.slice();
      flipped[bit >> 3] ^= 1 << (bit & 7);
      expect(await decode(flipped)).toBeUndefined();
    }
  });

  it('after the end', async () => {
    expect(await refusal(new Uint8Array([...bytes, 0]))).toMatch('after record 4 no record follows');
    expect(await refusal(new Uint8Array([...bytes, ...bytes]))).toMatch(/claims|follow/);
    expect(await refusal(encodeRecords([...records, tail]))).toMatch('records follow its tail');
    const signature: CacheRecord = { kind: 'hmac', key: manifest.key, payload: new Uint8Array(32) };
    expect(await refusal(encodeRecords([...records, signature, signature]))).toMatch('records follow its signature');
    const long = { ...signature, payload: new Uint8Array(33) };
    expect(await refusal(encodeRecords([...records, long]))).toMatch('claims 33 bytes, and at most 32 are expected');
  });

  it(`${MUTATIONS} random mutations, with valid checksums or without`, async () => {
    const change = fc.tuple(fc.nat(bytes.length - 1), fc.nat(255));
    const mutation = fc.record({
      changes: fc.array(change, { minLength: 1, maxLength: 4 }),
      length: fc.option(fc.nat(bytes.length), { nil: bytes.length, freq: 9 }),
      repair: fc.boolean(),
    });
    const isChanged = (file: Uint8Array) => Buffer.compare(file, bytes) !== 0;
    let survivors = 0;
    await fc.assert(
      fc.asyncProperty(mutation, async ({ changes, length, repair }) => {
        const hostile = bytes.slice();
        for (const [at, value] of changes) hostile[at] = value;
        const file = repair ? repairChecksums(hostile).slice(0, length) : hostile.slice(0, length);
        const session = await decode(file);
        if (!session || !isChanged(file)) return;
        // Only payloads can differ from what was saved: they have no key of their own.
        survivors++;
        expect(repair).toBe(true);
        expect(session.tokens).toEqual(smallSession.tokens);
        expect(session.identity).toEqual(identity);
        expect(session.leaves.map(leaf => leaf.length)).toEqual([32, 32]);
      }),
      { numRuns: MUTATIONS },
    );
    expect(survivors).toBeGreaterThan(0);
  });
});

/** With checksums that match, where records still begin where they did. */
function repairChecksums(file: Uint8Array<ArrayBuffer>): Uint8Array<ArrayBuffer> {
  const repaired = file.slice();
  let offset = 0;
  for (const { kind, payload } of records) {
    const end = offset + 48 + payload.length;
    const key = repaired.slice(offset + 16, offset + 48);
    const header = encodeRecords([{ kind, key, payload: repaired.slice(offset + 48, end) }]);
    repaired.set(header.subarray(4, 8), offset + 4);
    offset = end;
  }
  return repaired;
}

describe('records', () => {
  it.each<[string, CacheRecord[], string]>([
    ['leaves in another order', [manifest, second, first, sinks, tail], 'leaf 0 does not belong'],
    ['a leaf twice', [manifest, first, first, sinks, tail], 'leaf 1 does not belong'],
    ['one leaf too many', [manifest, first, second, second, sinks, tail], 'a leaf record in place of its sinks'],
    ['one leaf too few', [manifest, first, sinks, tail], 'a sinks record in place of its leaf 1'],
    ['sinks and tail exchanged', [manifest, first, second, tail, sinks], 'a tail record in place of its sinks'],
    ['sinks twice', [manifest, first, second, sinks, sinks, tail], 'a sinks record in place of its tail'],
    ['a second manifest', [manifest, manifest, first, second, sinks, tail], 'a manifest record in place of its leaf 0'],
    ['no manifest', [first, second, sinks, tail], 'a leaf record in place of its manifest'],
    ['no leaves, sinks and tail', [manifest], 'it ends before its leaf 0'],
  ])('with %s', async (_, list, message) => {
    expect(await refusal(encodeRecords(list))).toMatch(message);
  });

  it('of another conversation', async () => {
    const other = await recordsOf(await encodeSession(createSession(2, 3, {}, 5)));
    for (let i = 0; i < records.length; i++) {
      const list = records.with(i, other[i]);
      expect(await refusal(encodeRecords(list))).toMatch('does not belong to its tokens');
    }
  });

  it('of another model, with the manifest of this one', async () => {
    const foreign = { ...smallSession, identity: { ...identity, model: '99'.repeat(32) } };
    const other = await recordsOf(await encodeSession(foreign));
    expect(await refusal(encodeRecords([manifest, ...other.slice(1)]))).toMatch('leaf 0 does not belong');
    const wrongKey = { ...manifest, key: rootKey({ ...foreign.identity, salt: '' }) };
    expect(await refusal(encodeRecords([wrongKey, ...records.slice(1)]))).toMatch('the key of its identity');
  });

  it('with lists that point outside of them', async () => {
    const limits = { ...expected, isValidLeaf: (leaf: Uint8Array) => leaf[0] === first.payload[0] };
    await expect(decodeSession(bytes, { limits })).rejects.toThrow('its leaf 1 has lists that do not fit into it');
  });

  it('of other sizes', async () => {
    const withBytes = (record: CacheRecord, length: number) =>
      encodeRecords(records.with(records.indexOf(record), { ...record, payload: new Uint8Array(length) }));
    expect(await refusal(withBytes(first, 31))).toMatch('there are 31 bytes in its leaf 0 instead of 32');
    expect(await refusal(withBytes(first, 33))).toMatch('claims 33 bytes, and at most 32 are expected');
    expect(await refusal(withBytes(sinks, 0))).toMatch('there are 0 bytes in its sinks instead of 16');
    expect(await refusal(withBytes(tail, 32))).toMatch('there are 32 bytes in its tail instead of 24');
    expect(await refusal(withBytes(tail, 49))).toMatch('claims 49 bytes, and at most 48 are expected');
  });
});

describe('a manifest', () => {
  const content = { identity, pageTokens: 4, sinkTokens: 2, leafCount: 2, extra: [] };
  const fileOf = (text: string | Uint8Array, { tokens, count }: { tokens?: number[]; count?: number } = {}) => {
    const ids = tokens ?? [...smallSession.tokens];
    const start = new Uint8Array(Uint32Array.of(count ?? ids.length, ...ids).buffer);
    const payload = new Uint8Array(Buffer.concat([start, typeof text === 'string' ? Buffer.from(text) : text]));
    return encodeRecords([{ ...manifest, payload }, ...records.slice(1)]);
  };
  const withFields = (fields: object) => fileOf(JSON.stringify({ ...content, ...fields }));

  it('is read if it is valid', async () => {
    expect((await decode(withFields({})))?.tokens).toEqual(smallSession.tokens);
  });

  it('with a value of any type in any place', async () => {
    const numbers = fc.oneof(fc.constantFrom(-1, 0, 0.5, 2 ** 31, 2 ** 32, 2 ** 53, 1e308), fc.integer());
    const value = fc.oneof(numbers, fc.jsonValue(), fc.string({ unit: 'binary' }));
    const field = fc.constantFrom('identity', 'pageTokens', 'sinkTokens', 'leafCount');
    await fc.assert(
      fc.asyncProperty(field, fc.constantFrom(...Object.keys(identity)), value, async (name, part, item) => {
        expect(
          await decode(withFields({ [name]: item === (content as Record<string, unknown>)[name] ? null : item })),
        ).toBeUndefined();
        await decode(withFields({ identity: { ...identity, [part]: item } }));
      }),
      { numRuns: ALL_CASES ? 1500 : 400 },
    );
  });

  it('with absurd counts', async () => {
    expect(await refusal(withFields({ leafCount: 2 ** 53 - 1 }))).toMatch(
      '11 tokens do not have 9,007,199,254,740,991',
    );
    expect(await refusal(withFields({ leafCount: 1 }))).toMatch('11 tokens do not have 1 leaves');
    // The newest two stay in f16: a pass would read them from a tail that has none.
    const json = JSON.stringify(content);
    const short = [...smallSession.tokens.slice(0, 9)];
    expect(await refusal(fileOf(json, { tokens: short }))).toMatch('9 tokens do not have 2 leaves');
    expect(await refusal(withFields({ leafCount: -1 }))).toMatch('number of leaves is invalid');
    expect(await refusal(fileOf(json, { count: 2 ** 32 - 1 }))).toMatch('claims 4,294,967,295 tokens and is shorter');
    expect(await refusal(fileOf(json, { tokens: Array(11).fill(1000) }))).toMatch('token 0 has the id 1000');
    expect(await refusal(fileOf(json, { tokens: Array(11).fill(2 ** 32 - 1) }))).toMatch('the id 4294967295');
    expect(await refusal(encodeRecords([{ ...manifest, payload: Uint8Array.of(1, 2) }]))).toMatch(
      'manifest is truncated',
    );
    const large = new Uint8Array(2 ** 25);
    expect(await refusal(encodeRecords([{ ...manifest, payload: large }]))).toMatch('claims 33,554,432 bytes');
  });

  it('that is not JSON, nested deeply, or not UTF-8', async () => {
    for (const text of ['', '{', '['.repeat(2 ** 20), `${'{"a":'.repeat(2 ** 16)}1${'}'.repeat(2 ** 16)}`])
      expect(await refusal(fileOf(text))).toMatch(/manifest/);
    expect(await refusal(fileOf(Uint8Array.of(0x22, 0xff, 0x22)))).toMatch('not JSON');
    expect(await refusal(fileOf('null'))).toMatch('the model in its manifest is invalid');
  });

  it('with a terminal escape sequence or megabytes in an identity', async () => {
    for (const text of ['\x1b[2Jplan', 'a\u202eb', 'a\rb', '\ud800', 'p'.repeat(2 ** 20)])
      expect(await refusal(withFields({ identity: { ...identity, plan: text } }))).toMatch('the plan in its manifest');
  });

  it('with __proto__ in every object changes no prototype', async () => {
    await decode(fileOf(JSON.stringify(content).replaceAll('{', '{"__proto__":{"polluted":true},')));
    expect(({} as { polluted?: boolean }).polluted).toBeUndefined();
  });
});

it('reads nothing into memory that the limits do not allow', async () => {
  // The file claims leaves of 2 GiB and ends there: allocating first would take gigabytes.
  const claims = encodeRecords([manifest, { ...first, payload: new Uint8Array(0) }]);
  new DataView(claims.buffer).setUint32(claims.length - 48 + 12, 2 ** 31, true);
  const before = process.memoryUsage().arrayBuffers;
  expect(await refusal(claims)).toMatch(`at most ${expected.leafBytes} are expected`);
  expect(process.memoryUsage().arrayBuffers - before).toBeLessThan(2 ** 26);
});
