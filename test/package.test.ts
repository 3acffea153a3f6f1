/** What the package's exports and its command line promise; test/package-install.test.ts installs it. */
import { spawnSync } from 'node:child_process';
import { existsSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';

const root = fileURLToPath(new URL('..', import.meta.url));
const read = (name: string) => readFileSync(join(root, name), 'utf8');
const { bin, exports } = JSON.parse(read('package.json'));

const kvasir = (...args: string[]) => {
  const { status, stdout, stderr } = spawnSync(process.execPath, [join(root, bin.kvasir), ...args], {
    encoding: 'utf8',
  });
  return { status, stdout, stderr };
};

describe('the package', () => {
  it('ships what its exports and its command name', () => {
    const targets = Object.values<Record<string, string>>(exports).flatMap(entry => Object.values(entry));
    expect([...targets, bin.kvasir].filter(target => !existsSync(join(root, target)))).toEqual([]);
    if (process.platform !== 'win32') expect(statSync(join(root, bin.kvasir)).mode & 0o111).not.toBe(0);
  });

  it('has a lock file without addresses', () => {
    expect(read('package-lock.json')).not.toMatch(/"resolved"/);
  });
});

describe('kvasir codecs', () => {
  it('--json prints an array of rows, each with its spec', () => {
    const { stdout, status } = kvasir('codecs', 'tq4', 'q4_0', '--dim', '64,80', '--json');
    expect(status).toBe(0);
    const rows = JSON.parse(stdout);
    expect(rows.map((row: { spec: string; dim: number }) => [row.spec, row.dim])).toEqual([
      ['tq4', 64],
      ['q4_0', 64],
      ['tq4', 80],
      ['q4_0', 80],
    ]);
    expect(rows[0]).toMatchObject({ bits: 4.25, bytesPerVector: { key: 34, value: 34 } });
    expect(Object.keys(rows[0].loss)).toEqual(['gaussian', 'outliers', 'offset', 'sinks', 'rope']);
    expect(rows[0].loss.gaussian.mse).toBeLessThan(0.0096);
    expect(rows[0].attentionError).toBeGreaterThan(0);
    expect(rows[3].refused).toMatch(/blocks of 32/);
  });

  it('--explain prints where every byte lies', () => {
    const { stdout } = kvasir('codecs', 'tq4', '--explain');
    expect(stdout).toMatch(/head \+ 0 +8,192 +codes/);
    expect(stdout).toMatch(/head \+ 8,192 +256 +norms/);
  });

  it('names the nearest specs, without a stack, when one is unknown', () => {
    const { status, stderr } = kvasir('codecs', 'tq7');
    expect(status).toBe(1);
    expect(stderr).toMatch(/^kvasir: "tq7" is not a codec. Nearest: tq4, tq3, tq2/);
    expect(stderr).not.toMatch(/ at /);
  });
});

describe('kvasir estimate', () => {
  const shape = ['--layers', '36', '--kv-heads', '8', '--head-dim', '128', '--context', '131072', '--budget', '20GiB'];

  it('says what fits, by codec', () => {
    const { stdout } = kvasir('estimate', ...shape, 'tq4-n32', 'fp8', '--json');
    const [tq4, fp8] = JSON.parse(stdout);
    expect([tq4.tokens, fp8.tokens]).toEqual([548_275, 291_271]);
    expect([tq4.sequences, fp8.sequences]).toEqual([4, 2]);
    expect(kvasir('estimate', ...shape).stdout).toMatch(/tq2u +2\.125 +19,584 +1,096,550/);
  });

  it('refuses sizes it cannot read', () => {
    expect(kvasir('estimate', ...shape, '--budget', '20 parsecs').stderr).toMatch(/not a size.*20GiB/);
    expect(kvasir('estimate', '--layers', '3').stderr).toMatch(/--kv-heads/);
  });
});

it('an unknown command says so', () => {
  expect(kvasir('bogus')).toMatchObject({ status: 1, stderr: expect.stringMatching(/no command "bogus"/) });
});
