/** Opens a model from a path, a hub name, a URL, or its bytes in any form that Node and browsers have. */
import { className, describeValue } from '../describe-value.ts';
import { CapacityError, InputError, NetworkError } from '../errors.ts';
import { formatFileSize } from '../units.ts';
import { type Gguf, openGguf, readGguf } from './gguf.ts';
import { checkGgufMagic, magicCheckBytes } from './gguf-magic.ts';
import { type ByteSource, blobSource, bytesSource } from './source.ts';
import type { LoadProgress } from './weights.ts';

/** One file of a model. */
export type ModelPart = Blob | Uint8Array | ArrayBuffer | Response | URL;

/**
 * A path, a name on the hub (`org/repo:Q4_K_M`), an http, https or file URL (string or `URL`), or the model's bytes. For
 * a split model: an array of its files, or the path of the first.
 */
export type ModelInput = string | ModelPart | readonly ModelPart[];

export interface OpenOptions {
  signal?: AbortSignal;
  onProgress?: (progress: LoadProgress) => void;
  /** Maximum number of bytes to download. */
  memoryLimit?: number;
}

export interface OpenedModel {
  gguf: Gguf;
  /** The paths of its files, in order; empty if it is not on disk. */
  paths: readonly string[];
}

export async function openModel(input: ModelInput, options: OpenOptions = {}): Promise<OpenedModel> {
  const source = typeof input === 'string' && /^(https?|file):\/\//i.test(input) ? parseUrl(input) : input;
  const isFileUrl = isUrl(source) && source.protocol === 'file:';
  if (typeof source !== 'string' && !isFileUrl) {
    const sources: ByteSource[] = [];
    for (const part of Array.isArray(source) ? source : [source]) sources.push(await openPart(part, options));
    return { gguf: await readGguf(sources), paths: [] };
  }
  const gguf = await openGguf(isFileUrl ? await pathOfFileUrl(source) : await resolvePath(source as string));
  return { gguf, paths: gguf.shards.map(({ name }) => name) };
}

async function openPart(part: unknown, options: OpenOptions): Promise<ByteSource> {
  switch (typeof part === 'object' && part !== null && className(part)) {
    case 'Blob':
    case 'File':
      return blobSource(part as Blob);
    case 'Uint8Array':
      return bytesSource(part as Uint8Array);
    case 'ArrayBuffer':
      return bytesSource(new Uint8Array(part as ArrayBuffer));
    case 'Response':
      return responseSource(part as Response, displayName((part as Response).url), options);
    case 'URL':
      return urlSource(part as URL, options);
    default:
      throw new InputError(
        'A model is a path, a name on the hub, a URL, a File, Blob, Uint8Array, ArrayBuffer or Response, or an array of ' +
          `these for a split model; got ${describeValue(part)}.`,
      );
  }
}

const isUrl = (value: unknown): value is URL =>
  typeof value === 'object' && value !== null && className(value) === 'URL';

function parseUrl(text: string): URL {
  if (!URL.canParse(text)) throw new InputError(`'${text}' is not a valid URL. Check its spelling.`);
  return new URL(text);
}

/** A URL for messages, without secrets: user name, password, signed query. */
function displayName(url: string): string {
  if (!URL.canParse(url)) return 'The response';
  const { origin, pathname } = new URL(url);
  return origin + pathname;
}

/** Node's modules, and the hub client, which needs them, are imported only on use. */
async function importInNode<T>(name: string, module: Promise<T>): Promise<T> {
  return module.catch(error => {
    throw new InputError(`'${name}' can only be opened in Node. In a browser, give a URL, a File or a Blob.`, {
      cause: error,
    });
  });
}

async function pathOfFileUrl(url: URL): Promise<string> {
  const { fileURLToPath } = await importInNode(url.href, import('node:url'));
  try {
    return fileURLToPath(url);
  } catch (error) {
    throw new InputError(`${url.href} is not a valid file URL: ${(error as Error).message}.`, {
      cause: error,
    });
  }
}

async function resolvePath(name: string): Promise<string> {
  const { resolveModel } = await importInNode(name, import('./hub/index.ts'));
  return (await resolveModel(name)).path;
}

async function urlSource(url: URL, options: OpenOptions): Promise<ByteSource> {
  if (url.protocol === 'file:')
    throw new InputError(
      'An array of files cannot contain a file: URL. Pass the URL of the first file alone; the others are found by it.',
    );
  if (url.protocol !== 'http:' && url.protocol !== 'https:')
    throw new InputError(`A model cannot be fetched from a ${url.protocol} URL. Pass an http, https or file URL.`);
  const name = displayName(url.href);
  return responseSource(
    await asNetworkError(name, options, () => fetch(url, { signal: options.signal })),
    name,
    options,
  );
}

/** Downloads into a Blob: browsers keep large ones on disk. */
async function responseSource(response: Response, name: string, options: OpenOptions): Promise<ByteSource> {
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
  options: OpenOptions,
): Promise<Blob> {
  const { memoryLimit = Number.POSITIVE_INFINITY, onProgress } = options;
  const blobs: Blob[] = [];
  let chunks: Uint8Array<ArrayBuffer>[] = [];
  let [done, chunkBytes, checked] = [0, 0, false];
  for (;;) {
    if (Math.max(total ?? 0, done) > memoryLimit)
      throw new CapacityError(
        `${name} has ${total === undefined ? 'more than ' : ''}${formatFileSize(Math.max(total ?? 0, done))}, and ` +
          `memoryLimit is ${formatFileSize(memoryLimit)}. Use a smaller model, or raise the limit.`,
      );
    const { value } = await asNetworkError(name, options, () => reader.read());
    if (!value) break;
    chunks.push(value);
    done += value.length;
    chunkBytes += value.length;
    // Stop early if it is not a model.
    if (!checked && done >= magicCheckBytes) {
      checkGgufMagic(new Uint8Array(await new Blob(chunks).slice(0, magicCheckBytes).arrayBuffer()), name);
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

async function asNetworkError<T>(name: string, { signal }: OpenOptions, step: () => Promise<T>): Promise<T> {
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
