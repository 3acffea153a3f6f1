/**
 * The steps of deploy/Containerfile, run in a temporary folder instead of an image: with the files that its ignore file
 * lets through, by the commands as written there. The base image and its users are not tested.
 */
import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { expect } from 'vitest';
import { itAll } from '../support/matrix.ts';
import { mimir } from '../support/mimir.ts';
import { freePort } from '../support/serve.ts';
import { root } from './package-project.ts';

const read = (name: string) => readFileSync(join(root, 'deploy', name), 'utf8');

/** The arguments of an instruction, its lines joined. */
const instructions = (name: string): string[] =>
  read('Containerfile')
    .replaceAll('\\\n', ' ')
    .split('\n')
    .filter(line => line.trimStart().startsWith(`${name} `))
    .map(line => line.trim().slice(name.length + 1));

itAll("the image's steps build a server that answers, and is healthy", { timeout: 300_000 }, async () => {
  const folder = mkdtempSync(join(tmpdir(), 'kvasir-image-'));
  const inFolder = (text: string) =>
    text.replace(/(?<=^|[\s=])\/(tmp|app|models|root)\b/g, `${folder}/$1`).replace('chown node:node', 'test -d');
  const run = (cwd: string, command: string) =>
    execFileSync('sh', ['-c', inFolder(command)], {
      ...{ cwd: join(folder, cwd), stdio: 'pipe' },
      env: { ...process.env, npm_config_prefer_offline: 'true' },
    });
  try {
    for (const name of ['build', 'tmp', 'app']) mkdirSync(join(folder, name));
    const paths = [...read('Containerfile.dockerignore').matchAll(/^!(.+)$/gm)].map(([, path]) => path);
    for (const path of paths) cpSync(join(root, path), join(folder, 'build', path), { recursive: true });
    // They are the same, so they are not installed again.
    symlinkSync(join(root, 'node_modules'), join(folder, 'build/node_modules'));
    const [build, install] = instructions('RUN');
    run('build', build);
    run('app', install);

    const port = await freePort();
    const variables = instructions('ENV').flatMap(line => line.split(/\s+/).map(pair => inFolder(pair).split('=', 2)));
    const env = { ...process.env, ...Object.fromEntries(variables), KVASIR_HOST: '127.0.0.1', KVASIR_PORT: `${port}` };
    const [, main]: string[] = JSON.parse(instructions('ENTRYPOINT')[0]);
    const args = [main.replace('/app', join(folder, 'app')), 'serve', mimir, '--device', 'wasm', '--threads', '1'];
    const [, check] = instructions('HEALTHCHECK')[0].split(' CMD ');
    const server = spawn(process.execPath, args, { env, cwd: join(folder, 'app'), stdio: 'ignore' });
    try {
      const url = `http://127.0.0.1:${port}`;
      const isReady = () =>
        fetch(`${url}/ready`).then(
          ({ ok }) => ok,
          () => false,
        );
      while (!(await isReady())) {
        expect(server.exitCode).toBeNull();
        await delay(100);
      }
      const [, ...checkArgs]: string[] = JSON.parse(check);
      execFileSync(process.execPath, checkArgs, { env, stdio: 'pipe' });
      const body = JSON.stringify({ messages: [{ role: 'user', content: 'Who was Kvasir?' }], max_tokens: 4 });
      const headers = { 'content-type': 'application/json' };
      expect((await fetch(`${url}/v1/chat/completions`, { method: 'POST', headers, body })).status).toBe(200);
      expect(await (await fetch(url)).text()).toContain('<html');
    } finally {
      server.kill();
      await once(server, 'exit');
    }
  } finally {
    rmSync(folder, { recursive: true });
  }
});
