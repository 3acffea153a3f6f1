/** What this site has stored in the browser: models, and the caches of conversations. */
import { deleteStored, listStored } from 'kvasir/worker';

export interface StoredModel {
  name: string;
  /** For `deleteStoredFiles`. */
  path: string;
  bytes: number;
}

export interface Storage {
  models: readonly StoredModel[];
  /** Bytes of the caches, and how many there are. */
  caches: { count: number; bytes: number };
  /** All that the site uses, of what the browser allows. */
  usage: number;
  quota: number;
}

/** Not on a page without https, such as that of a server in the same network. */
export const canStore = typeof navigator.storage?.getDirectory === 'function';

export async function readStorage(): Promise<Storage> {
  const { files, usage, quota } = await listStored();
  const caches = files.filter(({ path }) => path.startsWith('sessions/'));
  const models = files.flatMap(({ path, bytes }) => {
    const [folder, id, name] = path.split('/');
    return folder === 'models' && name !== 'info.json' ? [{ name: name!, path: `models/${id}`, bytes }] : [];
  });
  return {
    models,
    caches: { count: caches.length, bytes: caches.reduce((sum, { bytes }) => sum + bytes, 0) },
    usage,
    quota,
  };
}

/** Models and caches; or what is at a path. Conversations are elsewhere. */
export async function deleteStoredFiles(path?: string): Promise<void> {
  if (canStore) await deleteStored(path);
}
