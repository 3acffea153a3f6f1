/**
 * Parses the header of a GGUF file (version 2 or 3, little endian). Files are untrusted: every count and length is
 * checked against the remaining bytes before anything is allocated or looped over.
 *
 *   "GGUF", u32 version, u64 tensors, u64 pairs
 *   pairs:    string key, u32 type, value        string: u64 length, UTF-8     array: u32 type, u64 count, values
 *   tensors:  string name, u32 dims, u64 extent each (fastest first), u32 weight type, u64 offset
 *   padding to the alignment, then the data; offsets are relative to its start
 */

import { type WeightType, weightFormats, weightTypeById } from '../kernel/weights/types.ts';
import { assert, FormatError, UnsupportedError } from '../util/errors.ts';
import { checkGgufMagic } from './gguf-magic.ts';
import type { ByteSource } from './source.ts';

export type MetadataArray =
  | Uint8Array
  | Int8Array
  | Uint16Array
  | Int16Array
  | Uint32Array
  | Int32Array
  | Float32Array
  | Float64Array
  | string[]
  | MetadataArray[];
export type MetadataValue = number | boolean | string | MetadataArray;

export interface TensorInfo {
  readonly name: string;
  readonly type: WeightType;
  /** Fastest dimension first, as in the file: a matrix is [inputs, outputs]. */
  readonly shape: readonly number[];
  readonly bytes: number;
  /** Bytes from the start of its file. */
  readonly offset: number;
  /** Index of the file of a split model; 0 in a single header. */
  readonly shard: number;
}

export interface GgufHeader {
  readonly version: number;
  readonly alignment: number;
  readonly metadata: Map<string, MetadataValue>;
  readonly tensors: Map<string, TensorInfo>;
}

/** Enough for a vocabulary of 256K tokens with three merges each, the largest that models have. */
const limits = {
  headerBytes: 32 * 2 ** 20,
  pairs: 2 ** 16,
  tensors: 2 ** 16,
  /** Elements of all arrays together. */
  strings: 2 ** 20,
  numbers: 2 ** 21,
  /** Arrays of arrays, which no real file has. Each takes far more memory than its 12 bytes in the file. */
  depth: 4,
  arrays: 2 ** 12,
  keyBytes: 2 ** 16 - 1,
  tensorNameBytes: 256,
  stringBytes: 16 * 2 ** 20,
  alignment: 2 ** 16,
};
const firstReadBytes = 256 * 1024;

/** Thrown when the bytes read so far end inside the header but the file continues. */
class NeedMoreBytes extends Error {
  readonly length: number;
  constructor(length: number) {
    super();
    this.length = length;
  }
}

/** Reads a growing prefix of the file until it contains the whole header. */
export async function readHeader(source: ByteSource): Promise<GgufHeader> {
  const maxLength = Math.min(source.size, limits.headerBytes);
  let bytes = new Uint8Array(0);
  for (let length = Math.min(firstReadBytes, maxLength); ; ) {
    const grown = new Uint8Array(length);
    grown.set(bytes);
    await source.readInto(bytes.length, grown.subarray(bytes.length));
    bytes = grown;
    try {
      return parseHeader(new Cursor(bytes, source));
    } catch (error) {
      if (!(error instanceof NeedMoreBytes)) throw error;
      assert(bytes.length < maxLength, 'the header is longer than its file');
      length = Math.min(Math.max(length * 2, error.length), maxLength);
    }
  }
}

/** A position in the header. `take` checks bounds before bytes are read. */
class Cursor {
  offset = 0;
  /** Array elements parsed so far. */
  readonly elementCounts = { strings: 0, numbers: 0, arrays: 0 };
  readonly view: DataView;
  readonly bytes: Uint8Array<ArrayBuffer>;
  readonly source: ByteSource;

  constructor(bytes: Uint8Array<ArrayBuffer>, source: ByteSource) {
    this.bytes = bytes;
    this.source = source;
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  fail(what: string): never {
    throw new FormatError(`${this.source.name}: ${what}. The file is damaged or truncated: download it again.`);
  }

  unsupported(what: string): never {
    throw new UnsupportedError(`${this.source.name}: ${what}.`);
  }

  get remaining(): number {
    return this.source.size - this.offset;
  }

  /** Advances by `length` bytes and returns the offset where they start. */
  take(length: number, what: string): number {
    if (length > this.remaining) this.fail(`${what} takes ${length} bytes, but ${this.remaining} remain`);
    const start = this.offset;
    if (start + length > limits.headerBytes) this.fail(`its header is larger than ${limits.headerBytes} bytes`);
    if (start + length > this.bytes.length) throw new NeedMoreBytes(start + length);
    this.offset += length;
    return start;
  }

  /** Makes sure that about `length` bytes are loaded, so that a long array is not parsed again from its start. */
  requireLoaded(length: number): void {
    const end = Math.min(this.offset + length, this.source.size, limits.headerBytes);
    if (end > this.bytes.length) throw new NeedMoreBytes(end);
  }

  u32(what: string): number {
    return this.view.getUint32(this.take(4, what), true);
  }

  u64(what: string): number {
    const start = this.take(8, what);
    const high = this.view.getUint32(start + 4, true);
    if (high > 0x1fffff) this.fail(`${what} is 2^53 or more, larger than any file`);
    return high * 2 ** 32 + this.view.getUint32(start, true);
  }

  /** A count of elements of at least `minBytes` bytes each, which must fit into the rest of the file. */
  count(what: string, minBytes: number, max: number): number {
    const count = this.u64(`the count of ${what}`);
    if (count > max) this.fail(`it declares ${count} ${what}, more than the limit of ${max}`);
    if (count * minBytes > this.remaining)
      this.fail(`it declares ${count} ${what}, more than fit into its ${this.remaining} bytes`);
    return count;
  }

  string(what: string, maxBytes: number): string {
    const length = this.u64(`the length of ${what}`);
    if (length > maxBytes) this.fail(`${what} declares ${length} bytes, more than the ${maxBytes} allowed`);
    const start = this.take(length, what);
    // A vocabulary is hundreds of thousands of short strings, for which TextDecoder is slow.
    if (length < 32) {
      let ascii = '';
      let i = start;
      while (i < this.offset && this.bytes[i] < 128) ascii += String.fromCharCode(this.bytes[i++]);
      if (i === this.offset) return ascii;
    }
    try {
      return utf8.decode(this.bytes.subarray(start, this.offset));
    } catch {
      return this.fail(`${what} is not valid UTF-8`);
    }
  }
}

// Some vocabularies have a byte order mark as a token: it must not be dropped.
const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/** Quotes and shortens a name from a file for printing. */
export const quote = (text: string): string => JSON.stringify(text.length > 80 ? `${text.slice(0, 80)}...` : text);

function parseHeader(cursor: Cursor): GgufHeader {
  const version = parseVersion(cursor);
  const tensorCount = cursor.count('tensors', 33, limits.tensors);
  const pairCount = cursor.count('metadata pairs', 14, limits.pairs);

  const metadata = new Map<string, MetadataValue>();
  for (let i = 0; i < pairCount; i++) {
    const key = cursor.string(`metadata key ${i}`, limits.keyBytes);
    if (key === '') cursor.fail(`metadata key ${i} is empty`);
    if (metadata.has(key)) cursor.fail(`metadata key ${quote(key)} appears twice`);
    const what = `metadata ${quote(key)}`;
    metadata.set(key, parseValue(cursor, cursor.u32(`the type of ${what}`), what, 0));
  }
  const alignment = readAlignment(cursor, metadata);

  const infos: TensorInfo[] = [];
  for (let i = 0; i < tensorCount; i++) infos.push(parseTensor(cursor, i, alignment));
  const dataStart = Math.ceil(cursor.offset / alignment) * alignment;

  const tensors = new Map<string, TensorInfo>();
  for (const info of infos) {
    const offset = dataStart + info.offset;
    if (tensors.has(info.name)) cursor.fail(`tensor ${quote(info.name)} appears twice`);
    if (offset + info.bytes > cursor.source.size)
      cursor.fail(
        `tensor ${quote(info.name)} ends at byte ${offset + info.bytes}, but the file has ${cursor.source.size}`,
      );
    tensors.set(info.name, { ...info, offset });
  }
  return { version, alignment, metadata, tensors };
}

function parseVersion(cursor: Cursor): number {
  checkGgufMagic(cursor.bytes, cursor.source.name);
  const start = cursor.take(8, 'the start of a GGUF file');
  const version = cursor.view.getUint32(start + 4, true);
  if (version !== 0 && (version & 0xffff) === 0)
    cursor.unsupported('big endian GGUF files are not supported; use the little endian version of the model');
  if (version === 0) cursor.fail('GGUF version 0 does not exist');
  if (version === 1) cursor.unsupported('GGUF version 1 is obsolete; convert the model again or use a newer file');
  if (version > 3) cursor.unsupported(`GGUF version ${version} is not supported, only versions 2 and 3`);
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

function parseValue(cursor: Cursor, type: number, what: string, depth: number): MetadataValue {
  if (type === typeString) return cursor.string(what, limits.stringBytes);
  if (type === typeArray) return parseArray(cursor, what, depth + 1);
  const value = parseNumbers(cursor, type, 1, what)[0];
  return type === typeBool ? value === 1 : value;
}

function parseArray(cursor: Cursor, what: string, depth: number): MetadataArray {
  if (depth > limits.depth) cursor.fail(`${what} nests arrays more than ${limits.depth} deep`);
  const type = cursor.u32(`the element type of ${what}`);
  const kind = type === typeString ? 'strings' : type === typeArray ? 'arrays' : 'numbers';
  const minBytes = { strings: 8, arrays: 12, numbers: 1 }[kind];
  const count = cursor.count(`elements of ${what}`, minBytes, limits[kind] - cursor.elementCounts[kind]);
  cursor.elementCounts[kind] += count;
  if (type === typeString) {
    cursor.requireLoaded(count * 16);
    const strings: string[] = [];
    for (let i = 0; i < count; i++) strings.push(cursor.string(what, limits.stringBytes));
    return strings;
  }
  if (type === typeArray) {
    const arrays: MetadataArray[] = [];
    for (let i = 0; i < count; i++) arrays.push(parseArray(cursor, what, depth + 1));
    return arrays;
  }
  return parseNumbers(cursor, type, count, what);
}

/** `count` numbers (or bools), copied so that they are aligned for their type. */
function parseNumbers(cursor: Cursor, type: number, count: number, what: string) {
  const Type = arrayTypes[type];
  if (!Type) return cursor.fail(`${what} has the type ${type}, which does not exist`);
  const start = cursor.take(count * Type.BYTES_PER_ELEMENT, what);
  const copy = cursor.bytes.slice(start, cursor.offset);
  const numbers = new Type(copy.buffer);
  if (type === typeBool && copy.some(byte => byte > 1)) cursor.fail(`${what} is neither true nor false`);
  if (!(numbers instanceof BigUint64Array || numbers instanceof BigInt64Array)) return numbers;
  const floats = Float64Array.from(numbers as Iterable<bigint>, Number);
  if (!floats.every(Number.isSafeInteger)) cursor.fail(`${what} has a number beyond 2^53`);
  return floats;
}

function readAlignment(cursor: Cursor, metadata: Map<string, MetadataValue>): number {
  const alignment = metadata.get('general.alignment') ?? 32;
  const isPowerOfTwo = typeof alignment === 'number' && Number.isInteger(Math.log2(alignment)) && alignment >= 1;
  if (!isPowerOfTwo || alignment > limits.alignment)
    return cursor.fail(`general.alignment must be a power of two up to ${limits.alignment}, not ${alignment}`);
  return alignment;
}

/** One tensor's description; its offset is still relative to the start of the data. */
function parseTensor(cursor: Cursor, index: number, alignment: number): TensorInfo {
  const name = cursor.string(`the name of tensor ${index}`, limits.tensorNameBytes);
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
    // No weight type has less than two bits per value; checking here also keeps the product exact.
    if (values > cursor.source.size * 4) cursor.fail(`${what} has more values than the file can hold`);
    shape.push(extent);
  }
  const type = weightType(cursor, cursor.u32(`the type of ${what}`), what);
  const { block, bytes } = weightFormats[type];
  if (shape[0] % block !== 0)
    cursor.fail(`${what} has rows of ${shape[0]} values, which is not a multiple of ${type}'s blocks of ${block}`);
  const offset = cursor.u64(`the offset of ${what}`);
  if (offset % alignment !== 0)
    cursor.fail(`${what} has the offset ${offset}, which is not a multiple of ${alignment}`);
  return { name, type, shape, bytes: (values / block) * bytes, offset, shard: 0 };
}

/** Weight types that exist but are not supported. */
const unsupportedTypes: Record<number, string> = {
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
  40: 'NVFP4',
  41: 'Q1_0',
};

function weightType(cursor: Cursor, id: number, what: string): WeightType {
  const type = weightTypeById(id);
  if (type) return type;
  const other = unsupportedTypes[id];
  if (other)
    cursor.unsupported(
      `${what} has weights of the type ${other}, which is not supported. Use another file of the same model, such as Q4_K_M, ` +
        `IQ4_XS, Q6_K or Q8_0: IQ1, IQ2, IQ3, TQ and NVFP4 in a file's name mean such types. Supported are ` +
        Object.keys(weightFormats).join(', '),
    );
  return cursor.fail(`${what} has the weight type ${id}, which does not exist`);
}
