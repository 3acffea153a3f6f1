/**
 * Segments: append-only files of entries, and their index files. All numbers are little-endian.
 *
 *   segment   0   4 bytes   "kvsg"
 *             4   u32       crc32c of the 24 bytes that follow
 *             8   u64       format version, 1
 *             16  f64       when it was created, in ms since 1970
 *             24  8 bytes   random id
 *             32  entries
 *
 *   entry     0   4 bytes   "kven"
 *             4   u32       crc32c of the segment's id and of the 72 bytes that follow
 *             8   f64       when the record was stored
 *             16  16 bytes  id of its tenant
 *             32  record    header and payload (record.ts), with a checksum of its own
 *
 *   index     0   4 bytes   "kvix"
 *             4   u32       crc32c of all bytes that follow
 *             8   8 bytes   id of the segment
 *             16  the first 80 bytes of each of its entries: all but the payloads
 *
 * Entries follow each other without gaps, so an index says where each of them is, and a segment without an index is
 * scanned from entry to entry without reading payloads. A scan ends at the first entry that is not complete: what a
 * crash left behind. A payload is only verified when it is read. The id is part of the checksum so that old blocks of a
 * deleted segment never pass for entries of this one.
 */
import { toHex } from '../util/sha256.ts';
import { crc32c } from './crc32c.ts';
import { type FileSystem, type OpenFile, readFully, writeFully } from './file-system.ts';
import { nameText, type RecordName, TENANT_BYTES } from './leaf-store.ts';
import { type CacheRecord, encodeHeader, HEADER_BYTES, parseHeader, verifyRecord } from './record.ts';

export const SEGMENT_HEADER_BYTES = 32;
const ENTRY_HEADER_BYTES = 32;
/** An entry without its payload. */
export const PREFIX_BYTES = ENTRY_HEADER_BYTES + HEADER_BYTES;
const INDEX_HEADER_BYTES = 16;
const ID_BYTES = 8;
const VERSION = 1;
/** What does not verify is read again: a bit may have been flipped on the way. */
export const MAX_READS = 4;
const ascii = (text: string) => new TextEncoder().encode(text);
const [SEGMENT_MAGIC, ENTRY_MAGIC, INDEX_MAGIC] = ['kvsg', 'kven', 'kvix'].map(ascii);

export interface SegmentHeader {
  id: Uint8Array;
  created: number;
}

/** What is stored of a record, apart from its payload. */
export interface EntryHead extends RecordName {
  stored: number;
  tenant: Uint8Array;
}

/** An entry of a segment. */
export interface ScannedEntry {
  /** `nameText` of its record. */
  name: string;
  offset: number;
  /** Bytes, with its header. */
  size: number;
  stored: number;
  /** In hexadecimal. */
  tenant: string;
}

export function encodeSegmentHeader({ id, created }: SegmentHeader): Uint8Array {
  const bytes = new Uint8Array(SEGMENT_HEADER_BYTES);
  const view = viewOf(bytes);
  bytes.set(SEGMENT_MAGIC);
  view.setBigUint64(8, BigInt(VERSION), true);
  view.setFloat64(16, created, true);
  bytes.set(id, 24);
  view.setUint32(4, crc32c(bytes.subarray(8)), true);
  return bytes;
}

function decodeSegmentHeader(bytes: Uint8Array): SegmentHeader | undefined {
  const view = viewOf(bytes);
  const isValid = startsWith(bytes, SEGMENT_MAGIC) && view.getUint32(4, true) === crc32c(bytes.subarray(8));
  if (!isValid || view.getBigUint64(8, true) !== BigInt(VERSION)) return undefined;
  return { created: view.getFloat64(16, true), id: bytes.slice(24, 24 + ID_BYTES) };
}

/** The first bytes of an entry, to be followed by the payload. */
export function encodePrefix(id: Uint8Array, entry: EntryHead & { payload: Uint8Array }): Uint8Array {
  const bytes = new Uint8Array(PREFIX_BYTES);
  const view = viewOf(bytes);
  bytes.set(ENTRY_MAGIC);
  view.setFloat64(8, entry.stored, true);
  bytes.set(entry.tenant, 16);
  bytes.set(encodeHeader(entry), ENTRY_HEADER_BYTES);
  view.setUint32(4, prefixChecksum(id, bytes), true);
  return bytes;
}

/** The entry at an offset of its segment; undefined if it makes no sense. Verified is what its first bytes were read from. */
function parsePrefix(bytes: Uint8Array, offset: number): ScannedEntry | undefined {
  const record = parseHeader(bytes.subarray(ENTRY_HEADER_BYTES));
  if (!record) return undefined;
  const tenant = toHex(bytes.subarray(16, 16 + TENANT_BYTES));
  const stored = viewOf(bytes).getFloat64(8, true);
  return { name: nameText(record), offset, size: PREFIX_BYTES + record.length, stored, tenant };
}

const isValidPrefix = (id: Uint8Array, bytes: Uint8Array): boolean =>
  startsWith(bytes, ENTRY_MAGIC) && viewOf(bytes).getUint32(4, true) === prefixChecksum(id, bytes);

const prefixChecksum = (id: Uint8Array, prefix: Uint8Array) => crc32c(prefix.subarray(8, PREFIX_BYTES), crc32c(id));

/** The record of a whole entry; undefined if it is damaged or has another name (`nameText`). */
export function verifyEntry(bytes: Uint8Array, name: string): CacheRecord | undefined {
  const record = verifyRecord(bytes.subarray(ENTRY_HEADER_BYTES));
  return record && nameText(record) === name ? record : undefined;
}

export const indexPath = (segmentPath: string): string => segmentPath.replace(/seg$/, 'idx');

/** Writes an index so that it appears complete or not at all. */
export async function writeIndex(
  fs: FileSystem,
  segmentPath: string,
  id: Uint8Array,
  prefixes: readonly Uint8Array[],
): Promise<void> {
  const header = new Uint8Array(INDEX_HEADER_BYTES);
  header.set(INDEX_MAGIC);
  header.set(id, 8);
  let checksum = crc32c(header.subarray(8));
  for (const prefix of prefixes) checksum = crc32c(prefix, checksum);
  viewOf(header).setUint32(4, checksum, true);
  const temporary = segmentPath.replace(/seg$/, 'part');
  await fs.remove(temporary).catch(() => {});
  const file = await fs.create(temporary);
  try {
    await writeFully(file, [header, ...prefixes], 0);
    await file.sync();
  } finally {
    await file.close();
  }
  await fs.rename(temporary, indexPath(segmentPath));
}

/** The entries of a segment, from its index or else by scanning it; undefined if it is not a segment. */
export async function readEntries(
  fs: FileSystem,
  path: string,
  file: OpenFile,
  size: number,
): Promise<{ header: SegmentHeader; entries: ScannedEntry[] } | undefined> {
  if (size < SEGMENT_HEADER_BYTES) return undefined;
  const header = await readAndDecode(file, SEGMENT_HEADER_BYTES, 0, decodeSegmentHeader);
  if (!header) return undefined;
  const indexed = await readIndex(fs, path, header.id, size).catch(() => undefined);
  return { header, entries: indexed ?? (await scan(file, header.id, size)) };
}

async function readIndex(
  fs: FileSystem,
  segmentPath: string,
  id: Uint8Array,
  size: number,
): Promise<ScannedEntry[] | undefined> {
  const file = await fs.open(indexPath(segmentPath));
  try {
    const bytes = new Uint8Array(await file.size());
    if (bytes.length < INDEX_HEADER_BYTES || !(await readFully(file, bytes, 0))) return undefined;
    const isValid =
      startsWith(bytes, INDEX_MAGIC) &&
      startsWith(bytes.subarray(8), id) &&
      viewOf(bytes).getUint32(4, true) === crc32c(bytes.subarray(8));
    if (!isValid) return undefined;
    const entries: ScannedEntry[] = [];
    let offset = SEGMENT_HEADER_BYTES;
    for (let at = INDEX_HEADER_BYTES; at < bytes.length; at += PREFIX_BYTES) {
      const entry = parsePrefix(bytes.subarray(at, at + PREFIX_BYTES), offset);
      if (!entry || offset + entry.size > size) return undefined;
      entries.push(entry);
      offset += entry.size;
    }
    return entries;
  } finally {
    await file.close();
  }
}

async function scan(file: OpenFile, id: Uint8Array, size: number): Promise<ScannedEntry[]> {
  const entries: ScannedEntry[] = [];
  for (let offset = SEGMENT_HEADER_BYTES; offset + PREFIX_BYTES <= size; ) {
    const entry = await readAndDecode(file, PREFIX_BYTES, offset, prefix =>
      isValidPrefix(id, prefix) ? parsePrefix(prefix, offset) : undefined,
    );
    if (!entry || offset + entry.size > size) break;
    entries.push(entry);
    offset += entry.size;
  }
  return entries;
}

/** Reads again what cannot be decoded: all that follows would be lost to a bit flipped on the way. */
async function readAndDecode<T>(
  file: OpenFile,
  bytes: number,
  offset: number,
  decode: (bytes: Uint8Array) => T | undefined,
): Promise<T | undefined> {
  const buffer = new Uint8Array(bytes);
  for (let tries = 0; tries < MAX_READS; tries++) {
    const decoded = (await readFully(file, buffer, offset)) ? decode(buffer) : undefined;
    if (decoded) return decoded;
  }
  return undefined;
}

const viewOf = (bytes: Uint8Array) => new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
const startsWith = (bytes: Uint8Array, start: Uint8Array) => start.every((byte, i) => byte === bytes[i]);
