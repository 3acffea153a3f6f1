/** Opens the bytes of a file that a caller gives as a URL, or in any form that Node and browsers have. */

import { platform } from '../platform/node.ts';
import { className } from '../util/describe-value.ts';
import { InputError, UnsupportedError } from '../util/errors.ts';
import { asNetworkError, type DownloadOptions, responseSource } from './download.ts';
import { type ByteSource, blobSource, bytesSource } from './source.ts';

/** The bytes of one file, or where to fetch them. */
export type BytesInput = Blob | Uint8Array | ArrayBuffer | Response | URL;

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

/** A URL or a Response is downloaded as it is read. Undefined for a value of another type. */
export async function openBytes(input: unknown, options: DownloadOptions = {}): Promise<ByteSource | undefined> {
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

async function urlSource(url: URL, options: DownloadOptions): Promise<ByteSource> {
  if (url.protocol !== 'http:' && url.protocol !== 'https:')
    throw new InputError(`A ${url.protocol} URL cannot be fetched. Pass an http, https or file URL.`);
  const name = displayName(url.href);
  return responseSource(
    await asNetworkError(name, options, () => fetch(url, { signal: options.signal })),
    name,
    options,
  );
}
