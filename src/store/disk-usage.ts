/** What a disk store holds, by tenant. */
import { createLog, type Entry } from './disk-log.ts';
import type { FileSystem } from './file-system.ts';

export interface TenantUsage {
  records: number;
  bytes: number;
  /** When its first and last records were stored, in ms since 1970. */
  oldest: number;
  newest: number;
}

/** What the records of a model's folder take, by tenant, read without a lock. */
export async function readUsage(fs: FileSystem, folder: string): Promise<Map<string, TenantUsage>> {
  const ignore = () => {};
  const log = createLog({ fs, folder, segmentBytes: 0, now: Date.now, onError: ignore });
  const entries = new Map((await log.load()).map(entry => [entry.name, entry]));
  await log.close();
  return usageOf(entries.values());
}

export function usageOf(entries: Iterable<Entry>): Map<string, TenantUsage> {
  const usage = new Map<string, TenantUsage>();
  for (const { tenant, size, stored } of entries) {
    const { records, bytes, oldest, newest } = usage.get(tenant) ?? {
      ...{ records: 0, bytes: 0, oldest: stored, newest: stored },
    };
    usage.set(tenant, {
      ...{ records: records + 1, bytes: bytes + size },
      ...{ oldest: Math.min(oldest, stored), newest: Math.max(newest, stored) },
    });
  }
  return usage;
}
