/**
 * Random access to a model's bytes: a file, a Blob or memory. Reads fill a buffer of the caller, so weights go straight
 * to their destination and the file is never in memory twice.
 */

import { createChunkReader } from '../platform/chunks.ts';
import { platform } from '../platform/node.ts';
import { FormatError, InputError } from '../util/errors.ts';

/** Tells a file on disk from one that has taken its place. */
export interface FileVersion {
  readonly size: number;
  readonly mtimeMs: number;
  readonly ino: number;
}

export interface ByteSource {
  /** A path or file name, for messages. */
  readonly name: string;
  readonly size: number;
  /** In hex, if it is known. */
  readonly sha256?: string;
  /** A file on disk as it was opened. */
  readonly version?: FileVersion;
  /** Fills `into` with the bytes from `offset` on. */
  readInto(offset: number, into: Uint8Array): Promise<void>;
  /** Returns a copy of `length` bytes from `offset` on. */
  read(offset: number, length: number): Promise<Uint8Array<ArrayBuffer>>;
  /** Downloads the rest of a file on a server. */
  complete?(): Promise<void>;
  close(): Promise<void>;
}

type ReadInto = ByteSource['readInto'];

/** A source that checks every range before `fill` reads it. */
export function createSource(
  name: string,
  size: number,
  fill: ReadInto,
  close: () => Promise<void> = async () => {},
): ByteSource {
  if (!Number.isSafeInteger(size) || size < 0) throw new InputError(`${name} has no valid size: ${size}.`);
  const readInto: ReadInto = async (offset, into) => {
    checkRange(name, size, offset, into.length);
    await fill(offset, into);
  };
  const read = async (offset: number, length: number) => {
    // Before the allocation: the length may be hostile.
    checkRange(name, size, offset, length);
    const bytes = new Uint8Array(length);
    await fill(offset, bytes);
    return bytes;
  };
  return { name, size, readInto, read, close };
}

function checkRange(name: string, size: number, offset: number, length: number): void {
  const isValid = Number.isSafeInteger(offset) && Number.isSafeInteger(length) && offset >= 0 && length >= 0;
  if (!isValid || offset + length > size)
    throw new FormatError(
      `${name}: cannot read bytes ${offset} to ${offset + length} of ${size}. The file may be truncated: download it again.`,
    );
}

/** A file on disk. Node only. */
export async function fileSource(path: string): Promise<ByteSource> {
  const { open } = platform.node.fs.promises;
  const file = await open(path, 'r').catch(error => {
    throw new InputError(`${path} cannot be opened (${error.code ?? error.message}). Check the path.`, {
      cause: error,
    });
  });
  const stat = await file.stat();
  if (!stat.isFile()) {
    await file.close();
    throw new InputError(`${path} is not a file. Check the path.`);
  }
  const fill: ReadInto = async (offset, into) => {
    for (let done = 0; done < into.length; ) {
      const { bytesRead } = await file.read(into, done, Math.min(into.length - done, 2 ** 30), offset + done);
      if (bytesRead === 0)
        throw new FormatError(`${path} became shorter while it was being read. Do not change a file in use.`);
      done += bytesRead;
    }
  };
  const { size, mtimeMs, ino } = stat;
  return { ...createSource(path, size, fill, () => file.close()), version: { size, mtimeMs, ino } };
}

/** The sha256 of Blobs for which it is known, in hex. */
export const knownHashes = new WeakMap<Blob, string>();

/** A browser does not read a File whose file on disk was changed, moved or deleted after it had been chosen. */
export const unreadableError = (name: string, cause: unknown): InputError =>
  new InputError(`${name} cannot be read (${(cause as Error).message}). If the file was changed, choose it again.`, {
    cause,
  });

/** Chromium reports a size of 0 for a file that is gone. */
export function checkPresent({ name, size }: File): void {
  if (size === 0) throw unreadableError(name, new Error('it is empty, or was moved or deleted'));
}

/** A Blob or a browser's File. */
export function blobSource(blob: Blob, name = 'name' in blob ? String(blob.name) : 'blob'): ByteSource {
  if ('name' in blob) checkPresent(blob as File);
  const readChunks = createChunkReader();
  const fill: ReadInto = async (offset, into) => {
    let done = 0;
    try {
      for await (const chunk of readChunks(blob.slice(offset, offset + into.length).stream())) {
        into.set(chunk, done);
        done += chunk.length;
      }
    } catch (cause) {
      throw unreadableError(name, cause);
    }
  };
  return { ...createSource(name, blob.size, fill), sha256: knownHashes.get(blob) };
}

/** Bytes in memory. */
export function bytesSource(bytes: Uint8Array, name = 'bytes'): ByteSource {
  const fill: ReadInto = async (offset, into) => into.set(bytes.subarray(offset, offset + into.length));
  return createSource(name, bytes.length, fill);
}
