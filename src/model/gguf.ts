/**
 * A GGUF model: one file, or several that were split (`name-00001-of-00003.gguf`), opened by the first one's path or
 * as sources in any order. The weights stay where they are until they are read.
 */
import { CapacityError, FormatError, InputError, KvasirError, ShapeError } from '../errors.ts';
import { dequantize } from '../kernel/weights/dequantize.ts';
import { type GgufHeader, type MetaValue, quote, readHeader, type TensorInfo } from './gguf-header.ts';
import { type ByteSource, fileSource } from './source.ts';

export type { MetaArray, MetaValue, TensorInfo } from './gguf-header.ts';

export interface Gguf {
  readonly metadata: ReadonlyMap<string, MetaValue>;
  readonly tensors: ReadonlyMap<string, TensorInfo>;
  /** The files, in order. */
  readonly shards: readonly ByteSource[];
  close(): Promise<void>;
}

/** Nobody splits a model finer than this; more is a damaged count. */
const mostShards = 1024;

interface Part {
  readonly source: ByteSource;
  readonly header: GgufHeader;
  readonly no: number;
  readonly count: number;
}

export async function openGguf(path: string): Promise<Gguf> {
  const opened = [await fileSource(path)];
  return orClose(opened, async () => {
    const parts = [await readPart(opened[0])];
    for (const sibling of siblings(path, parts[0].count)) {
      opened.push(await openSibling(sibling, path));
      parts.push(await readPart(opened[opened.length - 1]));
    }
    return join(parts);
  });
}

/** Reads the headers of all files of a model. The sources are the model's from now on, and closed if it is refused. */
export async function readGguf(sources: readonly ByteSource[]): Promise<Gguf> {
  return orClose(sources, async () => {
    const parts: Part[] = [];
    for (const source of sources) parts.push(await readPart(source));
    return join(parts);
  });
}

async function orClose<T>(sources: readonly ByteSource[], work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    await closeAll(sources);
    throw error;
  }
}

function join(unordered: readonly Part[]): Gguf {
  if (unordered.length === 0) throw new InputError('A model needs at least one file; none was given.');
  const parts = unordered.toSorted((a, b) => a.no - b.no);
  parts.forEach(({ source, no, count }, i) => {
    if (count !== parts.length)
      throw new InputError(`${source.name} is one of ${count} files; ${parts.length} were given. Give all of them.`);
    if (no !== i) throw new InputError(`Part ${i + 1} of ${count} is missing, or part ${no + 1} was given twice.`);
  });
  const shards = parts.map(part => part.source);
  const tensors = mergeTensors(parts.map(part => part.header.tensors));
  const metadata = parts[0].header.metadata;
  const total = metadata.get('split.tensors.count');
  if (parts.length > 1 && total !== undefined && total !== tensors.size)
    throw new FormatError(`${shards[0].name} promises ${total} tensors, but its files hold ${tensors.size}.`);
  return { metadata, tensors, shards, close: () => closeAll(shards) };
}

const closeAll = async (sources: readonly ByteSource[]) => {
  for (const source of sources) await source.close();
};

function mergeTensors(headers: readonly ReadonlyMap<string, TensorInfo>[]): Map<string, TensorInfo> {
  const tensors = new Map<string, TensorInfo>();
  headers.forEach((part, shard) => {
    for (const [name, tensor] of part) {
      if (tensors.has(name)) throw new FormatError(`Tensor ${quote(name)} is in two files of the split model.`);
      tensors.set(name, { ...tensor, shard });
    }
  });
  return tensors;
}

async function readPart(source: ByteSource): Promise<Part> {
  const header = await readHeader(source);
  const { metadata } = header;
  // llama.cpp writes count 0 or nothing at all into a model that is whole.
  const count = metadata.get('split.count') || 1;
  const no = metadata.get('split.no') ?? 0;
  const whole = (x: MetaValue): x is number => typeof x === 'number' && Number.isInteger(x) && x >= 0;
  if (!whole(count) || !whole(no) || count > mostShards || no >= count)
    throw new FormatError(
      `${source.name}: part ${no} of ${count} (split.no, split.count) makes no sense. Fetch it again.`,
    );
  return { source, header, no, count };
}

/** The paths of parts 2 and on. */
function siblings(path: string, count: number): string[] {
  if (count === 1) return [];
  const pad = (n: number) => String(n).padStart(5, '0');
  const first = `-${pad(1)}-of-${pad(count)}.gguf`;
  if (!path.endsWith(first))
    throw new InputError(`${path} is part of a model of ${count} files. Give the path of the first, named *${first}.`);
  const stem = path.slice(0, -first.length);
  return Array.from({ length: count - 1 }, (_, i) => `${stem}-${pad(i + 2)}-of-${pad(count)}.gguf`);
}

async function openSibling(path: string, first: string): Promise<ByteSource> {
  return fileSource(path).catch(error => {
    if (!(error instanceof KvasirError)) throw error;
    throw new InputError(`${path} belongs to ${first} but cannot be opened. Put all parts beside each other.`, {
      cause: error,
    });
  });
}

/** The tensor of that name, which the model must have. */
export function tensorOf(gguf: Pick<Gguf, 'tensors'>, name: string): TensorInfo {
  const tensor = gguf.tensors.get(name);
  if (!tensor) throw new FormatError(`The model has no tensor ${quote(name)}.`);
  return tensor;
}

/** Streams a tensor's bytes, from `start` on as many as there is room for, to where they are wanted. */
export async function readTensorInto(gguf: Gguf, tensor: TensorInfo, into: Uint8Array, start = 0): Promise<void> {
  if (start + into.length > tensor.bytes)
    throw new ShapeError(
      `Tensor ${quote(tensor.name)} has ${tensor.bytes} bytes; ${start} to ${start + into.length} were asked for.`,
    );
  await gguf.shards[tensor.shard].readInto(tensor.offset + start, into);
}

/** A tensor as floats: for the small ones (norms, biases, factors), which are kept so. */
export async function readFloats(gguf: Gguf, tensor: TensorInfo): Promise<Float32Array<ArrayBuffer>> {
  const values = tensor.shape.reduce((a, b) => a * b, 1);
  if (values > 2 ** 28)
    throw new CapacityError(`Tensor ${quote(tensor.name)} has ${values} values: too many to hold as floats.`);
  const bytes = await gguf.shards[tensor.shard].read(tensor.offset, tensor.bytes);
  const floats = new Float32Array(values);
  dequantize(tensor.type, bytes, floats);
  return floats;
}
