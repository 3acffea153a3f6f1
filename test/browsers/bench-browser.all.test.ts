/** `npm run bench -- browser`: its ratios, its estimates, and a run in Chromium. */
import { execFileSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { fastestMean } from '../../bench/browser/page.ts';
import { type Row, renderTables } from '../../bench/browser/tables.ts';
import { estimateAt } from '../../bench/browser/wllama.ts';
import { ALL_CASES } from '../support/matrix.ts';
import { noChromium } from './chromium.ts';

describe('the table', () => {
  const rows: Row[] = [
    { where: 'Chromium', kv: 'tq4', depth: 8192, tokenMs: 11, prefill: 300 },
    { where: 'Node', kv: 'tq4', depth: 8192, tokenMs: 10, prefill: 250 },
    { where: 'Chromium', kv: 'f16', depth: 8192, tokenMs: 22, prefill: 200 },
    { where: 'wllama', kv: 'q8_0, flash on', depth: 8192, tokenMs: 88, prefill: 20 },
  ];
  const line = (rows: Row[]) => renderTables('2 threads', rows).split('\n')[3];

  it('compares Chromium with Node, with its own f16 and with wllama', () => {
    expect(line(rows)).toMatch(/8192 +Chromium +tq4 +11\.00 +90\.9 +300 +1\.10x +2\.00x +8\.00x +15\.00x$/);
  });

  it('has no ratios to what was not measured', () => {
    expect(line(rows.slice(0, 1))).toMatch(/300 +- +- +- +-$/);
  });

  it('marks what was estimated', () => {
    const text = renderTables('2 threads', [rows[0], { ...rows[3], isEstimate: true }]);
    expect(text).toMatch(/~8\.00x +~15\.00x\n/);
    expect(text).toContain('~: estimated');
    expect(renderTables('2 threads', rows)).not.toContain('~');
  });
});

it('the time per token is the fastest mean of 16 in a row', () => {
  const disturbed = Array.from({ length: 32 }, (_, i) => (i < 10 ? 50 : i % 2 === 0 ? 19 : 21));
  expect(fastestMean(disturbed)).toBe(20);
  expect(fastestMean([1, 2, 6])).toBe(3);
});

it('the time of wllama at a depth is on the line through the depths that it reached', () => {
  const points = [0, 512, 1024].map(depth => ({ depth, tokenMs: 60 + depth / 40, prefill: 40 }));
  expect(estimateAt(points, 8192)).toEqual({ depth: 8192, tokenMs: expect.closeTo(264.8), prefill: 40 });
  const noise = [80, 70, 60].map((tokenMs, i) => ({ depth: 512 * i, tokenMs, prefill: 40 }));
  expect(estimateAt(noise, 8192).tokenMs).toBeCloseTo(70);
});

it.skipIf(!ALL_CASES || noChromium)('measures Mimir in Chromium and in Node', { timeout: 240_000 }, () => {
  const cwd = fileURLToPath(new URL('../..', import.meta.url));
  const run = (...args: string[]) => execFileSync(process.execPath, args, { cwd, encoding: 'utf8' });
  run('node_modules/typescript/bin/tsc', '-p', 'tsconfig.bench.json');
  const options = '--model models/mimir.gguf --depths 0,256 --tokens 4 --rounds 1 --json'.split(' ');
  const { rows } = JSON.parse(run('.cache/bench/bench/main.js', 'browser', ...options)) as { rows: Row[] };
  expect(rows.map(({ depth, where, kv }) => `${depth} ${where} ${kv}`)).toEqual(
    [0, 256].flatMap(depth => ['tq4', 'f16'].flatMap(kv => [`${depth} Chromium ${kv}`, `${depth} Node ${kv}`])),
  );
  for (const { tokenMs, prefill } of rows) {
    expect(tokenMs).toBeGreaterThan(0);
    expect(prefill).toBeGreaterThan(0);
  }
});
