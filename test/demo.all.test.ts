/** `kvasir demo` and the needle evaluation with the model in the package. */
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { kvasir } from './support/command.ts';
import { mimir } from './support/mimir.ts';

const folder = mkdtempSync(join(tmpdir(), 'kvasir-demo-'));
afterAll(() => rmSync(folder, { recursive: true }));

describe('kvasir demo', () => {
  it('--json prints answers, sizes and speed for each codec', async () => {
    const { status, stdout } = await kvasir(['demo', '--tokens', '600', '--kv', 'f16,tq4', '--json']);
    expect(status).toBe(0);
    const { tokens, facts, rows } = JSON.parse(stdout);
    expect(Math.abs(tokens - 600)).toBeLessThan(130);
    expect(facts).toBe(10);
    expect(rows.map(({ kv }: { kv: string }) => kv)).toEqual(['f16', 'tq4']);
    const [f16, tq4] = rows;
    expect(f16).toMatchObject({ bits: 16, ratio: 1, kld: 0 });
    expect(f16.right).toBeGreaterThanOrEqual(9);
    expect(tq4.right).toBeGreaterThanOrEqual(9);
    expect(tq4.kld).toBeGreaterThan(0);
    expect(tq4.kld).toBeLessThan(0.05);
    expect(tq4.bytes).toBeLessThan(f16.bytes / 2);
    expect(tq4.msPerToken).toBeGreaterThan(0);
    expect(tq4.answers).toHaveLength(facts);
    for (const { answer, said, right } of tq4.answers) expect(right).toBe(said === answer);
  });

  it('prints answers and a table', async () => {
    const { stdout } = await kvasir(['demo', '--tokens', '200', '--kv', 'tq3']);
    expect(stdout).toMatch(/\ntq3, 3\.\d+ bits per value\n {2}[✓✗] .*\? \S/);
    expect(stdout).toMatch(/cache +bits +bytes +ratio +correct +ms\/token +divergence\n.*\nf16 .*1\.00x/);
    expect(stdout).toMatch(/Next:\n(.*kvasir .*\n){3}$/);
  });

  it('rejects a document that is too long and a codec without a profile', async () => {
    const long = await kvasir(['demo', '--tokens', '9000']);
    expect(long).toMatchObject({ status: 1, stderr: expect.stringMatching(/trained for 8,192\. Use shorter/) });
    const unlearned = await kvasir(['demo', '--kv', 'vec-d2b4']);
    expect(unlearned).toMatchObject({ status: 1, stderr: expect.stringMatching(/calibrate/) });
  });
});

describe('kvasir eval --task needle', () => {
  it('prints maps and writes a plot and a report', async () => {
    const [svg, page] = [join(folder, 'map.svg'), join(folder, 'map.html')];
    const size = ['--lengths', '200,300', '--depths', '2', '--documents', '1', '--kv', 'tq4'];
    const files = ['--out', svg, '--out', page];
    const { status, stdout } = await kvasir(['eval', mimir, '--task', 'needle', ...size, ...files]);
    expect(status).toBe(0);
    expect(stdout).toMatch(/^Mimir: facts retrieved\n1 document of each length.*equals the expected words/);
    expect(stdout).toMatch(
      /\ntq4, 4\.313 bits: [\d.]+ % of 4 facts\n +depth +25 +75\n +200( +\d+){2} +[\d.]+ %\n +300/,
    );
    expect(readFileSync(svg, 'utf8')).toMatch(/^<svg[\s\S]*tq4[\s\S]*<\/svg>\n$/);
    expect(readFileSync(page, 'utf8')).toMatch(/^<!doctype html>[\s\S]*<\/html>\n$/);
  });

  it('rejects an unknown task and a missing text', async () => {
    expect((await kvasir(['eval', mimir, '--task', 'haystack'])).stderr).toMatch(/Use divergence, needle, gsm8k, /);
    expect((await kvasir(['eval', mimir])).stderr).toMatch(/Example: --text/);
    expect((await kvasir(['eval', mimir, '--out', 'plot.png'])).stderr).toMatch(/ends in \.svg or \.html/);
  });
});
