/** Opens a model from a path, a hub name, a URL, or its bytes in any form that Node and browsers have. */
import { describeValue } from '../util/describe-value.ts';
import { CapacityError, InputError } from '../util/errors.ts';
import { formatFileSize } from '../util/units.ts';
import { type Gguf, openGguf, readGguf } from './gguf.ts';
import { checkGgufMagic } from './gguf-magic.ts';
import { type BytesInput, isFileUrl, openBytes, parseIfUrl, pathOfFileUrl } from './open-bytes.ts';
import type { ByteSource } from './source.ts';
import type { LoadProgress } from './weights.ts';

/** One file of a model. */
export type ModelPart = BytesInput;

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
  const source = parseIfUrl(input);
  if (typeof source !== 'string' && !isFileUrl(source)) {
    if (!Array.isArray(source)) return { gguf: await readGguf([await openPart(source, options)]), paths: [] };
    const sources: ByteSource[] = [];
    for (const part of source) {
      const opened = await openPart(part, options);
      // Its connection would be idle while other parts are downloaded.
      await opened.complete?.();
      sources.push(opened);
    }
    return { gguf: await readGguf(sources), paths: [] };
  }
  const gguf = await openGguf(isFileUrl(source) ? pathOfFileUrl(source) : await resolvePath(source as string));
  return { gguf, paths: gguf.shards.map(({ name }) => name) };
}

async function openPart(part: unknown, { signal, onProgress, memoryLimit }: OpenOptions): Promise<ByteSource> {
  if (isFileUrl(part))
    throw new InputError(
      'An array of files cannot contain a file: URL. Pass the URL of the first file alone; the others are found by it.',
    );
  const source = await openBytes(part, {
    ...{ signal, onProgress, checkStart: checkGgufMagic },
    checkSize: (bytes, isTotal, name) => checkMemoryLimit(bytes, isTotal, name, memoryLimit),
  });
  if (source) return source;
  throw new InputError(
    'A model is a path, a name on the hub, a URL, a File, Blob, Uint8Array, ArrayBuffer or Response, or an array of ' +
      `these for a split model; got ${describeValue(part)}.`,
  );
}

function checkMemoryLimit(bytes: number, isTotal: boolean, name: string, limit = Number.POSITIVE_INFINITY): void {
  if (bytes <= limit) return;
  throw new CapacityError(
    option =>
      `${name} has ${isTotal ? '' : 'more than '}${formatFileSize(bytes)}, and ${option('memoryLimit')} is ` +
      `${formatFileSize(limit)}. ` +
      'Use a smaller model, or raise the limit.',
  );
}

async function resolvePath(name: string): Promise<string> {
  // Node only: package.json leaves it out of browser bundles, where every string is a URL.
  const { resolveModel } = await import('../hub/resolve.ts');
  return (await resolveModel(name)).path;
}
