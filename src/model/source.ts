/**
 * Where a model's bytes come from: a file, or a Blob that a browser's user picked. Reads fill memory that the caller
 * gives, so weights stream straight to where they will live and the file is never held twice.
 */
import { FormatError, InputError } from '../errors.ts';

export interface ByteSource {
  /** For messages: a path, a file's name. */
  readonly name: string;
  readonly size: number;
  /** Fills all of `into` with the bytes from `offset` on. */
  readInto(offset: number, into: Uint8Array): Promise<void>;
  /** The bytes from `offset` on, in memory of their own. */
  read(offset: number, length: number): Promise<Uint8Array<ArrayBuffer>>;
  close(): Promise<void>;
}

/** Bytes a Blob is read in: a Blob can only hand out copies, so they are kept small. */
const blobStep = 4 * 2 ** 20;

type Fill = ByteSource['readInto'];

function sourceOf(name: string, size: number, fill: Fill, close: () => Promise<void>): ByteSource {
  if (!Number.isSafeInteger(size) || size < 0) throw new InputError(`${name} has no size that can be read: ${size}.`);
  const readInto: Fill = async (offset, into) => {
    checkRange(name, size, offset, into.length);
    await fill(offset, into);
  };
  const read = async (offset: number, length: number) => {
    // Before the allocation: a hostile length must not become memory.
    checkRange(name, size, offset, length);
    const bytes = new Uint8Array(length);
    await fill(offset, bytes);
    return bytes;
  };
  return { name, size, readInto, read, close };
}

function checkRange(name: string, size: number, offset: number, length: number): void {
  const fine = Number.isSafeInteger(offset) && Number.isSafeInteger(length) && offset >= 0 && length >= 0;
  if (!fine || offset + length > size)
    throw new FormatError(
      `${name}: bytes ${offset} to ${offset + length} were wanted, but it has ${size}. It may be cut short: fetch it again.`,
    );
}

/** A file on disk. Node only; the import waits until then so that this module loads in a browser. */
export async function fileSource(path: string): Promise<ByteSource> {
  const { open } = await import('node:fs/promises');
  const file = await open(path, 'r').catch(error => {
    throw new InputError(`${path} cannot be opened (${error.code ?? error.message}). Check the path.`, {
      cause: error,
    });
  });
  const stat = await file.stat();
  if (!stat.isFile()) {
    await file.close();
    throw new InputError(`${path} is not a file. Give the path of a .gguf file.`);
  }
  const fill: Fill = async (offset, into) => {
    for (let done = 0; done < into.length; ) {
      const { bytesRead } = await file.read(into, done, Math.min(into.length - done, 2 ** 30), offset + done);
      if (bytesRead === 0) throw new FormatError(`${path} shrank while it was read. Do not change it while in use.`);
      done += bytesRead;
    }
  };
  return sourceOf(path, stat.size, fill, () => file.close());
}

/** A Blob or a browser's File. */
export function blobSource(blob: Blob, name = 'name' in blob ? String(blob.name) : 'blob'): ByteSource {
  const fill: Fill = async (offset, into) => {
    for (let done = 0; done < into.length; done += blobStep) {
      const end = Math.min(done + blobStep, into.length);
      into.set(new Uint8Array(await blob.slice(offset + done, offset + end).arrayBuffer()), done);
    }
  };
  return sourceOf(name, blob.size, fill, async () => {});
}

/** Bytes that are in memory already. */
export function bytesSource(bytes: Uint8Array, name = 'bytes'): ByteSource {
  const fill: Fill = async (offset, into) => into.set(bytes.subarray(offset, offset + into.length));
  return sourceOf(name, bytes.length, fill, async () => {});
}
