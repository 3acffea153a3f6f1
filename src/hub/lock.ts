/**
 * A lock file for one download at a time, across processes. The holder updates the file's time as a heartbeat; a lock
 * without a heartbeat for `staleMs` belongs to a dead process and is taken over. The waiter measures that by its own
 * clock, so clock skew and process ids of other containers do not matter.
 *
 * Python's downloader locks with flock, which Node lacks. New versions use other file names; an old version that
 * downloads the same file at the same time corrupts the partial file, which its size and checksum show.
 */
import { randomUUID } from 'node:crypto';
import { link, mkdir, readFile, rename, rm, stat, utimes, writeFile } from 'node:fs/promises';
import { dirname } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

export interface LockOptions {
  signal?: AbortSignal;
  /** Called once if another process holds the lock. */
  onWait?: () => void;
  heartbeatMs?: number;
  staleMs?: number;
}

export async function withLock<T>(path: string, run: () => Promise<T>, options: LockOptions = {}): Promise<T> {
  const { heartbeatMs = 2000 } = options;
  const id = randomUUID();
  await mkdir(dirname(path), { recursive: true });
  await acquire(path, id, options);
  const heartbeat = setInterval(() => utimes(path, new Date(), new Date()).catch(() => {}), heartbeatMs);
  try {
    return await run();
  } finally {
    clearInterval(heartbeat);
    // If this process was suspended, another one may have taken the lock over.
    if ((await readHolder(path)) === id) await rm(path, { force: true });
  }
}

async function acquire(path: string, id: string, options: LockOptions): Promise<void> {
  const { signal, onWait, staleMs = 15_000 } = options;
  let lastState = '';
  let unchangedSince = Date.now();
  for (let waited = false; ; ) {
    signal?.throwIfAborted();
    try {
      return await writeFile(path, id, { flag: 'wx' });
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
    }
    const holder = await readHolder(path);
    const state = `${holder} ${(await stat(path).catch(() => undefined))?.mtimeMs}`;
    if (state !== lastState) {
      lastState = state;
      unchangedSince = Date.now();
    } else if (Date.now() - unchangedSince > staleMs) {
      await removeStaleLock(path, holder);
      continue;
    }
    if (!waited) onWait?.();
    waited = true;
    await sleep(Math.min(200, staleMs / 4), undefined, { signal });
  }
}

/** Removes a dead holder's lock, but not a new lock that another waiter took in the meantime. */
async function removeStaleLock(path: string, holder: string): Promise<void> {
  const aside = `${path}.${randomUUID()}`;
  await rename(path, aside).catch(() => {});
  if ((await readHolder(aside)) !== holder) await link(aside, path).catch(() => {});
  await rm(aside, { force: true });
}

const readHolder = (path: string) => readFile(path, 'utf8').catch(() => '');
