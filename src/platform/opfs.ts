/** Files of a site: the origin private file system (OPFS) of browsers, below a folder of ours. */
import { CapacityError, InputError, KvasirError, UnsupportedError } from '../util/errors.ts';
import { formatFileSize } from '../util/units.ts';

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

/** Part of the standard; TypeScript has it among the types of Workers only. */
export interface SyncAccessHandle {
  getSize(): number;
  read(into: Uint8Array, options: { at: number }): number;
  write(bytes: Uint8Array, options: { at: number }): number;
  truncate(bytes: number): void;
  flush(): void;
  close(): void;
}

/** Opens a file to be read and written in place, by nobody else, which only a Worker can. */
export async function openInPlace(path: string, create: boolean): Promise<SyncAccessHandle> {
  checkInPlace();
  const handle = (await openFile(path, create)) as FileSystemFileHandle & {
    createSyncAccessHandle(): Promise<SyncAccessHandle>;
  };
  return handle.createSyncAccessHandle();
}

/** A Worker or tab that has just been closed may have its files open for a moment longer. */
const CLOSE_WAIT_MS = 2000;
const CLOSE_RETRY_MS = 50;

/** Runs what needs a file that nobody has open, again for a while if somebody has. */
export async function whenClosed<T>(run: () => Promise<T>): Promise<T> {
  const end = performance.now() + CLOSE_WAIT_MS;
  for (;;)
    try {
      return await run();
    } catch (error) {
      if ((error as Error).name !== 'NoModificationAllowedError' || performance.now() > end) throw error;
      await new Promise(resolve => setTimeout(resolve, CLOSE_RETRY_MS));
    }
}

/** Throws where no file can be opened in place. */
export function checkInPlace(): void {
  const { FileSystemFileHandle } = globalThis as { FileSystemFileHandle?: { prototype: object } };
  if (!FileSystemFileHandle || !('createSyncAccessHandle' in FileSystemFileHandle.prototype))
    throw new UnsupportedError('Models and pages are stored by a Worker. Load the model with startWorker.');
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
  const file = await (await openFile(path, false).catch(failed)).getFile().catch(failed);
  // What is left of a first write that a closing tab has cut off.
  if (file.size === 0) throw new InputError(`${path} is not stored here.`);
  const reader = file.stream().getReader();
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
    // A file that did not exist before was created empty. Another tab may be writing it.
    const { size } = await handle.getFile().catch(() => ({ size: 0 }));
    if (size === 0) await deleteStored(path).catch(() => {});
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
      else {
        // Another tab may have deleted it since.
        const file = await (handle as FileSystemFileHandle).getFile().catch(() => undefined);
        if (file) files.push({ path: name, bytes: file.size });
      }
    }
  };
  await walk(await openFolder(''), '');
  return files.sort((a, b) => b.bytes - a.bytes);
}

/** Not in the type definitions of every TypeScript version. */
export const entriesOf = (folder: FileSystemDirectoryHandle) =>
  (folder as unknown as { values(): AsyncIterable<FileSystemHandle> }).values();

/** Deletes a stored file, or a folder and all that is in it; without a path, everything. */
export async function deleteStored(path = ''): Promise<void> {
  const names = splitPath(path);
  if (names.length === 0) return deleteAll();
  const failed = (error: unknown) => throwStorageError(path, 'deleted', error);
  const folder = await openFolder(names.slice(0, -1).join('/'), false).catch(failed);
  await whenClosed(() => folder.removeEntry(names.at(-1)!, { recursive: true })).catch(failed);
}

/** One file that is in use does not keep the others from being deleted. */
async function deleteAll(): Promise<void> {
  const results = await Promise.allSettled((await listFiles()).map(({ path }) => deleteStored(path)));
  const failed = results.find(({ status }) => status === 'rejected') as PromiseRejectedResult | undefined;
  // Another tab may have been faster.
  if (failed && (await listFiles()).length > 0) throw failed.reason;
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
