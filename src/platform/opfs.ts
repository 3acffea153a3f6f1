/** Files of a site: the origin private file system (OPFS) of browsers, below a folder of ours. */
import { CapacityError, InputError, KvasirError, UnsupportedError } from '../errors.ts';
import { formatFileSize } from '../units.ts';

const ROOT = 'kvasir';

/** A stored file. */
export interface StoredFile {
  /** Relative to the folder of all files. */
  path: string;
  bytes: number;
}

/** A folder: names with `/` between them; an empty string for the one of all files. */
export async function openFolder(path: string, create = true): Promise<FileSystemDirectoryHandle> {
  const storage = (globalThis.navigator as Navigator | undefined)?.storage;
  if (!storage?.getDirectory)
    throw new UnsupportedError(
      'Nothing can be stored here: this browser has no OPFS, or the page is not served from https or localhost.',
    );
  let folder = await storage.getDirectory();
  for (const name of [ROOT, ...splitPath(path)]) folder = await folder.getDirectoryHandle(name, { create });
  return folder;
}

export async function openFile(path: string, create: boolean): Promise<FileSystemFileHandle> {
  const names = splitPath(path);
  if (names.length === 0) throw new InputError(`'${path}' is not the path of a file. Use names, with / between them.`);
  const folder = await openFolder(names.slice(0, -1).join('/'), create);
  return folder.getFileHandle(names.at(-1)!, { create });
}

function splitPath(path: string): string[] {
  const names = path.split('/').filter(name => name !== '');
  if (names.some(name => name === '.' || name === '..'))
    throw new InputError(`The path '${path}' of a stored file may not contain '.' and '..'.`);
  return names;
}

export async function* readFile(path: string): AsyncGenerator<Uint8Array, void> {
  const failed = (error: unknown) => throwStorageError(path, 'read', error);
  const handle = await openFile(path, false).catch(failed);
  const reader = (await handle.getFile()).stream().getReader();
  try {
    for (;;) {
      const { value, done } = await reader.read().catch(failed);
      if (done) return;
      yield value;
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}

/** The browser writes a copy, which replaces the file when it is closed. */
export async function writeFile(path: string, chunks: AsyncIterable<Uint8Array>): Promise<void> {
  const failed = (error: unknown) => throwStorageError(path, 'written', error);
  const handle = await openFile(path, true).catch(failed);
  const stream = await handle.createWritable().catch(failed);
  try {
    // Copied: a chunk is only valid until the next one is requested, and may be in shared memory.
    for await (const chunk of chunks) await stream.write(Uint8Array.from(chunk)).catch(failed);
    await stream.close().catch(failed);
  } catch (error) {
    await stream.abort().catch(() => {});
    // A file that did not exist before was created empty.
    if ((await handle.getFile()).size === 0) await deleteStored(path);
    throw error;
  }
}

/** All stored files, the largest first. */
export async function listFiles(): Promise<StoredFile[]> {
  const files: StoredFile[] = [];
  const walk = async (folder: FileSystemDirectoryHandle, path: string) => {
    for await (const handle of entriesOf(folder)) {
      const name = path + handle.name;
      if (handle.kind === 'directory') await walk(handle as FileSystemDirectoryHandle, `${name}/`);
      else files.push({ path: name, bytes: (await (handle as FileSystemFileHandle).getFile()).size });
    }
  };
  await walk(await openFolder(''), '');
  return files.sort((a, b) => b.bytes - a.bytes);
}

/** Not in the type definitions of every TypeScript version. */
const entriesOf = (folder: FileSystemDirectoryHandle) =>
  (folder as unknown as { values(): AsyncIterable<FileSystemHandle> }).values();

/** Deletes a stored file, or a folder and all that is in it; without a path, everything. */
export async function deleteStored(path = ''): Promise<void> {
  const names = splitPath(path);
  if (names.length === 0) for (const { path } of await listFiles()) await deleteStored(path);
  else {
    const failed = (error: unknown) => throwStorageError(path, 'deleted', error);
    const folder = await openFolder(names.slice(0, -1).join('/'), false).catch(failed);
    await folder.removeEntry(names.at(-1)!, { recursive: true }).catch(failed);
  }
}

/** Throws the typed error for a failure of the browser's storage. */
export async function throwStorageError(
  path: string,
  act: 'read' | 'written' | 'deleted',
  cause: unknown,
): Promise<never> {
  if (cause instanceof KvasirError) throw cause;
  const { name, message } = cause as Error;
  switch (name) {
    case 'QuotaExceededError':
      throw new CapacityError(`${path} cannot be stored: the browser's storage is full. ${await adviceOnSpace()}`, {
        cause,
      });
    case 'NotFoundError':
      throw new InputError(`${path} is not stored here.`, { cause });
    case 'NoModificationAllowedError':
    case 'InvalidStateError':
      throw new InputError(`${path} is in use, maybe by another tab. Close that tab and try again.`, { cause });
    default:
      throw new InputError(`${path} cannot be ${act} (${message || name}).`, { cause });
  }
}

/** How much is used, and what could be deleted. */
export async function adviceOnSpace(): Promise<string> {
  const { usage = 0, quota = 0 } = await navigator.storage.estimate();
  const largest = (await listFiles()).slice(0, 3).map(({ path, bytes }) => `${path} (${formatFileSize(bytes)})`);
  const advice = largest.length > 0 ? `Delete what is not needed, such as ${largest.join(', ')}.` : 'Free some space.';
  return `${formatFileSize(usage)} of ${formatFileSize(quota)} are in use. ${advice}`;
}
