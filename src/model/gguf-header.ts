/**
 * The header of a GGUF file (version 2 or 3, little endian), which anyone may have written: every count and length is
 * held against the bytes that remain before anything is allocated or looped over.
 *
 *   "GGUF", u32 version, u64 tensors, u64 pairs
 *   pairs:    string key, u32 type, value        string: u64 length, UTF-8     array: u32 type, u64 count, values
 *   tensors:  string name, u32 dims, u64 extent each (fastest first), u32 weight type, u64 offset
 *   padding to the alignment, then the data that the offsets count from
 */
import { assert, FormatError, UnsupportedError } from '../errors.ts';
import { type WeightType, weightFormats, weightTypeOf } from '../kernel/weights/types.ts';
import { checkMagic } from './magic.ts';
import type { ByteSource } from './source.ts';

export type MetaArray =
  | Uint8Array
  | Int8Array
  | Uint16Array
  | Int16Array
  | Uint32Array
  | Int32Array
  | Float32Array
  | Float64Array
  | string[]
  | MetaArray[];
export type MetaValue = number | boolean | string | MetaArray;

export interface TensorInfo {
  readonly name: string;
  readonly type: WeightType;
  /** Extents, fastest first, as the file has them: a matrix is [inputs, outputs]. */
  readonly shape: readonly number[];
  readonly bytes: number;
  /** From the start of its file. */
  readonly offset: number;
  /** Which file of a split model holds it; a header by itself says 0. */
  readonly shard: number;
}

export interface GgufHeader {
  readonly version: number;
  readonly alignment: number;
  readonly metadata: Map<string, MetaValue>;
  readonly tensors: Map<string, TensorInfo>;
}

/** Room for a vocabulary of 256 K words with three merges each; models so far have about that many words at most. */
const limits = {
  header: 32 * 2 ** 20,
  pairs: 2 ** 16,
  tensors: 2 ** 16,
  /** In all arrays together. */
  words: 2 ** 20,
  numbers: 2 ** 21,
  /** Arrays inside arrays, which no real file has: each costs far more memory than its 12 bytes in the file. */
  depth: 4,
  nested: 2 ** 12,
  key: 2 ** 16 - 1,
  tensorName: 256,
  text: 16 * 2 ** 20,
  alignment: 2 ** 16,
};
const firstChunk = 256 * 1024;

/** Thrown when the bytes read so far end inside the header; the file itself goes on. */
class NeedMore extends Error {
  readonly length: number;
  constructor(length: number) {
    super();
    this.length = length;
  }
}

/** Reads a growing piece of the file until the whole header is in it. */
export async function readHeader(source: ByteSource): Promise<GgufHeader> {
  const most = Math.min(source.size, limits.header);
  let bytes = new Uint8Array(0);
  for (let length = Math.min(firstChunk, most); ; ) {
    const grown = new Uint8Array(length);
    grown.set(bytes);
    await source.readInto(bytes.length, grown.subarray(bytes.length));
    bytes = grown;
    try {
      return parseHeader(new Cursor(bytes, source));
    } catch (error) {
      if (!(error instanceof NeedMore)) throw error;
      assert(bytes.length < most, 'a header needs more than all of its file');
      length = Math.min(Math.max(length * 8, error.length), most);
    }
  }
}

/** A place in the header. Bytes are asked for with `take` before they are looked at. */
class Cursor {
  at = 0;
  /** Array elements so far, by kind. */
  readonly seen = { words: 0, numbers: 0, nested: 0 };
  readonly view: DataView;
  readonly bytes: Uint8Array<ArrayBuffer>;
  readonly source: ByteSource;

  constructor(bytes: Uint8Array<ArrayBuffer>, source: ByteSource) {
    this.bytes = bytes;
    this.source = source;
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  fail(what: string): never {
    throw new FormatError(`${this.source.name}: ${what}. The file is damaged or cut short: fetch it again.`);
  }

  unsupported(what: string): never {
    throw new UnsupportedError(`${this.source.name}: ${what}.`);
  }

  get remaining(): number {
    return this.source.size - this.at;
  }

  /** Moves past `length` bytes and says where they began. */
  take(length: number, what: string): number {
    if (length > this.remaining) this.fail(`${what} takes ${length} bytes, but ${this.remaining} remain`);
    const from = this.at;
    if (from + length > limits.header) this.fail(`its header is larger than ${limits.header} bytes`);
    if (from + length > this.bytes.length) throw new NeedMore(from + length);
    this.at += length;
    return from;
  }

  /** Says that about so many bytes will be taken next, so that they are there before the work begins, not midway. */
  expect(length: number): void {
    const end = Math.min(this.at + length, this.source.size, limits.header);
    if (end > this.bytes.length) throw new NeedMore(end);
  }

  u32(what: string): number {
    return this.view.getUint32(this.take(4, what), true);
  }

  u64(what: string): number {
    const from = this.take(8, what);
    const high = this.view.getUint32(from + 4, true);
    if (high > 0x1fffff) this.fail(`${what} is larger than any file (2^53 or more)`);
    return high * 2 ** 32 + this.view.getUint32(from, true);
  }

  /** A count of things that take at least `size` bytes each: as many must be able to follow. */
  count(what: string, size: number, most: number): number {
    const count = this.u64(`the count of ${what}`);
    if (count > most) this.fail(`it claims ${count} ${what}, more than the ${most} that any real file has`);
    if (count * size > this.remaining)
      this.fail(`it claims ${count} ${what}, more than its ${this.remaining} bytes hold`);
    return count;
  }

  text(what: string, most: number): string {
    const length = this.u64(`the length of ${what}`);
    if (length > most) this.fail(`${what} claims ${length} bytes, more than the ${most} allowed`);
    const from = this.take(length, what);
    // Vocabularies are hundreds of thousands of short words: the decoder's overhead would be most of the time.
    if (length < 32) {
      let ascii = '';
      let at = from;
      while (at < this.at && this.bytes[at] < 128) ascii += String.fromCharCode(this.bytes[at++]);
      if (at === this.at) return ascii;
    }
    try {
      return utf8.decode(this.bytes.subarray(from, this.at));
    } catch {
      return this.fail(`${what} is not valid UTF-8`);
    }
  }
}

// A byte order mark is a word of several vocabularies: it must not be dropped.
const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/** A name from a file, fit to be printed. */
export const quote = (text: string): string => JSON.stringify(text.length > 80 ? `${text.slice(0, 80)}...` : text);

function parseHeader(cursor: Cursor): GgufHeader {
  const version = parseVersion(cursor);
  const tensorCount = cursor.count('tensors', 33, limits.tensors);
  const pairCount = cursor.count('metadata pairs', 14, limits.pairs);

  const metadata = new Map<string, MetaValue>();
  for (let i = 0; i < pairCount; i++) {
    const key = cursor.text(`metadata key ${i}`, limits.key);
    if (key === '') cursor.fail(`metadata key ${i} is empty`);
    if (metadata.has(key)) cursor.fail(`metadata key ${quote(key)} comes twice`);
    const what = `metadata ${quote(key)}`;
    metadata.set(key, parseValue(cursor, cursor.u32(`the type of ${what}`), what, 0));
  }
  const alignment = alignmentOf(cursor, metadata);

  const infos: TensorInfo[] = [];
  for (let i = 0; i < tensorCount; i++) infos.push(parseTensor(cursor, i, alignment));
  const dataStart = Math.ceil(cursor.at / alignment) * alignment;

  const tensors = new Map<string, TensorInfo>();
  for (const info of infos) {
    const offset = dataStart + info.offset;
    if (tensors.has(info.name)) cursor.fail(`tensor ${quote(info.name)} comes twice`);
    if (offset + info.bytes > cursor.source.size)
      cursor.fail(
        `tensor ${quote(info.name)} ends at byte ${offset + info.bytes}, but the file has ${cursor.source.size}`,
      );
    tensors.set(info.name, { ...info, offset });
  }
  return { version, alignment, metadata, tensors };
}

function parseVersion(cursor: Cursor): number {
  checkMagic(cursor.bytes, cursor.source.name);
  const start = cursor.take(8, 'the beginning of a GGUF file');
  const version = cursor.view.getUint32(start + 4, true);
  if (version !== 0 && (version & 0xffff) === 0)
    cursor.unsupported('a big endian GGUF file; take the little endian version of the model');
  if (version === 0) cursor.fail('GGUF version 0 does not exist');
  if (version === 1) cursor.unsupported('GGUF version 1 is obsolete; convert the model again or take a newer file');
  if (version > 3) cursor.unsupported(`GGUF version ${version} is not known; versions 2 and 3 are`);
  return version;
}

const arrayTypes = [
  Uint8Array,
  Int8Array,
  Uint16Array,
  Int16Array,
  Uint32Array,
  Int32Array,
  Float32Array,
  Uint8Array, // bool
  undefined, // string
  undefined, // array
  BigUint64Array,
  BigInt64Array,
  Float64Array,
] as const;
const typeBool = 7;
const typeString = 8;
const typeArray = 9;

function parseValue(cursor: Cursor, type: number, what: string, depth: number): MetaValue {
  if (type === typeString) return cursor.text(what, limits.text);
  if (type === typeArray) return parseArray(cursor, what, depth + 1);
  const value = parseNumbers(cursor, type, 1, what)[0];
  return type === typeBool ? value === 1 : value;
}

function parseArray(cursor: Cursor, what: string, depth: number): MetaArray {
  if (depth > limits.depth) cursor.fail(`${what} nests arrays more than ${limits.depth} deep`);
  const type = cursor.u32(`the element type of ${what}`);
  const kind = type === typeString ? 'words' : type === typeArray ? 'nested' : 'numbers';
  const smallest = { words: 8, nested: 12, numbers: 1 }[kind];
  const count = cursor.count(`elements of ${what}`, smallest, limits[kind] - cursor.seen[kind]);
  cursor.seen[kind] += count;
  if (type === typeString) {
    cursor.expect(count * 16);
    const texts: string[] = [];
    for (let i = 0; i < count; i++) texts.push(cursor.text(what, limits.text));
    return texts;
  }
  if (type === typeArray) {
    const arrays: MetaArray[] = [];
    for (let i = 0; i < count; i++) arrays.push(parseArray(cursor, what, depth + 1));
    return arrays;
  }
  return parseNumbers(cursor, type, count, what);
}

/** `count` numbers (or bools) in memory of their own, aligned as their type asks. */
function parseNumbers(cursor: Cursor, type: number, count: number, what: string) {
  const Type = arrayTypes[type];
  if (!Type) return cursor.fail(`${what} has the type ${type}, which does not exist`);
  const from = cursor.take(count * Type.BYTES_PER_ELEMENT, what);
  const own = cursor.bytes.slice(from, cursor.at);
  const numbers = new Type(own.buffer);
  if (type === typeBool && own.some(byte => byte > 1)) cursor.fail(`${what} is neither true nor false`);
  if (!(numbers instanceof BigUint64Array || numbers instanceof BigInt64Array)) return numbers;
  const safe = Float64Array.from(numbers as Iterable<bigint>, Number);
  if (!safe.every(Number.isSafeInteger)) cursor.fail(`${what} holds a number beyond 2^53`);
  return safe;
}

function alignmentOf(cursor: Cursor, metadata: Map<string, MetaValue>): number {
  const alignment = metadata.get('general.alignment') ?? 32;
  const fine = typeof alignment === 'number' && Number.isInteger(Math.log2(alignment)) && alignment >= 1;
  if (!fine || alignment > limits.alignment)
    return cursor.fail(`general.alignment must be a power of two up to ${limits.alignment}, not ${alignment}`);
  return alignment;
}

/** One tensor's description; its offset still counts from the start of the data. */
function parseTensor(cursor: Cursor, index: number, alignment: number): TensorInfo {
  const name = cursor.text(`the name of tensor ${index}`, limits.tensorName);
  if (name === '') cursor.fail(`tensor ${index} has no name`);
  const what = `tensor ${quote(name)}`;
  const dims = cursor.u32(`the dimension count of ${what}`);
  if (dims < 1 || dims > 4) cursor.fail(`${what} has ${dims} dimensions; 1 to 4 are allowed`);
  const shape: number[] = [];
  let values = 1;
  for (let d = 0; d < dims; d++) {
    const extent = cursor.u64(`dimension ${d} of ${what}`);
    if (extent < 1) cursor.fail(`dimension ${d} of ${what} is zero`);
    values *= extent;
    // No weight takes less than two bits, so a larger product cannot be in the file, and stays exact until here.
    if (values > cursor.source.size * 4) cursor.fail(`${what} has more values than the file can hold`);
    shape.push(extent);
  }
  const type = weightType(cursor, cursor.u32(`the type of ${what}`), what);
  const { block, bytes } = weightFormats[type];
  if (shape[0] % block !== 0)
    cursor.fail(`${what} has rows of ${shape[0]} values, but ${type} packs them in blocks of ${block}`);
  const offset = cursor.u64(`the offset of ${what}`);
  if (offset % alignment !== 0) cursor.fail(`${what} begins at ${offset}, not at a multiple of ${alignment}`);
  return { name, type, shape, bytes: (values / block) * bytes, offset, shard: 0 };
}

/** Types that exist but that we do not read. */
const otherTypes: Record<number, string> = {
  4: 'Q4_2',
  5: 'Q4_3',
  9: 'Q8_1',
  15: 'Q8_K',
  16: 'IQ2_XXS',
  17: 'IQ2_XS',
  18: 'IQ3_XXS',
  19: 'IQ1_S',
  21: 'IQ3_S',
  22: 'IQ2_S',
  23: 'IQ4_XS',
  24: 'I8',
  25: 'I16',
  26: 'I32',
  27: 'I64',
  28: 'F64',
  29: 'IQ1_M',
  31: 'Q4_0_4_4',
  32: 'Q4_0_4_8',
  33: 'Q4_0_8_8',
  34: 'TQ1_0',
  35: 'TQ2_0',
  36: 'IQ4_NL_4_4',
  37: 'IQ4_NL_4_8',
  38: 'IQ4_NL_8_8',
  39: 'MXFP4',
  40: 'NVFP4',
  41: 'Q1_0',
};

function weightType(cursor: Cursor, id: number, what: string): WeightType {
  const type = weightTypeOf(id);
  if (type) return type;
  const other = otherTypes[id];
  if (other)
    cursor.unsupported(
      `${what} is stored as ${other}, which this version does not read; take a file in one of ${Object.keys(weightFormats).join(', ')}`,
    );
  return cursor.fail(`${what} has the weight type ${id}, which does not exist`);
}
