/** Whole files on disk, read and written as streams. */
import { createReadStream } from 'node:fs';
import { open, realpath, rename, rm, stat } from 'node:fs/promises';
import { dirname } from 'node:path';
import { InputError } from '../util/errors.ts';
import { fileError } from '../util/file-error.ts';

const READ_BYTES = 2 ** 20;

/**
 * Writes a temporary file next to the target and renames it. Only its owner may read it, since a session holds what was
 * said.
 */
export async function writeFile(path: string, chunks: AsyncIterable<Uint8Array>): Promise<void> {
  // A link stays a link to its file.
  const target = await realpath(path).catch(() => path);
  const existing = await stat(target).catch(() => undefined);
  if (existing && !existing.isFile()) throw new InputError(`${path} is not a file. Save the session to another path.`);
  const temporary = `${target}.${crypto.randomUUID()}.part`;
  const failed = (error: NodeJS.ErrnoException): never => {
    throw fileError(path, 'written', error);
  };
  const file = await open(temporary, 'wx', 0o600).catch(failed);
  try {
    for await (const chunk of chunks) await file.writeFile(chunk).catch(failed);
    await file.sync().catch(failed);
    await file.close().catch(failed);
    await rename(temporary, target).catch(failed);
  } catch (error) {
    await file.close().catch(() => {});
    await rm(temporary, { force: true });
    throw error;
  }
  await syncFolder(target);
}

/** Makes a rename durable. Not every system can open a folder. */
async function syncFolder(target: string): Promise<void> {
  const folder = await open(dirname(target), 'r').catch(() => undefined);
  await folder?.sync().catch(() => {});
  await folder?.close();
}

export async function* readFile(path: string): AsyncGenerator<Uint8Array, void> {
  const chunks = createReadStream(path, { highWaterMark: READ_BYTES });
  const iterator: AsyncIterator<Uint8Array> = chunks[Symbol.asyncIterator]();
  try {
    for (;;) {
      const { value, done } = await iterator.next().catch(error => {
        throw fileError(path, 'read', error);
      });
      if (done) return;
      yield value;
    }
  } finally {
    chunks.destroy();
  }
}
