/** Files of a site: the origin private file system (OPFS) of browsers. */
import { CapacityError, InputError, UnsupportedError } from '../errors.ts';
import { formatFileSize } from '../units.ts';

/** All files are below this folder. */
const ROOT = 'kvasir';

/** The folder of a path in `kvasir/`. */
export async function openFolder(path: readonly string[], create = true): Promise<FileSystemDirectoryHandle> {
  const storage = (globalThis.navigator as Navigator | undefined)?.storage;
  if (!storage?.getDirectory)
    throw new UnsupportedError(
      'This browser cannot keep files here: it has no OPFS, or the page is not served from https or localhost.',
    );
  let folder = await storage.getDirectory();
  for (const name of [ROOT, ...path]) folder = await folder.getDirectoryHandle(name, { create });
  return folder;
}

async function openFile(path: string, create: boolean): Promise<FileSystemFileHandle> {
  const names = path.split('/').filter(name => name !== '');
  if (names.length === 0 || names.some(name => name === '.' || name === '..'))
    throw new InputError(`'${path}' is not a path of a file. Use names, and / between them.`);
  const folder = await openFolder(names.slice(0, -1), create);
  return folder.getFileHandle(names.at(-1)!, { create });
}

export async function* readFile(path: string): AsyncGenerator<Uint8Array, void> {
  const file = await openFile(path, false)
    .then(handle => handle.getFile())
    .catch(error => storageError(path, 'read', error));
  const reader = file.stream().getReader();
  try {
    for (;;) {
      const { value, done } = await reader.read().catch(error => storageError(path, 'read', error));
      if (done) return;
      yield value;
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}

/** The browser writes a copy, which replaces the file when it is closed. */
export async function writeFile(path: string, chunks: AsyncIterable<Uint8Array>): Promise<void> {
  const failed = (error: unknown) => storageError(path, 'written', error);
  const handle = await openFile(path, true).catch(failed);
  const stream = await handle.createWritable().catch(failed);
  try {
    // Copied: the browser may write a chunk after the next one was requested.
    for await (const chunk of chunks) await stream.write(chunk.slice()).catch(failed);
    await stream.close().catch(failed);
  } catch (error) {
    await stream.abort().catch(() => {});
    // A new file stays empty if nothing was written to it.
    if ((await handle.getFile()).size === 0) await removeFile(path);
    throw error;
  }
}

export async function removeFile(path: string): Promise<void> {
  const names = path.split('/');
  const folder = await openFolder(names.slice(0, -1), false).catch(error => storageError(path, 'deleted', error));
  await folder.removeEntry(names.at(-1)!).catch(error => storageError(path, 'deleted', error));
}

/** Throws the typed error for a failure of the browser's storage. */
export async function storageError(path: string, act: 'read' | 'written' | 'deleted', error: unknown): Promise<never> {
  const { name, message } = error as Error;
  if (name === 'QuotaExceededError')
    throw new CapacityError(`${path} cannot be written: the browser's storage is full${await describeUse()}.`, {
      cause: error,
    });
  if (name === 'NotFoundError')
    throw new InputError(`${path} is not stored here. List what is stored, or store it first.`, { cause: error });
  if (name === 'NoModificationAllowedError')
    throw new InputError(`${path} is in use, possibly by another tab. Close it there, then try again.`, {
      cause: error,
    });
  if (error instanceof InputError || error instanceof UnsupportedError) throw error;
  throw new InputError(`${path} cannot be ${act} (${message || name}).`, { cause: error });
}

async function describeUse(): Promise<string> {
  const { usage, quota } = await navigator.storage.estimate();
  const use =
    usage === undefined || quota === undefined ? '' : ` (${formatFileSize(usage)} of ${formatFileSize(quota)})`;
  return `${use}. Delete stored models or sessions that are not needed`;
}
