/** Writes GGUF files for tests, whole or split. Nothing is validated, so that invalid files can be written too. */
import { mkdtemp, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type WeightType, weightFormats } from '../../src/kernel/weights/types.ts';

const scalarTypes = {
  u8: 0,
  i8: 1,
  u16: 2,
  i16: 3,
  u32: 4,
  i32: 5,
  f32: 6,
  bool: 7,
  string: 8,
  u64: 10,
  i64: 11,
  f64: 12,
} as const;
export type ScalarType = keyof typeof scalarTypes;
type Scalar = number | bigint | boolean | string;

/** A value and the GGUF type to write it as. */
export interface Typed {
  type: ScalarType | 'array';
  value: Scalar | Typed[];
  /** The element type of an array. */
  of?: ScalarType | 'array';
}
export const typed = (type: ScalarType, value: Scalar): Typed => ({ type, value });
export const arrayOf = (of: ScalarType, values: Iterable<Scalar>): Typed => ({
  type: 'array',
  of,
  value: Array.from(values, value => ({ type: of, value })),
});
export const nested = (...arrays: Typed[]): Typed => ({ type: 'array', of: 'array', value: arrays });

/** Untyped numbers become u32 if they are non-negative integers, else f32. */
export type Metadata = Record<string, Typed | Scalar | string[]>;

function inferType(value: Metadata[string]): Typed {
  if (typeof value === 'string') return typed('string', value);
  if (typeof value === 'boolean') return typed('bool', value);
  if (typeof value === 'bigint') return typed('u64', value);
  if (typeof value === 'number') return typed(Number.isInteger(value) && value >= 0 ? 'u32' : 'f32', value);
  return Array.isArray(value) ? arrayOf('string', value) : value;
}

export interface WriterTensor {
  name: string;
  /** A weight type, or its raw number. */
  type: WeightType | number;
  shape: readonly (number | bigint)[];
  data: Uint8Array;
  /** From the start of the data. Default: after the previous tensor. */
  offset?: number | bigint;
}

export interface GgufSpec {
  version?: number;
  /** Written as general.alignment if set. Default: 32. */
  alignment?: number;
  /** As an entry list, keys may repeat. */
  metadata: Metadata | [string, Metadata[string]][];
  tensors: readonly WriterTensor[];
  /** Counts to write into the header instead of the real ones. */
  claims?: { tensors?: number | bigint; pairs?: number | bigint };
}

const numberArrays: Record<Exclude<ScalarType, 'string'>, (x: number | bigint | boolean) => ArrayBufferView> = {
  u8: x => Uint8Array.of(Number(x)),
  i8: x => Int8Array.of(Number(x)),
  bool: x => Uint8Array.of(Number(x)),
  u16: x => Uint16Array.of(Number(x)),
  i16: x => Int16Array.of(Number(x)),
  u32: x => Uint32Array.of(Number(x)),
  i32: x => Int32Array.of(Number(x)),
  f32: x => Float32Array.of(Number(x)),
  u64: x => BigUint64Array.of(BigInt(x)),
  i64: x => BigInt64Array.of(BigInt(x)),
  f64: x => Float64Array.of(Number(x)),
};

/** A growing buffer of little endian values. */
export class ByteWriter {
  private chunks: Uint8Array[] = [];
  length = 0;

  bytes(chunk: Uint8Array): this {
    this.chunks.push(chunk);
    this.length += chunk.length;
    return this;
  }

  number(type: Exclude<ScalarType, 'string'>, value: number | bigint | boolean): this {
    return this.bytes(new Uint8Array(numberArrays[type](value).buffer));
  }

  u32(value: number): this {
    return this.number('u32', value);
  }

  u64(value: number | bigint): this {
    return this.number('u64', value);
  }

  text(text: string): this {
    const bytes = new TextEncoder().encode(text);
    return this.u64(bytes.length).bytes(bytes);
  }

  value({ type, value, of }: Typed): this {
    if (type === 'string') return this.text(value as string);
    if (type !== 'array') return this.number(type, value as number);
    const items = value as Typed[];
    this.u32(of === 'array' ? 9 : scalarTypes[of!]).u64(items.length);
    for (const item of items) this.value(item);
    return this;
  }

  pad(alignment: number): this {
    return this.bytes(new Uint8Array((alignment - (this.length % alignment)) % alignment));
  }

  finish(): Uint8Array<ArrayBuffer> {
    const all = new Uint8Array(this.length);
    let offset = 0;
    for (const chunk of this.chunks) {
      all.set(chunk, offset);
      offset += chunk.length;
    }
    return all;
  }
}

export function writeGguf(spec: GgufSpec): Uint8Array<ArrayBuffer> {
  const alignment = spec.alignment ?? 32;
  const pairs = Array.isArray(spec.metadata) ? [...spec.metadata] : Object.entries(spec.metadata);
  if (spec.alignment !== undefined) pairs.push(['general.alignment', spec.alignment]);
  const writer = new ByteWriter()
    .bytes(new TextEncoder().encode('GGUF'))
    .u32(spec.version ?? 3)
    .u64(spec.claims?.tensors ?? spec.tensors.length)
    .u64(spec.claims?.pairs ?? pairs.length);
  for (const [key, plain] of pairs) {
    const value = inferType(plain);
    writer.text(key).u32(value.type === 'array' ? 9 : scalarTypes[value.type]);
    writer.value(value);
  }
  const data = new ByteWriter();
  for (const { name, type, shape, data: bytes, offset } of spec.tensors) {
    writer.text(name).u32(shape.length);
    for (const extent of shape) writer.u64(extent);
    writer.u32(typeof type === 'number' ? type : weightFormats[type].id).u64(offset ?? data.length);
    data.bytes(bytes).pad(alignment);
  }
  return writer.pad(alignment).bytes(data.finish()).finish();
}

/** Splits a model like llama.cpp's gguf-split: metadata in the first file, tensors in all. */
export function splitGguf(spec: GgufSpec, count: number): Uint8Array<ArrayBuffer>[] {
  const tensorsPerFile = Math.ceil(spec.tensors.length / count);
  const metadata = Array.isArray(spec.metadata) ? spec.metadata : Object.entries(spec.metadata);
  return Array.from({ length: count }, (_, no) =>
    writeGguf({
      ...spec,
      metadata: [
        ...(no === 0 ? metadata : []),
        ['split.no', typed('u16', no)],
        ['split.count', typed('u16', count)],
        ['split.tensors.count', typed('i32', spec.tensors.length)],
      ],
      tensors: spec.tensors.slice(no * tensorsPerFile, (no + 1) * tensorsPerFile),
    }),
  );
}

/** Writes a model to a new temporary folder and returns the path of its (first) file. */
export async function writeTempModel(spec: GgufSpec, { shards = 1, stem = 'model' } = {}): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'kvasir-model-'));
  const pad = (n: number) => String(n).padStart(5, '0');
  const files = shards === 1 ? [writeGguf(spec)] : splitGguf(spec, shards);
  const paths = files.map((_, i) =>
    join(folder, shards === 1 ? `${stem}.gguf` : `${stem}-${pad(i + 1)}-of-${pad(shards)}.gguf`),
  );
  for (const [i, path] of paths.entries()) await writeFile(path, files[i]);
  return paths[0];
}
