/** Node's file system. */
import { platform } from '../platform/node.ts';
import { acquireLock } from './disk-lock.ts';
import type { FileSystem, OpenFile } from './file-system.ts';

export async function openNodeFileSystem(): Promise<FileSystem> {
  const { chmod, mkdir, open, readdir, rename, unlink } = platform.node.fs.promises;
  const openFile = async (path: string, flags: string): Promise<OpenFile> => {
    const file = await open(path, flags, 0o600);
    return {
      read: async (into, position) => (await file.read(into, 0, into.length, position)).bytesRead,
      write: async (chunks, position) => (await file.writev(chunks as Uint8Array[], position)).bytesWritten,
      sync: () => file.sync(),
      size: async () => (await file.stat()).size,
      close: () => file.close(),
    };
  };
  const fs: FileSystem = {
    name: 'disk',
    lock: folder => acquireLock(fs, folder),
    open: path => openFile(path, 'r'),
    create: path => openFile(path, 'wx+'),
    async makeFolder(path) {
      const created = await mkdir(path, { recursive: true, mode: 0o700 });
      // The mode of an existing folder is its owner's choice, except for the store's own.
      if (created === undefined) await chmod(path, 0o700);
    },
    list: path => readdir(path).catch(error => (error.code === 'ENOENT' ? [] : Promise.reject(error))),
    rename,
    remove: unlink,
    async syncFolder(path) {
      // Not every system can open a folder.
      const folder = await open(path, 'r').catch(() => undefined);
      await folder?.sync().finally(() => folder.close());
    },
  };
  return fs;
}
