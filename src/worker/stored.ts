/** What a site has stored: models and sessions, for a page to show and delete. */
import { listFiles, openFile, type StoredFile, throwStorageError } from '../platform/opfs.ts';

export { deleteStored } from '../platform/opfs.ts';

/** The site's storage, in bytes. */
export interface StorageUse {
  /** The largest first. `deleteStored` takes their paths. */
  files: StoredFile[];
  usage: number;
  quota: number;
  /** Whether the browser keeps it when it needs space. */
  isPersisted: boolean;
}

/** A stored file, which `startWorker` loads as any other `File`. */
export async function openStored(path: string): Promise<File> {
  const failed = (error: unknown) => throwStorageError(path, 'read', error);
  return (await openFile(path, false).catch(failed)).getFile().catch(failed);
}

/** What the site has stored: files, the largest first, and how much of its quota is used. */
export async function listStored(): Promise<StorageUse> {
  const { usage = 0, quota = 0 } = await navigator.storage.estimate();
  return { files: await listFiles(), usage, quota, isPersisted: await navigator.storage.persisted() };
}
