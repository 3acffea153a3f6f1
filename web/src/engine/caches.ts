/** The caches of conversations as files in the site's storage. They can be computed again: the oldest make room. */
import { deleteStored, listStored, openStored } from 'kvasir/worker';
import { canStore } from './storage.ts';

const FOLDER = 'sessions/';

export const cachePath = (conversation: string): string => `${FOLDER}${conversation}.kvsession`;

/** Of what the browser lets the site store; and bytes, however much that is. */
const MAX_SHARE = 0.1;
const MAX_BYTES = 4e9;

/** Deletes those that were used least recently, until the others take no more than their share. */
export async function limitCaches(): Promise<void> {
  const { caches, quota } = await readCaches();
  let total = caches.reduce((sum, { bytes }) => sum + bytes, 0);
  for (const { path, bytes } of caches) {
    if (total <= Math.min(MAX_SHARE * quota, MAX_BYTES)) return;
    if (await remove(path)) total -= bytes;
  }
}

/** Saves something. Without space it is tried again, each time without one more cache; `keep` is not deleted. */
export async function saveWithRoom(save: () => Promise<unknown>, keep?: string): Promise<void> {
  for (;;)
    try {
      await save();
      return;
    } catch (error) {
      const isFull = FULL.includes((error as Error).name);
      if (!isFull || !canStore || !(await removeOldest(keep).catch(() => false))) throw error;
    }
}

/** Of the browser's own storage, and of the library. */
const FULL: readonly string[] = ['QuotaExceededError', 'CapacityError'];

async function removeOldest(keep: string | undefined): Promise<boolean> {
  for (const { path } of (await readCaches()).caches) if (path !== keep && (await remove(path))) return true;
  return false;
}

export async function deleteCaches(): Promise<void> {
  for (const { path } of (await readCaches()).caches) await remove(path);
}

/** Those that were used least recently first: they are saved after each answer. */
async function readCaches() {
  const { files, quota } = await listStored();
  const found = files.filter(({ path }) => path.startsWith(FOLDER));
  const caches = await Promise.all(
    found.map(async ({ path, bytes }) => {
      const used = await openStored(path).then(
        ({ lastModified }) => lastModified,
        () => 0,
      );
      return { path, bytes, used };
    }),
  );
  return { caches: caches.sort((a, b) => a.used - b.used), quota };
}

/** Not while another tab writes it. */
const remove = (path: string): Promise<boolean> =>
  deleteStored(path).then(
    () => true,
    () => false,
  );
