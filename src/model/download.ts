/**
 * A file on a server, which is downloaded as far as it is read: a model's header tells whether it runs, before the rest is
 * sent. What has arrived is kept in Blobs: browsers keep large ones on disk.
 */
import { InputError, NetworkError } from '../util/errors.ts';
import { type ByteSource, blobSource, createSource } from './source.ts';
import type { LoadProgress } from './weights.ts';

export interface DownloadOptions {
  signal?: AbortSignal;
  onProgress?: (progress: LoadProgress) => void;
  /** Throws if a download is too large: called with its size, if the server tells it, and with what has arrived. */
  checkSize?: (bytes: number, isTotal: boolean, name: string) => void;
  /** Throws if a download that starts with these bytes is of another format. */
  checkStart?: (start: Uint8Array, name: string) => void;
}

/** Bytes at the start of a download that `checkStart` gets. */
const startBytes = 64;
/** Chunks are moved to a Blob in parts of this size. */
const blobPartBytes = 64 * 2 ** 20;

/** Closing it stops the download. Without a known size, all of it is downloaded first. */
export async function responseSource(response: Response, name: string, options: DownloadOptions): Promise<ByteSource> {
  if (response.bodyUsed) throw new InputError(`${name} has already been read. Pass a Response with an unread body.`);
  if (!response.ok)
    throw new NetworkError(
      `${name} cannot be fetched: the server answered ${[response.status, response.statusText].join(' ').trim()}. Check the URL.`,
    );
  const reader = response.body?.getReader();
  if (!reader) return blobSource(await response.blob(), name);
  const size = contentLength(response);
  const close = () => reader.cancel().catch(() => {});
  const body = createBodyReader(reader, size, name, options);
  try {
    options.checkSize?.(size ?? 0, size !== undefined, name);
    if (size === undefined) return blobSource(await body(Number.POSITIVE_INFINITY), name);
  } catch (error) {
    await close();
    throw error;
  }
  const fill = async (offset: number, into: Uint8Array) =>
    blobSource(await body(offset + into.length), name).readInto(offset, into);
  return { ...createSource(name, size, fill, close), complete: async () => void (await body(size)) };
}

/** Undefined for a compressed response, whose content-length is not the file's. */
function contentLength({ headers }: Response): number | undefined {
  const length = headers.get('content-length');
  return length === null || headers.has('content-encoding') ? undefined : Number(length);
}

/** Returns a function that reads on until `end` bytes have arrived, or all, and returns what has. */
function createBodyReader(
  reader: ReadableStreamDefaultReader<Uint8Array<ArrayBuffer>>,
  size: number | undefined,
  name: string,
  options: DownloadOptions,
): (end: number) => Promise<Blob> {
  const { checkSize, checkStart, onProgress } = options;
  const blobs: Blob[] = [];
  let chunks: Uint8Array<ArrayBuffer>[] = [];
  let [done, chunkBytes, isChecked] = [0, 0, false];
  const moveToBlob = () => {
    if (chunks.length > 0) blobs.push(new Blob(chunks));
    [chunks, chunkBytes] = [[], 0];
  };
  const readOn = async (end: number): Promise<Blob> => {
    while (done < end) {
      const { value } = await asNetworkError(name, options, () => readUnlessAborted(reader, options.signal));
      if (!value) break;
      chunks.push(value);
      done += value.length;
      chunkBytes += value.length;
      if (size === undefined) checkSize?.(done, false, name);
      if (!isChecked && done >= startBytes) {
        checkStart?.(new Uint8Array(await new Blob([...blobs, ...chunks]).slice(0, startBytes).arrayBuffer()), name);
        isChecked = true;
      }
      if (chunkBytes >= blobPartBytes) moveToBlob();
      if (size !== undefined) onProgress?.({ phase: 'fetch', done, total: size });
    }
    if (size !== undefined && (done < Math.min(end, size) || done > size))
      throw new NetworkError(`${name} ended after ${done} of ${size} bytes. Try again.`);
    moveToBlob();
    return new Blob(blobs);
  };
  // One read after the other; after a failure all fail.
  let reading: Promise<unknown> = Promise.resolve();
  return end => {
    const next = reading.then(() => readOn(end));
    reading = next;
    next.catch(() => {});
    return next;
  };
}

/** The signal may be another one than that of the request, whose body then goes on, or stalls. */
async function readUnlessAborted<T>(reader: ReadableStreamDefaultReader<T>, signal?: AbortSignal) {
  const cancel = () => void reader.cancel(signal?.reason).catch(() => {});
  signal?.addEventListener('abort', cancel);
  try {
    const chunk = await reader.read();
    signal?.throwIfAborted();
    return chunk;
  } finally {
    signal?.removeEventListener('abort', cancel);
  }
}

/** Errors of the network, but not of the caller's signal, as NetworkError. */
export async function asNetworkError<T>(name: string, { signal }: DownloadOptions, step: () => Promise<T>): Promise<T> {
  signal?.throwIfAborted();
  try {
    return await step();
  } catch (error) {
    signal?.throwIfAborted();
    const { message, cause } = error as Error;
    const reason = (cause as Error | undefined)?.message || message;
    throw new NetworkError(`${name} cannot be fetched (${reason}). Check the URL and the network.`, {
      cause: error,
    });
  }
}
