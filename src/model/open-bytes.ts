/** Opens the bytes of a file that a caller gives as a URL, or in any form that Node and browsers have. */

import { platform } from '../platform/node.ts';
import { className } from '../util/describe-value.ts';
import { InputError, NetworkError, UnsupportedError } from '../util/errors.ts';
import { type ByteSource, blobSource, bytesSource } from './source.ts';
import type { LoadProgress } from './weights.ts';

/** The bytes of one file, or where to fetch them. */
export type BytesInput = Blob | Uint8Array | ArrayBuffer | Response | URL;

export interface OpenBytesOptions {
  signal?: AbortSignal;
  onProgress?: (progress: LoadProgress) => void;
  /** Throws if a download is too large: called with its size, if the server tells it, and with what has arrived. */
  checkSize?: (bytes: number, isTotal: boolean, name: string) => void;
  /** Throws if a download that starts with these bytes is of another format. */
  checkStart?: (start: Uint8Array, name: string) => void;
}

/** Bytes at the start of a download that `checkStart` gets. */
const startBytes = 64;

/**
 * A string that is an http, https or file URL becomes a `URL`; in a browser any string does, relative to the page. Anything
 * else is returned as it is.
 */
export function parseIfUrl<T>(input: T): T | URL {
  const { baseUrl } = platform;
  if (typeof input !== 'string' || (baseUrl === undefined && !/^(https?|file):\/\//i.test(input))) return input;
  if (!URL.canParse(input, baseUrl)) throw new InputError(`'${input}' is not a valid URL. Check its spelling.`);
  return new URL(input, baseUrl);
}

export const isFileUrl = (value: unknown): value is URL =>
  typeof value === 'object' && value !== null && className(value) === 'URL' && (value as URL).protocol === 'file:';

export function pathOfFileUrl(url: URL): string {
  try {
    return platform.node.url.fileURLToPath(url);
  } catch (error) {
    if (error instanceof UnsupportedError) throw error;
    throw new InputError(`${url.href} is not a valid file URL: ${(error as Error).message}.`, {
      cause: error,
    });
  }
}

/** Downloads a URL or a Response, and wraps bytes in memory; undefined for a value of another type. */
export async function openBytes(input: unknown, options: OpenBytesOptions = {}): Promise<ByteSource | undefined> {
  switch (typeof input === 'object' && input !== null && className(input)) {
    case 'Blob':
    case 'File':
      return blobSource(input as Blob);
    case 'Uint8Array':
      return bytesSource(input as Uint8Array);
    case 'ArrayBuffer':
      return bytesSource(new Uint8Array(input as ArrayBuffer));
    case 'Response':
      return responseSource(input as Response, displayName((input as Response).url), options);
    case 'URL':
      return urlSource(input as URL, options);
    default:
      return undefined;
  }
}

/** A URL for messages, without secrets: user name, password, signed query. */
function displayName(url: string): string {
  if (!URL.canParse(url)) return 'The response';
  const { origin, pathname } = new URL(url);
  return origin + pathname;
}

async function urlSource(url: URL, options: OpenBytesOptions): Promise<ByteSource> {
  if (url.protocol !== 'http:' && url.protocol !== 'https:')
    throw new InputError(`A ${url.protocol} URL cannot be fetched. Pass an http, https or file URL.`);
  const name = displayName(url.href);
  return responseSource(
    await asNetworkError(name, options, () => fetch(url, { signal: options.signal })),
    name,
    options,
  );
}

/** Downloads into a Blob: browsers keep large ones on disk. */
async function responseSource(response: Response, name: string, options: OpenBytesOptions): Promise<ByteSource> {
  if (response.bodyUsed) throw new InputError(`${name} has already been read. Pass a Response with an unread body.`);
  if (!response.ok)
    throw new NetworkError(
      `${name} cannot be fetched: the server answered ${[response.status, response.statusText].join(' ').trim()}. Check the URL.`,
    );
  const reader = response.body?.getReader();
  if (!reader) return blobSource(await response.blob(), name);
  try {
    return blobSource(await readBody(reader, contentLength(response), name, options), name);
  } catch (error) {
    await reader.cancel().catch(() => {});
    throw error;
  }
}

/** Undefined for a compressed response, whose content-length is not the file's. */
function contentLength({ headers }: Response): number | undefined {
  const length = headers.get('content-length');
  return length === null || headers.has('content-encoding') ? undefined : Number(length);
}

/** Chunks are moved to a Blob, which may be on disk, in parts of this size. */
const blobPartBytes = 64 * 2 ** 20;

async function readBody(
  reader: ReadableStreamDefaultReader<Uint8Array<ArrayBuffer>>,
  total: number | undefined,
  name: string,
  options: OpenBytesOptions,
): Promise<Blob> {
  const { checkSize, checkStart, onProgress } = options;
  const blobs: Blob[] = [];
  let chunks: Uint8Array<ArrayBuffer>[] = [];
  let [done, chunkBytes, checked] = [0, 0, false];
  for (;;) {
    checkSize?.(Math.max(total ?? 0, done), total !== undefined, name);
    const { value } = await asNetworkError(name, options, () => reader.read());
    if (!value) break;
    chunks.push(value);
    done += value.length;
    chunkBytes += value.length;
    if (!checked && done >= startBytes) {
      checkStart?.(new Uint8Array(await new Blob(chunks).slice(0, startBytes).arrayBuffer()), name);
      checked = true;
    }
    if (chunkBytes >= blobPartBytes) {
      blobs.push(new Blob(chunks));
      [chunks, chunkBytes] = [[], 0];
    }
    if (total !== undefined) onProgress?.({ phase: 'fetch', done, total });
  }
  if (total !== undefined && done !== total)
    throw new NetworkError(`${name} ended after ${done} of ${total} bytes. Try again.`);
  return new Blob([...blobs, ...chunks]);
}

async function asNetworkError<T>(name: string, { signal }: OpenBytesOptions, step: () => Promise<T>): Promise<T> {
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
