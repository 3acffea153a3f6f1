/** Where sessions are written to and read from: a path, a stream, a Blob or bytes. */

import { platform } from '../platform/node.ts';
import { className, describeValue } from '../util/describe-value.ts';
import { InputError } from '../util/errors.ts';

/** A path (in a browser: of a file in the site's own storage), or a stream. */
export type SessionTarget = string | WritableStream<Uint8Array>;

/** A path (in a browser: of a file in the site's own storage), a stream, a Blob or File, or the bytes. */
export type SessionSource = string | ReadableStream<Uint8Array> | Blob | Uint8Array | ArrayBuffer;

/** Writes all chunks, or fails and leaves nothing: a file appears under its name only when it is complete. */
export async function writeTo(target: SessionTarget, chunks: AsyncIterable<Uint8Array>): Promise<void> {
  if (typeof target === 'string') return platform.writeFile(target, chunks);
  if (isOf(target, 'WritableStream')) return writeStream(target as WritableStream<Uint8Array>, chunks);
  throw new InputError(`A session is saved to a path or a WritableStream; got ${describeValue(target)}.`);
}

/** The bytes of a source, in chunks of any size. A chunk is valid until the next one is requested. */
export function readFrom(source: SessionSource): AsyncIterable<Uint8Array> {
  if (typeof source === 'string') return platform.readFile(source);
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
