import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { CapacityError, FormatError, KvasirError, UnsupportedError } from '../util/errors.ts';
import { toHex } from '../util/sha256.ts';
import { type CacheRecord, encodeRecord, type RecordKind, readRecords } from './record.ts';

const kinds: RecordKind[] = ['manifest', 'leaf', 'sinks', 'tail', 'hmac'];
const recordOf = (kind: RecordKind, payload: Uint8Array, fill = 7): CacheRecord => ({
  ...{ kind, payload },
  key: new Uint8Array(32).fill(fill),
});
const encode = (records: readonly CacheRecord[]) =>
  new Uint8Array(Buffer.concat(records.flatMap(record => [...encodeRecord(record)])));

async function* chunksOf(bytes: Uint8Array, size = bytes.length || 1) {
  for (let at = 0; at < bytes.length; at += size) yield bytes.subarray(at, at + size);
}

async function read(bytes: Uint8Array, { maxBytes = 100, chunkBytes = 1000 } = {}): Promise<CacheRecord[]> {
  const records: CacheRecord[] = [];
  const limits = { maxBytes: () => maxBytes, name: 'The store' };
  for await (const record of readRecords(chunksOf(bytes, chunkBytes), limits)) records.push(record);
  return records;
}

describe('a record', () => {
  it('has the bytes that the file documents', () => {
    const bytes = encode([recordOf('sinks', Uint8Array.of(1, 2, 3), 0xab)]);
    expect(toHex(bytes)).toBe(`6b767263ec4827350100030003000000${'ab'.repeat(32)}010203`);
  });

  it('is read back, whatever the chunks of the stream', async () => {
    const record = fc.record({
      kind: fc.constantFrom(...kinds),
      key: fc.uint8Array({ minLength: 32, maxLength: 32 }),
      payload: fc.uint8Array({ maxLength: 100 }),
    });
    await fc.assert(
      fc.asyncProperty(
        fc.array(record, { maxLength: 5 }),
        fc.integer({ min: 1, max: 200 }),
        async (list, chunkBytes) => {
          const records = list as CacheRecord[];
          expect(await read(encode(records), { chunkBytes })).toEqual(records);
        },
      ),
    );
  });

  it('is yielded before the records after it have arrived', async () => {
    const bytes = encode([recordOf('leaf', new Uint8Array(9))]);
    async function* endless() {
      yield bytes;
      throw new Error('read on');
    }
    const records = readRecords(endless(), { maxBytes: () => 9 });
    expect((await records.next()).value?.payload).toHaveLength(9);
    await expect(records.next()).rejects.toThrow('read on');
  });

  it('closes its source at the end, after an error, and when the reader stops', async () => {
    const bytes = encode([recordOf('leaf', new Uint8Array(9)), recordOf('leaf', new Uint8Array(9))]);
    const damaged = bytes.slice();
    damaged[50] ^= 1;
    let closed = 0;
    async function* source(content: Uint8Array) {
      try {
        yield* chunksOf(content, 10);
      } finally {
        closed++;
      }
    }
    for await (const _ of readRecords(source(bytes), { maxBytes: () => 9 })) break;
    await readRecords(source(damaged), { maxBytes: () => 9 })
      .next()
      .catch(() => {});
    for await (const _ of readRecords(source(bytes), { maxBytes: () => 9 }));
    expect(closed).toBe(3);
  });
});

describe('hostile records', () => {
  const bytes = encode([recordOf('leaf', new Uint8Array(20).fill(3)), recordOf('tail', new Uint8Array(5).fill(9))]);
  const failed = (content: Uint8Array, options = {}): Promise<Error> =>
    read(content, options).then(
      () => expect.unreachable('was read'),
      error => error,
    );

  it('cut anywhere but between two records', async () => {
    for (let length = 1; length < bytes.length; length++)
      if (length !== 48 + 20) expect(await failed(bytes.slice(0, length))).toBeInstanceOf(FormatError);
    expect((await failed(bytes.slice(0, 30))).message).toBe(
      'The store cannot be used: it ends within the header of record 0. It is truncated or damaged: use another copy of it.',
    );
    expect((await failed(bytes.slice(0, 60))).message).toMatch('it ends within record 0 (leaf)');
  });

  it('with any bit flipped', async () => {
    for (let bit = 0; bit < 8 * bytes.length; bit++) {
      const flipped = bytes.slice();
      flipped[bit >> 3] ^= 1 << (bit & 7);
      expect(await failed(flipped)).toBeInstanceOf(KvasirError);
    }
  });

  it('with trailing bytes', async () => {
    expect((await failed(new Uint8Array([...bytes, 0]))).message).toMatch('after record 1 no record follows');
    expect((await failed(new Uint8Array([1, 2, 3]))).message).toMatch('it is not a file of Kvasir records');
  });

  it('of another version or kind', async () => {
    const changed = (offset: number, value: number) => {
      const copy = bytes.slice();
      new DataView(copy.buffer).setUint16(offset, value, true);
      return copy;
    };
    expect(await failed(changed(8, 2))).toBeInstanceOf(UnsupportedError);
    for (const kind of [0, 7, 0xffff])
      expect((await failed(changed(10, kind))).message).toMatch('record 0 is of an unknown kind');
  });

  it('that claim more bytes than are allowed, before any is allocated', async () => {
    const claims = bytes.slice();
    new DataView(claims.buffer).setUint32(12, 2 ** 32 - 1, true);
    expect((await failed(claims)).message).toMatch(
      'record 0 (leaf) claims 4,294,967,295 bytes, and at most 100 are expected',
    );
    expect(await failed(bytes, { maxBytes: 19 })).toBeInstanceOf(FormatError);
    expect(await read(bytes, { maxBytes: 20 })).toHaveLength(2);
  });

  it('of 4 GiB cannot be written', () => {
    const payload = { length: 2 ** 32 } as Uint8Array;
    expect(() => encodeRecord(recordOf('tail', payload)).next()).toThrow(CapacityError);
  });
});
