/** `kvasir doctor --tier`: opens each tier, and measures how fast records are stored and come back. */
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { modelFolder } from '../store/disk-store.ts';
import type { LeafStore } from '../store/leaf-store.ts';
import { openTier } from '../store/open-tiers.ts';
import type { Tier } from '../store/tiers.ts';
import { formatBytes } from '../util/units.ts';

/** No model has this fingerprint. */
const PROBE_MODEL = '0'.repeat(64);
const RECORDS = 16;
const RECORD_BYTES = 2 ** 20;

export type TierReport =
  | { tier: string; problem: string }
  /** Milliseconds to the first record; bytes per second. */
  | { tier: string; latency: number; read: number; write: number };

export async function examineTiers(tiers: readonly Tier[]): Promise<TierReport[]> {
  const reports: TierReport[] = [];
  for (const tier of tiers) reports.push(await examineTier(tier));
  return reports;
}

async function examineTier(tier: Tier): Promise<TierReport> {
  // Not its url, which may have a password.
  const name = tier.type === 'disk' ? `disk ${tier.path}` : tier.type;
  let store: LeafStore | undefined;
  try {
    store = await openTier(tier, { model: PROBE_MODEL });
    return { tier: name, ...(await measure(store)) };
  } catch (error) {
    return { tier: name, problem: (error as Error).message };
  } finally {
    await store?.close();
    if (tier.type === 'disk')
      await rm(join(tier.path, modelFolder(PROBE_MODEL)), { recursive: true, force: true }).catch(() => {});
  }
}

async function measure(store: LeafStore) {
  const records = Array.from({ length: RECORDS }, (_, i) => {
    const key = new Uint8Array(32).fill(i + 1);
    return { kind: 'leaf' as const, key, payload: new Uint8Array(RECORD_BYTES).fill(i) };
  });
  const start = performance.now();
  await store.put(records);
  await store.flush();
  const stored = performance.now();
  let found = 0;
  for await (const _ of store.get(records)) found++;
  const ended = performance.now();
  const { lastError, get } = store.stats;
  await store.delete(records);
  if (found < RECORDS) throw new Error(lastError ?? `only ${found} of ${RECORDS} records of 1 MiB came back`);
  const rate = (ms: number) => (RECORDS * RECORD_BYTES * 1000) / ms;
  return { latency: get.totalMs, read: rate(ended - stored), write: rate(stored - start) };
}

export const formatTierReport = (report: TierReport): string =>
  'problem' in report
    ? `${report.tier}: not available: ${report.problem}`
    : `${report.tier}: first record after ${report.latency.toFixed(1)} ms, reads ${formatBytes(report.read)}/s, ` +
      `writes ${formatBytes(report.write)}/s`;
