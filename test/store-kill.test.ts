/** Processes that are killed while they write: 50 times, 1,000 times with KVASIR_LONG. */
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { openDiskStore } from '../src/cache/store/disk-store.ts';
import { LONG_CASES } from './matrix.ts';
import { seeded } from './random.ts';
import { testName, testRecord } from './store-records.ts';

const KILLS = LONG_CASES ? 1000 : 50;
const LANES = 2;
const folder = mkdtempSync(join(tmpdir(), 'kvasir-kill-'));
const writer = join(folder, 'writer.mjs');
const source = fileURLToPath(new URL('support/store-writer.ts', import.meta.url));

beforeAll(() =>
  build({ entryPoints: [source], outfile: writer, bundle: true, platform: 'node', format: 'esm', target: 'node20' }),
);
afterAll(() => rmSync(folder, { recursive: true }));

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
  const counts = output.slice(0, output.lastIndexOf('\n')).split('\n').slice(1);
  return Number(counts.at(-1) ?? first);
}

it.concurrent.each(Array.from({ length: LANES }, (_, lane) => lane))(
  'finds all flushed records after a kill, and never wrong bytes (lane %i)',
  async lane => {
    const path = join(folder, `lane${lane}`);
    const random = seeded(Date.now() + lane);
    const flushed: [number, number][] = [];
    let next = 0;
    for (let kill = 0; kill < KILLS / LANES; kill++) {
      const end = await runAndKill(path, next, random.below(60));
      flushed.push([next, end]);
      const store = await openDiskStore({ path, model: 'ab'.repeat(32), capacity: 1e9, segmentBytes: 100_000 });
      // Those of this run in full, and also those that may or may not be there.
      for (let n = next; n < end + 300; n++) {
        const record = testRecord(n);
        let found = false;
        for await (const payload of store.get([record])) found = Buffer.compare(payload, record.payload) === 0;
        if (n < end) expect(found, `record ${n}`).toBe(true);
        else expect(found || (await store.has([record])) === 0, `bytes of record ${n}`).toBe(true);
      }
      for (const [from, to] of flushed)
        for (let n = from; n < to; n++) expect(await store.has([testName(n)]), `record ${n}`).toBe(1);
      await store.close();
      next = end + 300;
    }
  },
  KILLS * 10_000,
);
