/**
 * A model's fingerprint: the sha256 of its file. It ties profiles, pages and sessions to their model. Hashing gigabytes
 * takes seconds, so results for files on disk are cached by path, size and modification time; a file in the Hugging Face
 * hub cache is a link to `blobs/<sha256>`, whose name is the hash. Files need Node; Blobs and bytes
 * need nothing.
 */

import { yieldToEventLoop } from '../platform/event-loop.ts';
import { platform } from '../platform/node.ts';
import { FormatError, InputError } from '../util/errors.ts';
import { createSha256, sha256, toHex } from '../util/sha256.ts';
import type { ByteSource, FileVersion } from './source.ts';

export interface HashProgress {
  /** Bytes hashed so far, of all files or sources. */
  done: number;
  total: number;
}

export interface HashOptions {
  signal?: AbortSignal;
  onProgress?: (progress: HashProgress) => void;
}

export interface FingerprintOptions extends HashOptions {
  /** Folder for the cache; nothing is cached without one. */
  readonly cacheDir?: string;
  /** The files as they were opened: one that has changed since then is refused. */
  readonly opened?: readonly (FileVersion | undefined)[];
}

interface CacheEntry {
  size: number;
  mtimeMs: number;
  sha256: string;
}

const cacheFile = 'fingerprints.json';
const maxCacheEntries = 1000;
/** Bytes hashed at a time in memory: some 10 ms. */
const blockBytes = 2 ** 20;
const sha256Pattern = /^[0-9a-f]{64}$/;

/** The sha256 of one file, in hex. */
export const fingerprintFile = (path: string, options?: FingerprintOptions): Promise<string> =>
  fingerprintFiles([path], options);

/** The fingerprint of a model: of its only file, or the hash of the fingerprints of its files in order. */
export async function fingerprintFiles(
  paths: readonly string[],
  { cacheDir, opened, signal, onProgress }: FingerprintOptions = {},
): Promise<string> {
  const files = await Promise.all(paths.map(findFile));
  const total = files.reduce((sum, { version }) => sum + version.size, 0);
  const fingerprints: string[] = [];
  let done = 0;
  for (const [i, file] of files.entries()) {
    if (!isSame(file.version, opened?.[i] ?? file.version))
      throw new FormatError(
        `${file.path} changed while it was in use. Wait until it is complete, and load the model again.`,
      );
    const advance = (bytes: number) => {
      signal?.throwIfAborted();
      done += bytes;
      onProgress?.({ done, total });
    };
    const known = await findFingerprint(file, cacheDir);
    if (known !== undefined) done += file.version.size;
    fingerprints.push(known ?? (await hashFile(file, cacheDir, advance)));
  }
  return combine(fingerprints);
}

/**
 * As `fingerprintFiles`, for a model that is not on disk: of its Blobs or bytes in order. The event
 * loop runs between blocks of 1 MiB.
 */
export async function fingerprintSources(
  sources: readonly Pick<ByteSource, 'size' | 'sha256' | 'readInto'>[],
  { signal, onProgress }: HashOptions = {},
): Promise<string> {
  const total = sources.reduce((sum, { size }) => sum + size, 0);
  const buffer = new Uint8Array(Math.min(total, blockBytes));
  const fingerprints: string[] = [];
  let done = 0;
  for (const { size, sha256, readInto } of sources) {
    if (sha256 !== undefined) {
      fingerprints.push(sha256);
      continue;
    }
    const hash = createSha256();
    for (let offset = 0; offset < size; offset += buffer.length) {
      signal?.throwIfAborted();
      const block = buffer.subarray(0, Math.min(buffer.length, size - offset));
      await readInto(offset, block);
      hash.update(block);
      done += block.length;
      onProgress?.({ done, total });
      await yieldToEventLoop();
    }
    fingerprints.push(toHex(hash.digest()));
  }
  return combine(fingerprints);
}

/** As `fingerprintFiles`, but undefined if a file would have to be hashed, which takes seconds. */
export async function knownFingerprint(
  paths: readonly string[],
  { cacheDir }: Pick<FingerprintOptions, 'cacheDir'> = {},
): Promise<string | undefined> {
  const fingerprints = await Promise.all(paths.map(async path => findFingerprint(await findFile(path), cacheDir)));
  return fingerprints.every(found => found !== undefined) ? combine(fingerprints) : undefined;
}

function combine(fingerprints: readonly string[]): string {
  if (fingerprints.length === 1) return fingerprints[0];
  return toHex(sha256(new TextEncoder().encode(fingerprints.join('\n'))));
}

interface FoundFile {
  /** As given. */
  path: string;
  /** Without links. */
  real: string;
  version: FileVersion;
}

async function findFile(path: string): Promise<FoundFile> {
  const { realpath } = platform.node.fs.promises;
  const real = await realpath(path).catch(error => {
    throw new InputError(`${path} cannot be opened (${error.code ?? error.message}). Check the path.`, {
      cause: error,
    });
  });
  return { path, real, version: await versionOf(real) };
}

async function versionOf(real: string): Promise<FileVersion> {
  const { size, mtimeMs, ino } = await platform.node.fs.promises.stat(real);
  return { size, mtimeMs, ino };
}

const isSame = (a: FileVersion, b: FileVersion): boolean =>
  a.size === b.size && a.mtimeMs === b.mtimeMs && a.ino === b.ino;

/** The name of a blob in the hub cache, or a cached result; undefined if there is neither. */
async function findFingerprint({ path, real, version }: FoundFile, cacheDir?: string): Promise<string | undefined> {
  const { resolve } = platform.node.path;
  const blob = real === resolve(path) ? undefined : await hubBlobHash(real);
  if (blob !== undefined || cacheDir === undefined) return blob;
  const cached = (await readCache(cacheDir)).get(real);
  return cached?.size === version.size && cached.mtimeMs === version.mtimeMs ? cached.sha256 : undefined;
}

async function hubBlobHash(real: string): Promise<string | undefined> {
  const { basename, dirname } = platform.node.path;
  const name = basename(real);
  return basename(dirname(real)) === 'blobs' && sha256Pattern.test(name) ? name : undefined;
}

/** Hashes a file and caches the result. `advance` is called with the bytes of each block. */
async function hashFile(
  { path, real, version }: FoundFile,
  cacheDir: string | undefined,
  advance: (bytes: number) => void,
): Promise<string> {
  const { createReadStream } = platform.node.fs;
  const { createHash } = platform.node.crypto;
  const hash = createHash('sha256');
  for await (const block of createReadStream(real, { highWaterMark: blockBytes })) {
    advance(block.length);
    hash.update(block);
  }
  const sha256 = hash.digest('hex');
  if (!isSame(version, await versionOf(real)))
    throw new FormatError(`${path} changed while it was being read. Wait until it is complete and try again.`);
  const { size, mtimeMs } = version;
  // If the folder is not writable, the file is hashed again next time.
  if (cacheDir !== undefined) await addToCache(cacheDir, real, { size, mtimeMs, sha256 }).catch(() => {});
  return sha256;
}

/** The cached results, oldest first. A damaged cache is ignored. */
async function readCache(cacheDir: string): Promise<Map<string, CacheEntry>> {
  const { readFile } = platform.node.fs.promises;
  const { join } = platform.node.path;
  const cache = new Map<string, CacheEntry>();
  try {
    const parsed: unknown = JSON.parse(await readFile(join(cacheDir, cacheFile), 'utf8'));
    for (const [path, entry] of Object.entries(parsed as Record<string, Partial<CacheEntry> | null>)) {
      const { size, mtimeMs, sha256 } = entry ?? {};
      if (typeof size === 'number' && typeof mtimeMs === 'number' && sha256Pattern.test(String(sha256)))
        cache.set(path, { size, mtimeMs, sha256: String(sha256) });
    }
  } catch {
    // Missing, or not JSON.
  }
  return cache;
}

async function addToCache(cacheDir: string, path: string, entry: CacheEntry): Promise<void> {
  const { mkdir, rename, writeFile } = platform.node.fs.promises;
  const { join } = platform.node.path;
  await mkdir(cacheDir, { recursive: true });
  // Read again: another process may have written. An entry lost in a race is only hashed again.
  const cache = await readCache(cacheDir);
  cache.delete(path);
  cache.set(path, entry);
  const kept = Object.fromEntries([...cache].slice(-maxCacheEntries));
  const temporary = join(cacheDir, `${cacheFile}.${process.pid}.${Date.now()}`);
  await writeFile(temporary, `${JSON.stringify(kept, null, 1)}\n`);
  await rename(temporary, join(cacheDir, cacheFile));
}
