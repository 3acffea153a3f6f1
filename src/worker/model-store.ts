/**
 * Models in the site's own storage (OPFS). A model is written as it arrives, never held in memory, and an interrupted
 * download continues where it stopped. Runs in a Worker: only there does a browser write in place.
 *
 *     models/<id>/<name>       the bytes, as many as have arrived
 *     models/<id>/info.json    where they come from, and whether they are complete
 */

import { readGguf } from '../model/gguf.ts';
import { readModel } from '../model/read-model.ts';
import { checkPresent, createSource, knownHashes, unreadableError } from '../model/source.ts';
import type { LoadProgress } from '../model/weights.ts';
import { createChunkReader } from '../platform/chunks.ts';
import {
  adviceOnSpace,
  deleteStored,
  openFile,
  openFolder,
  openInPlace,
  throwStorageError,
  whenClosed,
  writeFile,
} from '../platform/opfs.ts';
import { className } from '../util/describe-value.ts';
import { CapacityError, FormatError, InputError, NetworkError, UnsupportedError } from '../util/errors.ts';
import { createSha256, sha256, toHex } from '../util/sha256.ts';
import { formatFileSize } from '../util/units.ts';

export interface StoreOptions {
  /** The expected sha256, in hex. A download with another one is deleted. */
  sha256?: string;
  signal?: AbortSignal;
  onProgress?: (progress: LoadProgress) => void;
}

interface ModelInfo {
  source: string;
  /** The size of the complete file. */
  bytes: number;
  etag: string | null;
  /** Of the complete file; absent while it is not complete. */
  sha256?: string;
}

/** What is left of a source, from an offset on. */
interface Remainder {
  /** 0 if it must be read from the start. */
  offset: number;
  total: number;
  etag: string | null;
  stream: ReadableStream<Uint8Array>;
}

const BLOCK_BYTES = 2 ** 20;

/** The stored file of a URL or a File, which is downloaded or copied unless it is stored completely. */
export async function storeModel(source: string | File, options: StoreOptions = {}): Promise<File> {
  const { signal } = options;
  if (typeof source !== 'string') checkPresent(source);
  const origin =
    typeof source === 'string' ? new URL(source).href : `${source.name} ${source.size} ${source.lastModified}`;
  const id = toHex(sha256(new TextEncoder().encode(origin))).slice(0, 16);
  const name = (typeof source === 'string' ? new URL(source).pathname.split('/').at(-1) : source.name) || 'model';
  const path = `models/${id}/${name}`;
  // Where nothing can be stored, there are no locks either: this tells why.
  await openFolder('models').catch(error => throwStorageError(path, 'read', error));
  const store = async () => {
    const stored = await findStored(path, id);
    if (stored) return stored;
    try {
      await download(source, origin, path, id, options);
    } catch (error) {
      const { size } = await (await openFile(path, true)).getFile();
      // Nothing has arrived that a next attempt could continue.
      if (size === 0) await deleteStored(`models/${id}`).catch(() => {});
      signal?.throwIfAborted();
      return throwStorageError(path, 'written', error);
    }
    return (await findStored(path, id))!;
  };
  // Another tab may be storing the same model: then this one waits for it.
  return navigator.locks.request(`kvasir ${id}`, { signal }, store);
}

async function findStored(path: string, id: string): Promise<File | undefined> {
  const info = await readInfo(id);
  const handle = await openFile(path, true).catch(error => throwStorageError(path, 'read', error));
  const file = await handle.getFile();
  if (info?.sha256 === undefined || info.bytes !== file.size) return undefined;
  knownHashes.set(file, info.sha256);
  return file;
}

async function readInfo(id: string): Promise<ModelInfo | undefined> {
  try {
    const folder = await openFolder(`models/${id}`);
    return JSON.parse(await (await (await folder.getFileHandle('info.json')).getFile()).text());
  } catch {
    // None yet, or damaged: the model is stored again.
    return undefined;
  }
}

async function writeInfo(id: string, info: ModelInfo): Promise<void> {
  await writeFile(
    `models/${id}/info.json`,
    (async function* () {
      yield new TextEncoder().encode(JSON.stringify(info));
    })(),
  );
}

async function download(
  source: string | File,
  origin: string,
  path: string,
  id: string,
  { signal, onProgress, sha256: expected }: StoreOptions,
): Promise<void> {
  const known = await readInfo(id);
  // Only one tab at a time stores a model: a file that is still open is one of a tab that is being closed.
  const file = await whenClosed(() => openInPlace(path, true));
  try {
    const { stream, offset, total, etag } = await open(source, known ? file.getSize() : 0, known, signal);
    const info: ModelInfo = { source: origin, bytes: total, etag };
    await checkSpace(path, total - offset);
    await writeInfo(id, info);
    file.truncate(offset);
    const hash = createSha256();
    for (let at = 0; at < offset; at += BLOCK_BYTES) {
      const block = new Uint8Array(Math.min(BLOCK_BYTES, offset - at));
      file.read(block, { at });
      hash.update(block);
    }
    let done = offset;
    const chunks = chunksOf(stream, path, source);
    const readUntil = async (end: number) => {
      while (done < end) {
        const { value: chunk } = await chunks.next();
        signal?.throwIfAborted();
        if (!chunk)
          throw new NetworkError(`${path} ended after ${done} of ${total} bytes. Load it again: it continues there.`);
        // Chromium may return less, or an error code, when the storage is full.
        if (file.write(chunk, { at: done }) !== chunk.length) throw new DOMException('', 'QuotaExceededError');
        done += chunk.length;
        hash.update(chunk);
        onProgress?.({ phase: 'fetch', done, total });
      }
    };
    const arriving = createSource(path, total, async (offset, into) => {
      await readUntil(offset + into.length);
      file.read(into, { at: offset });
    });
    try {
      readModel(await readGguf([arriving]));
      await readUntil(total);
    } catch (error) {
      // A model that does not run is not kept, and the rest of it not downloaded.
      if (error instanceof FormatError || error instanceof UnsupportedError) file.truncate(0);
      throw error;
    } finally {
      await chunks.return(undefined);
    }
    file.flush();
    const found = toHex(hash.digest());
    if (expected !== undefined && found !== expected.toLowerCase()) {
      file.truncate(0);
      throw new FormatError(
        `${path} is damaged or another file: its sha256 is ${found}, not ${expected}. Check the URL and the hash.`,
      );
    }
    await writeInfo(id, { ...info, sha256: found });
  } finally {
    file.close();
  }
}

async function* chunksOf(stream: ReadableStream<Uint8Array>, path: string, source: string | File) {
  try {
    yield* createChunkReader()(stream);
  } catch (cause) {
    if (typeof source !== 'string') throw unreadableError(source.name, cause);
    throw new NetworkError(
      `${path} was interrupted (${(cause as Error).message}). Load it again: it continues there.`,
      {
        cause,
      },
    );
  }
}

async function open(
  source: string | File,
  stored: number,
  known: ModelInfo | undefined,
  signal: AbortSignal | undefined,
): Promise<Remainder> {
  if (typeof source !== 'string')
    return { offset: stored, total: source.size, etag: null, stream: source.slice(stored).stream() };
  let response = await request(source, stored > 0 ? stored : undefined, signal);
  if (totalOf(response) === undefined) {
    // A host that compresses does not tell the size. Ranges are never compressed, and tell it.
    await response.body?.cancel();
    response = await request(source, 0, signal);
  }
  const etag = response.headers.get('etag');
  const total = totalOf(response);
  const isRest = stored > 0 && response.status === 206;
  if (isRest && (total !== known?.bytes || etag !== known?.etag)) {
    // The file has changed since.
    await response.body?.cancel();
    return open(source, 0, undefined, signal);
  }
  if (total === undefined || !response.body)
    throw new UnsupportedError(
      `${source} cannot be stored: the server does not tell its size. It must send content-length, uncompressed.`,
    );
  return { offset: isRest ? stored : 0, total, etag, stream: response.body };
}

/** `from`: asks for the range from there on. */
async function request(url: string, from: number | undefined, signal: AbortSignal | undefined): Promise<Response> {
  const headers: Record<string, string> = from === undefined ? {} : { range: `bytes=${from}-` };
  // The HTTP cache would store the model a second time.
  const response = await fetch(url, { signal, headers, cache: 'no-store' }).catch(cause => {
    signal?.throwIfAborted();
    throw new NetworkError(`${url} cannot be fetched (${cause.message}). Check the URL and the network.`, { cause });
  });
  // The stored part is as long as the file, or longer.
  if (response.status === 416 && from) return request(url, undefined, signal);
  if (!response.ok)
    throw new NetworkError(`${url} cannot be fetched: the server answered ${response.status}. Check the URL.`);
  return response;
}

function totalOf({ status, headers }: Response): number | undefined {
  if (status === 206) return Number(headers.get('content-range')?.match(/\/(\d+)$/)?.[1]) || undefined;
  return headers.has('content-encoding') ? undefined : Number(headers.get('content-length')) || undefined;
}

async function checkSpace(path: string, bytes: number): Promise<void> {
  const { usage = 0, quota = Number.POSITIVE_INFINITY } = await navigator.storage.estimate();
  if (bytes <= quota - usage) return;
  throw new CapacityError(
    `${path} needs ${formatFileSize(bytes)} more of the browser's storage, and ${formatFileSize(quota - usage)} are ` +
      `free. ${await adviceOnSpace()}`,
  );
}

/** What can be stored: a URL or a File. */
export function checkStorable(source: unknown): asserts source is string | File {
  if (typeof source === 'string' || (typeof source === 'object' && source !== null && className(source) === 'File'))
    return;
  throw new InputError('Only a model that is given as a URL or a File can be stored.');
}
