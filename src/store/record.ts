/**
 * Records: the one format in which leaves are stored and sent. A file or stream is a sequence of records.
 *
 *   0   4 bytes   "kvrc"
 *   4   u32       crc32c of all bytes of the record after this field
 *   8   u16       format version, 1; all numbers are little-endian
 *   10  u16       kind: 1 manifest, 2 leaf, 3 sinks, 4 tail, 5 hmac, 6 window page
 *   12  u32       length of the payload in bytes
 *   16  32 bytes  key; kind and key together name a record
 *   48  payload
 *
 * The header has 48 bytes, so payloads of whole 16-byte units stay aligned. Records are untrusted: a length is checked
 * before memory is allocated for it, and nothing is returned of a record whose checksum does not match.
 */
import { CapacityError, FormatError, UnsupportedError } from '../util/errors.ts';
import { formatCount } from '../util/units.ts';
import { crc32c } from './crc32c.ts';
import { KEY_BYTES, type LeafKey } from './leaf-key.ts';

export type RecordKind = 'manifest' | 'leaf' | 'sinks' | 'tail' | 'hmac' | 'window';

/** By number, from 1 on. */
const RECORD_KINDS: readonly RecordKind[] = ['manifest', 'leaf', 'sinks', 'tail', 'hmac', 'window'];

export interface CacheRecord {
  kind: RecordKind;
  key: LeafKey;
  payload: Uint8Array;
}

export interface RecordLimits {
  /** Maximum length of a payload of this kind, in bytes. */
  maxBytes(kind: RecordKind): number;
  /** What is read, for error messages. */
  name?: string;
}

export const HEADER_BYTES = 48;
const MAGIC = new TextEncoder().encode('kvrc');
const VERSION = 1;
const CRC_OFFSET = 4;
const KEY_OFFSET = 16;

/** The bytes of a record: its header, then its payload as it is, which is not copied. */
export function* encodeRecord(record: CacheRecord): Generator<Uint8Array, void> {
  yield encodeHeader(record);
  if (record.payload.length > 0) yield record.payload;
}

export function encodeHeader({ kind, key, payload }: CacheRecord): Uint8Array<ArrayBuffer> {
  if (payload.length >= 2 ** 32)
    throw new CapacityError(
      `A ${kind} record holds at most 4 GiB, and this one has ${formatCount(payload.length)} bytes. Use a smaller ` +
        'recent window.',
    );
  const header = new Uint8Array(HEADER_BYTES);
  const view = new DataView(header.buffer);
  header.set(MAGIC);
  view.setUint16(8, VERSION, true);
  view.setUint16(10, RECORD_KINDS.indexOf(kind) + 1, true);
  view.setUint32(12, payload.length, true);
  header.set(key, KEY_OFFSET);
  view.setUint32(CRC_OFFSET, recordChecksum(header, payload), true);
  return header;
}

const recordChecksum = (header: Uint8Array, payload: Uint8Array): number =>
  crc32c(payload, crc32c(header.subarray(CRC_OFFSET + 4)));

/** What the header of a record says; undefined if it is none. Only the checksum of the whole record can confirm it. */
export function parseHeader(header: Uint8Array): { kind: RecordKind; key: LeafKey; length: number } | undefined {
  if (header.length < HEADER_BYTES || MAGIC.some((byte, i) => byte !== header[i])) return undefined;
  const view = new DataView(header.buffer, header.byteOffset, HEADER_BYTES);
  const kind = RECORD_KINDS[view.getUint16(10, true) - 1];
  if (view.getUint16(8, true) !== VERSION || kind === undefined) return undefined;
  return { kind, key: header.slice(KEY_OFFSET, HEADER_BYTES) as LeafKey, length: view.getUint32(12, true) };
}

/** A whole record in memory; undefined if it is damaged. Its payload is not copied. */
export function verifyRecord(bytes: Uint8Array): CacheRecord | undefined {
  const header = parseHeader(bytes);
  if (header?.length !== bytes.length - HEADER_BYTES) return undefined;
  const { kind, key } = header;
  const checksum = new DataView(bytes.buffer, bytes.byteOffset).getUint32(CRC_OFFSET, true);
  const payload = bytes.subarray(HEADER_BYTES);
  return recordChecksum(bytes.subarray(0, HEADER_BYTES), payload) === checksum ? { kind, key, payload } : undefined;
}

/** Yields the records of a stream, each as soon as it is complete and its checksum matches. */
export async function* readRecords(
  source: AsyncIterable<Uint8Array>,
  limits: RecordLimits,
): AsyncGenerator<CacheRecord, void> {
  const reader = createByteReader(source);
  const check: Check = createRecordCheck(limits.name ?? 'The file');
  try {
    for (let index = 0; ; index++) {
      const header = new Uint8Array(HEADER_BYTES);
      const headerBytes = await reader.fill(header);
      if (headerBytes === 0) return;
      const { kind, length, checksum } = decodeHeader(header.subarray(0, headerBytes), index, limits, check);
      const payload = new Uint8Array(length);
      const place = `record ${index} (${kind})`;
      check((await reader.fill(payload)) === length, `it ends within ${place}`);
      check(recordChecksum(header, payload) === checksum, `the checksum of ${place} does not match`);
      yield { kind, key: header.slice(KEY_OFFSET, KEY_OFFSET + KEY_BYTES), payload };
    }
  } finally {
    await reader.close();
  }
}

function decodeHeader(header: Uint8Array, index: number, { maxBytes, name = 'The file' }: RecordLimits, check: Check) {
  const hasMagic = MAGIC.every((byte, i) => byte === header[i]);
  check(hasMagic, index === 0 ? 'it is not a file of Kvasir records' : `after record ${index - 1} no record follows`);
  check(header.length === HEADER_BYTES, `it ends within the header of record ${index}`);
  const view = new DataView(header.buffer, header.byteOffset, header.length);
  const version = view.getUint16(8, true);
  if (version !== VERSION)
    throw new UnsupportedError(
      `${name} has records of format version ${version}; this Kvasir reads ${VERSION}. Use the Kvasir that wrote it.`,
    );
  const kind = RECORD_KINDS[view.getUint16(10, true) - 1];
  check(kind !== undefined, `record ${index} is of an unknown kind`);
  const length = view.getUint32(12, true);
  check(
    length <= maxBytes(kind),
    `record ${index} (${kind}) claims ${formatCount(length)} bytes, and at most ${formatCount(maxBytes(kind))} are expected`,
  );
  return { kind, length, checksum: view.getUint32(CRC_OFFSET, true) };
}

export type Check = (condition: boolean, what: string) => asserts condition;

export const createRecordCheck =
  (name: string): Check =>
  (condition, what) => {
    if (!condition)
      throw new FormatError(`${name} cannot be used: ${what}. It is truncated or damaged: use another copy of it.`);
  };

/** Cuts a stream of chunks of any size into pieces of given sizes. */
function createByteReader(source: AsyncIterable<Uint8Array>) {
  const iterator = source[Symbol.asyncIterator]();
  let chunk = new Uint8Array(0);
  return {
    /** Returns the number of bytes that were there: fewer than asked for only at the end. */
    async fill(into: Uint8Array): Promise<number> {
      let done = 0;
      while (done < into.length) {
        if (chunk.length === 0) {
          const next = await iterator.next();
          if (next.done) break;
          chunk = next.value as Uint8Array<ArrayBuffer>;
        }
        const taken = chunk.subarray(0, into.length - done);
        into.set(taken, done);
        done += taken.length;
        chunk = chunk.subarray(taken.length);
      }
      return done;
    },
    async close() {
      await iterator.return?.();
    },
  };
}
