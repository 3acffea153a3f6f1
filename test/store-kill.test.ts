/** Processes that are killed while they write: 16 times, 52 times in CI, 1,000 times with KVASIR_LONG. */
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { type DiskStore, openDiskStore } from '../src/store/disk-store.ts';
import { ALL_CASES, LONG_CASES } from './support/matrix.ts';
import { seeded } from './support/random.ts';
import { testName, testRecord } from './support/store-records.ts';

const KILLS = LONG_CASES ? 1000 : ALL_CASES ? 52 : 16;
const LANES = 4;
/** Then a lane begins with an empty store, since opening takes longer the more is in it. */
const KILLS_PER_STORE = 25;
/** After the last record that was flushed, others may or may not be there: fewer than this. */
const UNFLUSHED = 300;
const folder = mkdtempSync(join(tmpdir(), 'kvasir-kill-'));
const writer = join(folder, 'writer.mjs');
const source = fileURLToPath(new URL('support/store-writer.ts', import.meta.url));

const counts = { kills: 0, flushed: 0, lost: 0, unflushed: 0, wrong: 0 };

beforeAll(() =>
  build({ entryPoints: [source], outfile: writer, bundle: true, platform: 'node', format: 'esm', target: 'node20' }),
);
afterAll(() => {
  rmSync(folder, { recursive: true });
  if (LONG_CASES) console.log(`records after kills: ${JSON.stringify(counts)}`);
});

/** Runs a writer and kills it so many ms after it has opened the store; returns the last count that it has flushed. */
async function runAndKill(path: string, first: number, afterMs: number): Promise<number> {
  const child = spawn(process.execPath, [writer, path, String(first)], { stdio: ['ignore', 'pipe', 'inherit'] });
  let output = '';
  child.stdout.on('data', chunk => {
    if (output === '') setTimeout(() => child.kill('SIGKILL'), afterMs);
    output += chunk;
  });
  const [, signal] = await new Promise<[number | null, string | null]>(resolve =>
    child.once('close', (...result) => resolve(result)),
  );
  expect(signal, output).toBe('SIGKILL');
  // The last line may be cut.
  const flushed = output.slice(0, output.lastIndexOf('\n')).split('\n').slice(1);
  return Number(flushed.at(-1) ?? first);
}

/** Whether a record is stored. Counts those with wrong bytes. */
async function isIntact(store: DiskStore, number: number): Promise<boolean> {
  const record = testRecord(number);
  for await (const payload of store.get([record])) {
    if (Buffer.compare(payload, record.payload) === 0) return true;
    counts.wrong++;
  }
  return false;
}

it.concurrent.each(Array.from({ length: LANES }, (_, lane) => lane))(
  'finds all flushed records after a kill, and never wrong bytes (lane %i)',
  async lane => {
    const random = seeded(Date.now() + lane);
    let flushed: number[] = [];
    let [path, next] = ['', 0];
    for (let kill = 0; kill < KILLS / LANES; kill++) {
      if (kill % KILLS_PER_STORE === 0) {
        rmSync(path, { recursive: true, force: true });
        [flushed, path] = [[], join(folder, `${lane}-${kill}`)];
      }
      const first = next;
      const end = await runAndKill(path, first, random.below(60));
      counts.kills++;
      const store = await openDiskStore({ path, model: 'ab'.repeat(32), capacity: 1e9, segmentBytes: 100_000 });
      // Those of this process are read, and those of earlier ones must still be known.
      for (let n = first; n < end; n++) if (!(await isIntact(store, n))) counts.lost++;
      for (let n = end; n < end + UNFLUSHED; n++) if (await isIntact(store, n)) counts.unflushed++;
      counts.lost += flushed.length - (await store.has(flushed.map(testName)));
      await store.close();
      for (let n = first; n < end; n++) flushed.push(n);
      counts.flushed += end - first;
      next = end + UNFLUSHED;
      expect(counts).toMatchObject({ lost: 0, wrong: 0 });
    }
  },
  KILLS * 10_000,
);
