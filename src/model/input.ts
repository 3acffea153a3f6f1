/** What a model can be given as: a path or a name, an address, or its bytes in any of the forms that Node and browsers have. */
import { describe, kindOf } from '../describe.ts';
import { CapacityError, InputError, NetworkError } from '../errors.ts';
import { formatFileSize } from '../units.ts';
import { type Gguf, openGguf, readGguf } from './gguf.ts';
import { checkMagic, magicBytes } from './magic.ts';
import { type ByteSource, blobSource, bytesSource } from './source.ts';
import type { LoadProgress } from './weights.ts';

/** One file of a model. A URL in a list is fetched. */
export type ModelPart = Blob | Uint8Array | ArrayBuffer | Response | URL;

/**
 * A path, a name on the hub (`org/repo:Q4_K_M`), an address (http, https or file, as a text or a URL), or the model's
 * bytes. A model of several files is a list of them, or the path of the first.
 */
export type ModelInput = string | ModelPart | readonly ModelPart[];

export interface OpenOptions {
  signal?: AbortSignal;
  onProgress?: (progress: LoadProgress) => void;
  /** More bytes than this are not fetched. */
  memoryLimit?: number;
}

export interface OpenedModel {
  gguf: Gguf;
  /** Its files, in order; none if it is not on disk. */
  paths: readonly string[];
}

export async function openModel(input: ModelInput, options: OpenOptions = {}): Promise<OpenedModel> {
  const given = typeof input === 'string' && /^(https?|file):\/\//i.test(input) ? parseUrl(input) : input;
  const file = isUrl(given) && given.protocol === 'file:';
  if (typeof given !== 'string' && !file) {
    const sources: ByteSource[] = [];
    for (const part of Array.isArray(given) ? given : [given]) sources.push(await openPart(part, options));
    return { gguf: await readGguf(sources), paths: [] };
  }
  const gguf = await openGguf(file ? await pathOf(given) : await resolvePath(given as string));
  return { gguf, paths: gguf.shards.map(({ name }) => name) };
}

async function openPart(part: unknown, options: OpenOptions): Promise<ByteSource> {
  switch (typeof part === 'object' && part !== null && kindOf(part)) {
    case 'Blob':
    case 'File':
      return blobSource(part as Blob);
    case 'Uint8Array':
      return bytesSource(part as Uint8Array);
    case 'ArrayBuffer':
      return bytesSource(new Uint8Array(part as ArrayBuffer));
    case 'Response':
      return responseSource(part as Response, nameOf((part as Response).url), options);
    case 'URL':
      return urlSource(part as URL, options);
    default:
      throw new InputError(
        'A model is a path, a name on the hub, a URL, a File, Blob, Uint8Array, ArrayBuffer or Response, or a list of ' +
          `these for a model of several files; got ${describe(part)}.`,
      );
  }
}

const isUrl = (value: unknown): value is URL => typeof value === 'object' && value !== null && kindOf(value) === 'URL';

function parseUrl(text: string): URL {
  if (!URL.canParse(text)) throw new InputError(`'${text}' is not a valid address. Check how it is written.`);
  return new URL(text);
}

/** Without what may be secret: a name, a password, a signed query. */
function nameOf(address: string): string {
  if (!URL.canParse(address)) return 'The response';
  const { origin, pathname } = new URL(address);
  return origin + pathname;
}

/** Node's own modules, and the hub's code that needs them, are imported when a name needs them. */
async function nodeOnly<T>(name: string, module: Promise<T>): Promise<T> {
  return module.catch(error => {
    throw new InputError(`'${name}' can only be opened in Node. In a browser, give a URL, a File or a Blob.`, {
      cause: error,
    });
  });
}

async function pathOf(url: URL): Promise<string> {
  const { fileURLToPath } = await nodeOnly(url.href, import('node:url'));
  try {
    return fileURLToPath(url);
  } catch (error) {
    throw new InputError(`${url.href} is not the address of a file here: ${(error as Error).message}.`, {
      cause: error,
    });
  }
}

async function resolvePath(name: string): Promise<string> {
  const { resolveModel } = await nodeOnly(name, import('./hub/index.ts'));
  return (await resolveModel(name)).path;
}

async function urlSource(url: URL, options: OpenOptions): Promise<ByteSource> {
  if (url.protocol === 'file:')
    throw new InputError(
      'A list of files cannot have a file: URL. Give the first one alone; the others are found by it.',
    );
  if (url.protocol !== 'http:' && url.protocol !== 'https:')
    throw new InputError(`A model cannot be fetched from ${url.protocol} addresses. Give an http, https or file URL.`);
  const name = nameOf(url.href);
  return responseSource(await overNetwork(name, options, () => fetch(url, { signal: options.signal })), name, options);
}

/** A Blob holds what was fetched: a browser keeps large ones on disk. */
async function responseSource(response: Response, name: string, options: OpenOptions): Promise<ByteSource> {
  if (response.bodyUsed) throw new InputError(`${name} was read already. Give a Response that was not.`);
  if (!response.ok)
    throw new NetworkError(
      `${name} cannot be fetched: the server answered ${[response.status, response.statusText].join(' ').trim()}. Check the address.`,
    );
  const reader = response.body?.getReader();
  if (!reader) return blobSource(await response.blob(), name);
  try {
    return blobSource(await readAll(reader, announcedBytes(response), name, options), name);
  } catch (error) {
    await reader.cancel().catch(() => {});
    throw error;
  }
}

/** Of a compressed answer the length is another's than the file's. */
function announcedBytes({ headers }: Response): number | undefined {
  const length = headers.get('content-length');
  return length === null || headers.has('content-encoding') ? undefined : Number(length);
}

/** Chunks become a Blob every so often, which may leave memory. */
const blobBytes = 64 * 2 ** 20;

async function readAll(
  reader: ReadableStreamDefaultReader<Uint8Array<ArrayBuffer>>,
  total: number | undefined,
  name: string,
  options: OpenOptions,
): Promise<Blob> {
  const { memoryLimit = Number.POSITIVE_INFINITY, onProgress } = options;
  const blobs: Blob[] = [];
  let chunks: Uint8Array<ArrayBuffer>[] = [];
  let [done, held, checked] = [0, 0, false];
  for (;;) {
    if (Math.max(total ?? 0, done) > memoryLimit)
      throw new CapacityError(
        `${name} has ${total === undefined ? 'more than ' : ''}${formatFileSize(Math.max(total ?? 0, done))}, and ` +
          `memoryLimit allows ${formatFileSize(memoryLimit)}. Take a smaller model, or allow more.`,
      );
    const { value } = await overNetwork(name, options, () => reader.read());
    if (!value) break;
    chunks.push(value);
    done += value.length;
    held += value.length;
    // Gigabytes of something else need not be fetched.
    if (!checked && done >= magicBytes) {
      checkMagic(new Uint8Array(await new Blob(chunks).slice(0, magicBytes).arrayBuffer()), name);
      checked = true;
    }
    if (held >= blobBytes) {
      blobs.push(new Blob(chunks));
      [chunks, held] = [[], 0];
    }
    if (total !== undefined) onProgress?.({ phase: 'fetch', done, total });
  }
  if (total !== undefined && done !== total)
    throw new NetworkError(`${name} ended after ${done} of ${total} bytes. Try again.`);
  return new Blob([...blobs, ...chunks]);
}

async function overNetwork<T>(name: string, { signal }: OpenOptions, step: () => Promise<T>): Promise<T> {
  signal?.throwIfAborted();
  try {
    return await step();
  } catch (error) {
    signal?.throwIfAborted();
    const { message, cause } = error as Error;
    const reason = (cause as Error | undefined)?.message || message;
    throw new NetworkError(`${name} cannot be fetched (${reason}). Check the address and the network.`, {
      cause: error,
    });
  }
}
