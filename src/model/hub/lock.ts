/**
 * One download of a file at a time, across processes: whoever creates the lock file holds it, and touches it while it
 * works. A lock that nobody touched while we watched belongs to a process that died, and is taken. The watcher's own
 * clock decides, so neither clocks that disagree nor process ids from another container can mislead it.
 *
 * Python's downloader locks with flock, which Node has not. Newer ones write to names of their own; an older one and
 * Kvasir at once on one file spoil the partial file, which the checksum then finds.
 */
import { randomUUID } from 'node:crypto';
import { link, mkdir, readFile, rename, rm, stat, utimes, writeFile } from 'node:fs/promises';
import { dirname } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

export interface LockOptions {
  signal?: AbortSignal;
  /** Called once, when somebody else holds the lock. */
  onWait?: () => void;
  beatMs?: number;
  staleMs?: number;
}

export async function withLock<T>(path: string, run: () => Promise<T>, options: LockOptions = {}): Promise<T> {
  const { beatMs = 2000 } = options;
  const id = randomUUID();
  await mkdir(dirname(path), { recursive: true });
  await acquire(path, id, options);
  const beat = setInterval(() => utimes(path, new Date(), new Date()).catch(() => {}), beatMs);
  try {
    return await run();
  } finally {
    clearInterval(beat);
    // Ours may have been taken while this process was suspended: then it is another's to remove.
    if ((await idOf(path)) === id) await rm(path, { force: true });
  }
}

async function acquire(path: string, id: string, options: LockOptions): Promise<void> {
  const { signal, onWait, staleMs = 15_000 } = options;
  let seen = '';
  let since = Date.now();
  for (let waited = false; ; ) {
    signal?.throwIfAborted();
    try {
      return await writeFile(path, id, { flag: 'wx' });
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
    }
    const holder = await idOf(path);
    const now = `${holder} ${(await stat(path).catch(() => undefined))?.mtimeMs}`;
    if (now !== seen) {
      seen = now;
      since = Date.now();
    } else if (Date.now() - since > staleMs) {
      await evict(path, holder);
      continue;
    }
    if (!waited) onWait?.();
    waited = true;
    await sleep(Math.min(200, staleMs / 4), undefined, { signal });
  }
}

/** Removes a dead holder's lock. Two waiters may try at once, and the second must not remove the first one's new lock. */
async function evict(path: string, holder: string): Promise<void> {
  const aside = `${path}.${randomUUID()}`;
  await rename(path, aside).catch(() => {});
  if ((await idOf(aside)) !== holder) await link(aside, path).catch(() => {});
  await rm(aside, { force: true });
}

const idOf = (path: string) => readFile(path, 'utf8').catch(() => '');
