/**
 * A model's fingerprint: the sha256 of its file. It binds profiles, pages and sessions to the model that made them.
 * Hashing gigabytes takes seconds, so a result is remembered by path, size and time of change; and a file of the
 * Hugging Face hub cache is a link to `blobs/<sha256>`, whose name is the answer. Node only; imports wait until then.
 */
import { FormatError, InputError } from '../errors.ts';

export interface FingerprintOptions {
  /** Folder in which results are remembered; without one they are not. */
  readonly cacheDir?: string;
}

interface Remembered {
  size: number;
  mtimeMs: number;
  sha256: string;
}

const memoryFile = 'fingerprints.json';
const mostRemembered = 1000;
const sha256Pattern = /^[0-9a-f]{64}$/;

/** The fingerprint of one file, in hex. */
export async function fingerprint(path: string, options: FingerprintOptions = {}): Promise<string> {
  const { realpath } = await import('node:fs/promises');
  const { resolve } = await import('node:path');
  const real = await realpath(path).catch(error => {
    throw new InputError(`${path} cannot be opened (${error.code ?? error.message}). Check the path.`, {
      cause: error,
    });
  });
  if (real !== resolve(path)) {
    const blob = await hubBlob(real);
    if (blob) return blob;
  }
  const before = await statOf(real);
  const memory = options.cacheDir === undefined ? undefined : await recall(options.cacheDir);
  const known = memory?.get(real);
  if (known && known.size === before.size && known.mtimeMs === before.mtimeMs) return known.sha256;

  const sha256 = await hashFile(real);
  const after = await statOf(real);
  if (after.size !== before.size || after.mtimeMs !== before.mtimeMs)
    throw new FormatError(`${path} changed while it was read. Wait until it is complete and try again.`);
  // A folder that cannot be written costs one more hash the next time, nothing else.
  if (options.cacheDir !== undefined) await remember(options.cacheDir, real, { ...after, sha256 }).catch(() => {});
  return sha256;
}

/** The fingerprint of a model in several files: the hash of theirs, in order. One file is its own. */
export async function fingerprintAll(paths: readonly string[], options: FingerprintOptions = {}): Promise<string> {
  const prints: string[] = [];
  for (const path of paths) prints.push(await fingerprint(path, options));
  if (prints.length === 1) return prints[0];
  const { createHash } = await import('node:crypto');
  return createHash('sha256').update(prints.join('\n')).digest('hex');
}

async function hubBlob(real: string): Promise<string | undefined> {
  const { basename, dirname } = await import('node:path');
  const name = basename(real);
  return basename(dirname(real)) === 'blobs' && sha256Pattern.test(name) ? name : undefined;
}

async function statOf(path: string): Promise<{ size: number; mtimeMs: number }> {
  const { stat } = await import('node:fs/promises');
  const { size, mtimeMs } = await stat(path);
  return { size, mtimeMs };
}

async function hashFile(path: string): Promise<string> {
  const { createReadStream } = await import('node:fs');
  const { createHash } = await import('node:crypto');
  const hash = createHash('sha256');
  for await (const chunk of createReadStream(path, { highWaterMark: 2 ** 20 })) hash.update(chunk);
  return hash.digest('hex');
}

/** What was remembered, oldest first. A memory that is damaged is no memory: the hash is simply made again. */
async function recall(cacheDir: string): Promise<Map<string, Remembered>> {
  const { readFile } = await import('node:fs/promises');
  const { join } = await import('node:path');
  const memory = new Map<string, Remembered>();
  try {
    const parsed: unknown = JSON.parse(await readFile(join(cacheDir, memoryFile), 'utf8'));
    for (const [path, entry] of Object.entries(parsed as Record<string, Partial<Remembered> | null>)) {
      const { size, mtimeMs, sha256 } = entry ?? {};
      if (typeof size === 'number' && typeof mtimeMs === 'number' && sha256Pattern.test(String(sha256)))
        memory.set(path, { size, mtimeMs, sha256: String(sha256) });
    }
  } catch {
    // Not there yet, or not JSON.
  }
  return memory;
}

async function remember(cacheDir: string, path: string, entry: Remembered): Promise<void> {
  const { mkdir, rename, writeFile } = await import('node:fs/promises');
  const { join } = await import('node:path');
  await mkdir(cacheDir, { recursive: true });
  // Read again, since another process may have written meanwhile; a lost race costs one more hash, nothing else.
  const memory = await recall(cacheDir);
  memory.delete(path);
  memory.set(path, entry);
  const kept = Object.fromEntries([...memory].slice(-mostRemembered));
  const draft = join(cacheDir, `${memoryFile}.${process.pid}.${Date.now()}`);
  await writeFile(draft, `${JSON.stringify(kept, null, 1)}\n`);
  await rename(draft, join(cacheDir, memoryFile));
}
