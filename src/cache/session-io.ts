/**
 * Where sessions are written to and read from: a path, a stream, a Blob or bytes. Node's modules are imported on use, so
 * that browsers can load this file.
 */
import { className, describeValue } from '../describe-value.ts';
import { CapacityError, InputError } from '../errors.ts';

/** A path (Node), or a stream, such as that of a browser's file. */
export type SessionTarget = string | WritableStream<Uint8Array>;

/** A path (Node), a stream, a Blob or File, or the bytes. */
export type SessionSource = string | ReadableStream<Uint8Array> | Blob | Uint8Array | ArrayBuffer;

const READ_BYTES = 2 ** 20;

/** Writes all chunks, or fails and leaves nothing: a file appears under its name only when it is complete. */
export async function writeTo(target: SessionTarget, chunks: AsyncIterable<Uint8Array>): Promise<void> {
  if (typeof target === 'string') return writeFile(target, chunks);
  if (isOf(target, 'WritableStream')) return writeStream(target as WritableStream<Uint8Array>, chunks);
  throw new InputError(`A session is saved to a path or a WritableStream; got ${describeValue(target)}.`);
}

/** The bytes of a source, in chunks of any size. A chunk is valid until the next one is requested. */
export function readFrom(source: SessionSource): AsyncIterable<Uint8Array> {
  if (typeof source === 'string') return readFile(source);
  if (isOf(source, 'ReadableStream')) return readStream(source as ReadableStream<Uint8Array>);
  if (isOf(source, 'Blob', 'File')) return readStream((source as Blob).stream());
  if (isOf(source, 'Uint8Array')) return single(source as Uint8Array);
  if (isOf(source, 'ArrayBuffer')) return single(new Uint8Array(source as ArrayBuffer));
  throw new InputError(
    `A session is read from a path, a ReadableStream, a Blob, a Uint8Array or an ArrayBuffer; got ${describeValue(source)}.`,
  );
}

const isOf = (value: unknown, ...names: string[]): boolean =>
  typeof value === 'object' && value !== null && names.includes(className(value));

/**
 * Writes a temporary file next to the target and renames it. Only its owner may read it, since a session holds what was
 * said.
 */
async function writeFile(path: string, chunks: AsyncIterable<Uint8Array>): Promise<void> {
  const { open, realpath, rename, rm, stat } = await importInNode(path, import('node:fs/promises'));
  // A link stays a link to its file.
  const target = await realpath(path).catch(() => path);
  const existing = await stat(target).catch(() => undefined);
  if (existing && !existing.isFile()) throw new InputError(`${path} is not a file. Save the session to another path.`);
  const temporary = `${target}.${crypto.randomUUID()}.part`;
  const failed = (error: NodeJS.ErrnoException) => fileError(path, 'written', error);
  const file = await open(temporary, 'wx', 0o600).catch(failed);
  try {
    for await (const chunk of chunks) await file.writeFile(chunk).catch(failed);
    await file.sync().catch(failed);
    await file.close().catch(failed);
    await rename(temporary, target).catch(failed);
  } catch (error) {
    await file.close().catch(() => {});
    await rm(temporary, { force: true });
    throw error;
  }
  await syncFolder(target);
}

/** Makes a rename durable. Not every system can open a folder. */
async function syncFolder(target: string): Promise<void> {
  const { open } = await import('node:fs/promises');
  const { dirname } = await import('node:path');
  const folder = await open(dirname(target), 'r').catch(() => undefined);
  await folder?.sync().catch(() => {});
  await folder?.close();
}

async function writeStream(stream: WritableStream<Uint8Array>, chunks: AsyncIterable<Uint8Array>): Promise<void> {
  if (stream.locked) throw new InputError('The stream has another writer. Release it, or pass another stream.');
  const writer = stream.getWriter();
  try {
    for await (const chunk of chunks) await writer.write(chunk);
    await writer.close();
  } catch (error) {
    await writer.abort(error).catch(() => {});
    throw error;
  } finally {
    writer.releaseLock();
  }
}

async function* readFile(path: string): AsyncGenerator<Uint8Array, void> {
  const { createReadStream } = await importInNode(path, import('node:fs'));
  const chunks = createReadStream(path, { highWaterMark: READ_BYTES });
  const iterator: AsyncIterator<Uint8Array> = chunks[Symbol.asyncIterator]();
  try {
    for (;;) {
      const { value, done } = await iterator.next().catch(error => fileError(path, 'read', error));
      if (done) return;
      yield value;
    }
  } finally {
    chunks.destroy();
  }
}

/** With a reader: not all browsers can iterate streams. */
async function* readStream(stream: ReadableStream<Uint8Array>): AsyncGenerator<Uint8Array, void> {
  if (stream.locked) throw new InputError('The stream has another reader. Release it, or pass another stream.');
  const reader = stream.getReader();
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      if (!isOf(value, 'Uint8Array'))
        throw new InputError(`A session's stream must consist of Uint8Arrays; got ${describeValue(value)}.`);
      yield value;
    }
  } finally {
    await reader.cancel().catch(() => {});
    reader.releaseLock();
  }
}

async function* single(bytes: Uint8Array): AsyncGenerator<Uint8Array, void> {
  yield bytes;
}

async function importInNode<T>(path: string, module: Promise<T>): Promise<T> {
  return module.catch(error => {
    throw new InputError(`'${path}' can only be opened in Node. In a browser, use a stream or a Blob.`, {
      cause: error,
    });
  });
}

function fileError(path: string, act: 'read' | 'written', error: NodeJS.ErrnoException): never {
  if (error.code === 'ENOSPC' || error.code === 'EDQUOT')
    throw new CapacityError(`${path} cannot be written: the disk is full. Free some space, or use another disk.`, {
      cause: error,
    });
  throw new InputError(`${path} cannot be ${act} (${error.code ?? error.message}). Check the path.`, { cause: error });
}
