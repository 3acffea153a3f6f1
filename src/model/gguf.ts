/**
 * A GGUF model: one file, or a split model (`name-00001-of-00003.gguf`) opened by the path of its first file or as
 * sources in any order. Opening reads only the headers; weights are read on demand.
 */

import { dequantize } from '../kernel/weights/dequantize.ts';
import { CapacityError, FormatError, InputError, KvasirError, ShapeError } from '../util/errors.ts';
import { type GgufHeader, type MetadataValue, quote, readHeader, type TensorInfo } from './gguf-header.ts';
import { type ByteSource, fileSource } from './source.ts';

export type { MetadataArray, MetadataValue, TensorInfo } from './gguf-header.ts';

export interface Gguf {
  readonly metadata: ReadonlyMap<string, MetadataValue>;
  readonly tensors: ReadonlyMap<string, TensorInfo>;
  /** The files, in order. */
  readonly shards: readonly ByteSource[];
  close(): Promise<void>;
}

/** More shards than any real model has: a larger count means a damaged file. */
const maxShards = 1024;

interface Shard {
  readonly source: ByteSource;
  readonly header: GgufHeader;
  readonly index: number;
  readonly count: number;
}

export async function openGguf(path: string): Promise<Gguf> {
  const opened = [await fileSource(path)];
  return closeOnError(opened, async () => {
    const shards = [await readShard(opened[0])];
    for (const sibling of siblingPaths(path, shards[0].count)) {
      opened.push(await openSibling(sibling, path));
      shards.push(await readShard(opened[opened.length - 1]));
    }
    return joinShards(shards);
  });
}

/** Reads the headers of all files of a model. Takes ownership of the sources, and closes them on failure. */
export async function readGguf(sources: readonly ByteSource[]): Promise<Gguf> {
  return closeOnError(sources, async () => {
    const shards: Shard[] = [];
    for (const source of sources) shards.push(await readShard(source));
    return joinShards(shards);
  });
}

async function closeOnError<T>(sources: readonly ByteSource[], work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    await closeAll(sources);
    throw error;
  }
}

function joinShards(unordered: readonly Shard[]): Gguf {
  if (unordered.length === 0) throw new InputError('A model needs at least one file, but the list is empty.');
  const shards = unordered.toSorted((a, b) => a.index - b.index);
  shards.forEach(({ source, index, count }, i) => {
    if (count !== shards.length)
      throw new InputError(
        `${source.name} is one of ${count} files, but ${shards.length} were given. Pass all of them.`,
      );
    if (index !== i)
      throw new InputError(`Part ${i + 1} of ${count} is missing, or part ${index + 1} was given twice.`);
  });
  const sources = shards.map(({ source }) => source);
  const tensors = mergeTensors(shards.map(({ header }) => header.tensors));
  const { metadata } = shards[0].header;
  const total = metadata.get('split.tensors.count');
  if (shards.length > 1 && total !== undefined && total !== tensors.size)
    throw new FormatError(`${sources[0].name} declares ${total} tensors, but its files contain ${tensors.size}.`);
  return { metadata, tensors, shards: sources, close: () => closeAll(sources) };
}

const closeAll = async (sources: readonly ByteSource[]) => {
  for (const source of sources) await source.close();
};

function mergeTensors(headers: readonly ReadonlyMap<string, TensorInfo>[]): Map<string, TensorInfo> {
  const tensors = new Map<string, TensorInfo>();
  headers.forEach((header, shard) => {
    for (const [name, tensor] of header) {
      if (tensors.has(name)) throw new FormatError(`Tensor ${quote(name)} is in two files of the split model.`);
      tensors.set(name, { ...tensor, shard });
    }
  });
  return tensors;
}

async function readShard(source: ByteSource): Promise<Shard> {
  const header = await readHeader(source);
  const { metadata } = header;
  // For a model in one file, llama.cpp writes a count of 0 or none.
  const count = metadata.get('split.count') || 1;
  const index = metadata.get('split.no') ?? 0;
  const isCount = (x: MetadataValue): x is number => typeof x === 'number' && Number.isInteger(x) && x >= 0;
  if (!isCount(count) || !isCount(index) || count > maxShards || index >= count)
    throw new FormatError(
      `${source.name}: split.no ${index} of split.count ${count} is invalid. Download the file again.`,
    );
  return { source, header, index, count };
}

/** The paths of the second shard and up. */
function siblingPaths(path: string, count: number): string[] {
  if (count === 1) return [];
  const pad = (n: number) => String(n).padStart(5, '0');
  const first = `-${pad(1)}-of-${pad(count)}.gguf`;
  if (!path.endsWith(first))
    throw new InputError(
      `${path} is part of a model of ${count} files. Pass the path of the first one, named *${first}.`,
    );
  const stem = path.slice(0, -first.length);
  return Array.from({ length: count - 1 }, (_, i) => `${stem}-${pad(i + 2)}-of-${pad(count)}.gguf`);
}

async function openSibling(path: string, first: string): Promise<ByteSource> {
  return fileSource(path).catch(error => {
    if (!(error instanceof KvasirError)) throw error;
    throw new InputError(`${path} belongs to ${first} but cannot be opened. Put all parts in one folder.`, {
      cause: error,
    });
  });
}

/** The tensor of that name; throws if the model has none. */
export function requireTensor(gguf: Pick<Gguf, 'tensors'>, name: string): TensorInfo {
  const tensor = gguf.tensors.get(name);
  if (!tensor) throw new FormatError(`The model has no tensor ${quote(name)}.`);
  return tensor;
}

/** Fills `into` with the tensor's bytes from `start` on. */
export async function readTensorInto(gguf: Gguf, tensor: TensorInfo, into: Uint8Array, start = 0): Promise<void> {
  if (start + into.length > tensor.bytes)
    throw new ShapeError(
      `Tensor ${quote(tensor.name)} has ${tensor.bytes} bytes, but ${start} to ${start + into.length} were requested.`,
    );
  await gguf.shards[tensor.shard].readInto(tensor.offset + start, into);
}

/** Reads and dequantizes a small tensor (a norm, bias or RoPE factors). */
export async function readTensorAsFloat32(gguf: Gguf, tensor: TensorInfo): Promise<Float32Array<ArrayBuffer>> {
  const values = tensor.shape.reduce((a, b) => a * b, 1);
  if (values > 2 ** 28)
    throw new CapacityError(`Tensor ${quote(tensor.name)} has ${values} values, too many to dequantize to float32.`);
  const bytes = await gguf.shards[tensor.shard].read(tensor.offset, tensor.bytes);
  const floats = new Float32Array(values);
  dequantize(tensor.type, bytes, floats);
  return floats;
}
