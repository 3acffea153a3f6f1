/** The package's exports and command line, as built; test/packages/package-install.all.test.ts tests an installed package. */
import { spawnSync } from 'node:child_process';
import { existsSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';
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
  it('contains every file that its exports and its command refer to', () => {
    const targets = Object.values<Record<string, string>>(exports).flatMap(entry => Object.values(entry));
    expect([...targets, bin.kvasir].filter(target => !existsSync(join(root, target)))).toEqual([]);
    if (process.platform !== 'win32') expect(statSync(join(root, bin.kvasir)).mode & 0o111).not.toBe(0);
  });

  it('has a lock file without registry URLs', () => {
    expect(read('package-lock.json')).not.toMatch(/"resolved"/);
  });

  it('has no module of Node, no hub client and no Redis in a browser bundle', async () => {
    const entryPoints = ['.', './worker', './engine-worker'].map(name => exports[name].default);
    const { metafile } = await build({
      entryPoints: entryPoints.map(path => join(root, path)),
      bundle: true,
      splitting: true,
      format: 'esm',
      platform: 'browser',
      outdir: 'out',
      write: false,
      metafile: true,
    });
    const outputs = Object.values(metafile.outputs);
    expect(outputs.flatMap(({ imports }) => imports).filter(({ external }) => external)).toEqual([]);
    const sources = outputs.flatMap(({ inputs }) => Object.keys(inputs));
    expect(sources).toContain('dist/platform/browser.js');
    expect(
      sources.filter(path =>
        /^dist\/(platform\/node|hub\.js|hub\/(?!(profile-)?name\.js)|plan\/pull|store\/redis-(?!store-browser))/.test(
          path,
        ),
      ),
    ).toEqual([]);
  });

  it('exports the hub client in Node; in browsers the same names say that they need it', async () => {
    const { pull } = await import(join(root, exports['.'].default));
    await expect(pull('model.gguf')).rejects.toMatchObject({ name: 'InputError' });
    const [inNode, inBrowsers] = await Promise.all(
      ['hub', 'hub-browser'].map(name => import(`${root}dist/${name}.js`)),
    );
    expect(Object.keys(inBrowsers).sort()).toEqual(Object.keys(inNode).sort());
    await expect(inBrowsers.listModels()).rejects.toThrow(/^Models of the hub are cached on disk, in Node/);
    expect(inBrowsers.cacheDir).toThrow(/in Node/);
  });

  it('says in browsers that a redis tier needs Node', async () => {
    const { openRedisStore } = await import(`${root}dist/store/redis-store-browser.js`);
    await expect(openRedisStore({ urls: ['redis://localhost:6379'] })).rejects.toThrow(/needs Node/);
  });

  it.each([
    ['kvasir/hub', 'kvasir', 'listModels'],
    ['kvasir/calibrate', 'kvasir/eval', 'calibrate'],
  ])('%s of 0.1 works, with one notice', (name, now, used) => {
    const program = `import { ${used} } from '${name}'; import '${name}'; console.log(typeof ${used});`;
    const args = ['--input-type=module', '--eval', program];
    const { stdout, stderr } = spawnSync(process.execPath, args, { encoding: 'utf8', cwd: root });
    expect(stdout).toBe('function\n');
    expect(stderr.match(/DeprecationWarning: .*/g)).toEqual([
      `DeprecationWarning: Import from '${now}': '${name}' goes in the next release.`,
    ]);
  });
});

describe('kvasir codecs', () => {
  it('--json prints an array with one row per spec and dimension', () => {
    const { stdout, status } = kvasir('codecs', 'tq4', 'q4_0', '--dim', '64,80', '--json');
    expect(status).toBe(0);
    const rows = JSON.parse(stdout);
    expect(rows.map((row: { spec: string; dim: number }) => [row.spec, row.dim])).toEqual([
      ['tq4', 64],
      ['q4_0', 64],
      ['tq4', 80],
      ['q4_0', 80],
    ]);
    expect(rows[0]).toMatchObject({ bits: 4.3125, bytesPerVector: { key: 35, value: 34 } });
    expect(Object.keys(rows[0].loss)).toEqual(['gaussian', 'outliers', 'offset', 'sinks', 'rope']);
    expect(rows[0].loss.gaussian.mse).toBeLessThan(0.0096);
    expect(rows[0].attentionError).toBeGreaterThan(0);
    expect(rows[3].refused).toMatch(/blocks of 32/);
  });

  it('--explain prints the page layout', () => {
    const { stdout } = kvasir('codecs', 'tq4', '--explain');
    expect(stdout).toMatch(/head \+ 0 +8,192 +codes/);
    expect(stdout).toMatch(/head \+ 8,192 +256 +norms/);
  });

  it('--verify prints the error beside the budget and the bounds of the paper', () => {
    const { stdout, status } = kvasir('codecs', 'tq4-raw', 'kivi2g32', '--dim', '64', '--verify');
    expect(status).toBe(0);
    expect(stdout).toMatch(/^tq4-raw +keys +\.\d+ +\.0096 +yes +error +\.\d+ +\.00391 +\.0106 +2\.\d+x +0\.\d+x$/m);
    expect(stdout).toMatch(/^kivi2g32 +values +\.\d+ +\.\d+ +yes *$/m);
  });

  it('suggests the nearest specs for an unknown one, without a stack trace', () => {
    const { status, stderr } = kvasir('codecs', 'tq7');
    expect(status).toBe(1);
    expect(stderr).toMatch(/^kvasir: "tq7" is not a codec. Nearest: tq4, tq3, tq2/);
    expect(stderr).not.toMatch(/ at /);
  });
});

describe('kvasir inspect --shape', () => {
  const qwen = ['inspect', '--shape', '36x8x128', '--context', '131072', '--memory', '20GiB'];

  it('prints how many tokens fit, per codec', () => {
    const { stdout } = kvasir(...qwen, '--kv', 'tq4-raw-n32,fp8', '--json');
    const [tq4, fp8] = JSON.parse(stdout);
    expect([tq4.tokens, fp8.tokens]).toEqual([548_275, 291_271]);
    expect([tq4.sequences, fp8.sequences]).toEqual([4, 2]);
    expect(kvasir(...qwen).stdout).toMatch(/tq2u +2\.188 +20,160 +1,065,220/);
  });

  it('prints how many tokens each tier holds', () => {
    const llama = ['inspect', '--shape', '32x8x128', '--kv', 'tq4'];
    const tier = ['--tier', 'host=4GiB,disk=/dir:128GB,redis=redis://host'];
    const [{ bytesPerToken, tiers }] = JSON.parse(kvasir(...llama, ...tier, '--json').stdout);
    expect([bytesPerToken, tiers]).toEqual([
      34_304,
      [{ tier: 'host', tokens: 125_203 }, { tier: 'disk', tokens: 3_731_343 }, { tier: 'redis' }],
    ]);
    const { stdout } = kvasir(...llama, ...tier);
    expect(stdout).toMatch(/on host +on disk +on redis\n/);
    expect(stdout).toMatch(/ 125,203 +3,731,343 +as set there\n/);
  });

  it('rejects an invalid size', () => {
    expect(kvasir(...qwen, '--memory', '20 parsecs').stderr).toMatch(/not a size.*20GiB/);
  });
});

describe('commands of 0.1', () => {
  const mimir = join(root, 'models/mimir.gguf');

  it('estimate, plan and profile run inspect, and say so', () => {
    const shape = ['--layers', '36', '--kv-heads', '8', '--head-dim', '128', '--context', '131072'];
    const estimate = kvasir('estimate', ...shape, '--budget', '20GiB', 'tq4-raw-n32', '--json');
    expect(JSON.parse(estimate.stdout)[0]).toMatchObject({ spec: 'tq4-raw-n32', tokens: 548_275 });
    expect(estimate.stderr).toMatch(/^kvasir estimate is now kvasir inspect --shape .*\n$/);
    expect(kvasir('estimate', '--layers', '3').stderr).toMatch(/--kv-heads/);
    const plan = kvasir('plan', mimir, '--kv', 'tq4', '--json');
    expect(JSON.parse(plan.stdout)).toMatchObject({ kv: 'tq4', layers: Array(8).fill({ key: { spec: 'tq4' } }) });
    expect(plan.stderr).toMatch(/^kvasir plan is now kvasir inspect MODEL --kv SPEC\n$/);
    expect(JSON.parse(kvasir('plan', mimir, '--json').stdout).presets).toHaveLength(3);
    const profile = kvasir('profile', mimir);
    expect(profile.stdout).toMatch(/^profile +\S+mimir\.kvprofile\n[\s\S]*auto-mead:2 +2\.000/);
    expect(profile.stderr).toMatch(/^kvasir profile is now kvasir inspect FILE\.kvprofile\n$/);
  });

  it('flags have new names', () => {
    const { status, stderr } = kvasir('calibrate', './none.gguf', '--codecs=tq4');
    expect([status, stderr]).toEqual([
      1,
      expect.stringMatching(/^--codecs of kvasir calibrate is now --kv\nkvasir: .*none\.gguf/),
    ]);
  });

  it('are not in the help', () => {
    expect(kvasir('--help').stdout).not.toMatch(/^ +(estimate|plan|profile) /m);
  });
});

it('rejects an unknown command', () => {
  expect(kvasir('bogus')).toMatchObject({ status: 1, stderr: expect.stringMatching(/Unknown command "bogus"/) });
});
