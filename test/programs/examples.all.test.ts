/** Every program of examples/ runs, with Mimir. */
import { execFileSync, spawn } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';
import { expect, it } from 'vitest';

const root = fileURLToPath(new URL('../..', import.meta.url));
const folder = join(root, 'examples');
const run = (name: string, ...args: string[]) =>
  execFileSync(process.execPath, [join(folder, name), ...args], { cwd: root, encoding: 'utf8' });

const OUTPUTS = {
  'generate.mjs': /^ 4817\nstop: \d+ tokens in, 3 out, on \w+\n$/,
  'conversation.mjs': /^4817 1304 [1-9]\d* tokens reused\n$/,
  'vectors.mjs': /^tq4: \d{6} bytes instead of 512000 in f16, 512 outputs\n$/,
  'evaluate.mjs': /^f16: .* 0\.0 nats.*\ntq4: 4\.313 bits.*\ntq2: 2\.313 bits.*\n$/,
};

it.each(Object.entries(OUTPUTS))('%s', (name, output) => expect(run(name)).toMatch(output));

it('client.mjs', async () => {
  const main = join(root, 'dist/cli/main.js');
  const server = spawn(process.execPath, [main, 'serve', 'models/mimir.gguf', '--port', '0'], { cwd: root });
  try {
    const url = await new Promise<string>((resolve, reject) => {
      let printed = '';
      for (const stream of [server.stdout, server.stderr])
        stream.setEncoding('utf8').on('data', data => {
          printed += data;
          const [, found] = printed.match(/Listening on (\S+)/) ?? [];
          if (found) resolve(found);
        });
      server.once('exit', () => reject(new Error(printed)));
    });
    expect(run('client.mjs', url)).toMatch(/^1304 \d+\n$/);
  } finally {
    server.kill();
  }
});

it('browser.html has a script whose imports resolve', async () => {
  const [, script] = readFileSync(join(folder, 'browser.html'), 'utf8').match(
    /<script type="module">([\s\S]*)<\/script>/,
  )!;
  const stdin = { contents: script, resolveDir: folder };
  const { errors } = await build({ stdin, bundle: true, format: 'esm', write: false, external: ['node:*'] });
  expect(errors).toEqual([]);
});

it('every example is tested and listed', () => {
  const files = readdirSync(folder).filter(name => name !== 'README.md');
  expect(files.sort()).toEqual([...Object.keys(OUTPUTS), 'browser.html', 'client.mjs'].sort());
  for (const file of files) expect(readFileSync(join(folder, 'README.md'), 'utf8')).toContain(`(${file})`);
});
