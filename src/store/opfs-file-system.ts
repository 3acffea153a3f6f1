/**
 * The storage of a site (OPFS) as a file system for the disk store, in a Worker: only there are files read and written in
 * place, and without waiting. A file that is open cannot be removed, so removing it closes it: later reads find nothing.
 */

import { checkInPlace, entriesOf, openFile, openFolder, openInPlace, type SyncAccessHandle } from '../platform/opfs.ts';
import { InputError, KvasirError } from '../util/errors.ts';
import type { FileSystem, Lock, OpenFile } from './file-system.ts';

/** Where leaves are stored: next to models and sessions. */
export const LEAF_FOLDER = 'leaves';

/** A tab that is being closed or loaded again has its lock for a moment longer. */
const LOCK_WAIT_MS = 2000;

/** A full storage keeps its name: the disk is not full. */
const CODES: Record<string, string> = {
  QuotaExceededError: 'QuotaExceededError',
  NotFoundError: 'ENOENT',
  InvalidModificationError: 'EEXIST',
  NoModificationAllowedError: 'EBUSY',
};

/** Errors of the browser get the codes of Node. */
async function withCodes<T>(run: () => T | Promise<T>): Promise<T> {
  try {
    return await run();
  } catch (cause) {
    if (cause instanceof KvasirError) throw cause;
    const { name, message } = cause as Error;
    throw Object.assign(new Error(message, { cause }), { code: CODES[name] ?? 'EIO' });
  }
}

export function createOpfsFileSystem(): FileSystem {
  const handles = new Map<string, SyncAccessHandle>();

  const close = (path: string, handle: SyncAccessHandle | undefined) => {
    if (!handle || handles.get(path) !== handle) return;
    handles.delete(path);
    handle.close();
  };

  const open = async (path: string, create: boolean): Promise<OpenFile> => {
    const handle = await openInPlace(path, create);
    handles.set(path, handle);
    return {
      read: (into, position) =>
        withCodes(() => (handles.get(path) === handle ? handle.read(into, { at: position }) : 0)),
      write: (chunks, position) =>
        withCodes(() => {
          let at = position;
          for (const chunk of chunks) {
            // Chromium may write less, or return an error code, when the storage is full.
            if (handle.write(chunk, { at }) !== chunk.length) throw new DOMException('', 'QuotaExceededError');
            at += chunk.length;
          }
          return at - position;
        }),
      sync: () => withCodes(() => handle.flush()),
      size: () => withCodes(() => handle.getSize()),
      close: async () => close(path, handle),
    };
  };

  const folderOf = (path: string) => openFolder(parentOf(path), false);

  return {
    name: 'opfs',
    lock,
    open: path => withCodes(() => open(path, false)),
    create: path =>
      withCodes(async () => {
        const exists = await openFile(path, false).then(
          () => true,
          () => false,
        );
        if (exists) throw new DOMException(`${path} exists`, 'InvalidModificationError');
        return open(path, true);
      }),
    makeFolder: path =>
      withCodes(async () => {
        await openFolder(path);
        checkInPlace();
      }),
    list: path =>
      withCodes(async () => {
        const names: string[] = [];
        for await (const { name } of entriesOf(await openFolder(path, false))) names.push(name);
        return names;
      }).catch(error => (error.code === 'ENOENT' ? [] : Promise.reject(error))),
    rename: (from, to) =>
      withCodes(async () => {
        const handle = (await openFile(from, false)) as FileSystemFileHandle & { move(name: string): Promise<void> };
        await handle.move(nameOf(to));
      }),
    remove: path =>
      withCodes(async () => {
        close(path, handles.get(path));
        await (await folderOf(path)).removeEntry(nameOf(path));
      }),
    // The browser does that itself.
    syncFolder: async () => {},
  };
}

const parentOf = (path: string) => path.slice(0, path.lastIndexOf('/'));
const nameOf = (path: string) => path.slice(path.lastIndexOf('/') + 1);

/** A lock among the tabs of a site, which the browser releases when a tab is gone. */
function lock(folder: string): Promise<Lock> {
  return new Promise((resolve, reject) => {
    const hold = () =>
      new Promise<void>(release => {
        resolve({ release: async () => release() });
      });
    navigator.locks.request(`kvasir ${folder}`, { signal: AbortSignal.timeout(LOCK_WAIT_MS) }, hold).catch(error => {
      const isTaken = error.name === 'TimeoutError';
      reject(isTaken ? new InputError(`${folder} is in use by another tab. Close that tab and try again.`) : error);
    });
  });
}
