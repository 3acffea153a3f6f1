/** Debian's redis-server, for tests and benchmarks. */
import { type ChildProcess, execFile, spawn, spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';

const run = promisify(execFile);
const isInstalled = spawnSync('redis-server', ['--version']).status === 0;

/** Why no server can be started; undefined if one can. */
export const noRedis = isInstalled ? undefined : 'redis-server is not installed';

export interface RedisServer {
  port: number;
  url: string;
  process: ChildProcess;
  command(...args: string[]): Promise<string>;
  stop(): Promise<void>;
}

/** A port that is free, also with 10,000 added: the bus of a cluster. */
export async function freePort(): Promise<number> {
  const server = createServer();
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as { port: number };
  await new Promise(resolve => server.close(resolve));
  return port < 55_000 ? port : freePort();
}

export async function startRedis(...options: string[]): Promise<RedisServer> {
  const folder = mkdtempSync(join(tmpdir(), 'kvasir-redis-'));
  const port = await freePort();
  const args = ['--port', `${port}`, '--bind', '127.0.0.1', '--save', '', '--dir', folder, ...options];
  const process = spawn('redis-server', args, { stdio: 'ignore' });
  const exited = new Promise(resolve => process.once('exit', resolve));
  const command = async (...args: string[]) => (await run('redis-cli', ['-p', `${port}`, ...args])).stdout.trim();
  for (let tries = 0; (await command('ping').catch(() => '')) !== 'PONG'; tries++) {
    if (tries > 200) throw new Error('redis-server does not start');
    await new Promise(resolve => setTimeout(resolve, 50));
  }
  return {
    ...{ port, url: `redis://127.0.0.1:${port}`, process, command },
    async stop() {
      process.kill('SIGKILL');
      await exited;
      rmSync(folder, { recursive: true, force: true });
    },
  };
}

/** Nodes without replicas that serve what is left when one of them dies. */
export async function startCluster(count = 3): Promise<RedisServer[]> {
  const nodes = await Promise.all(
    Array.from({ length: count }, () =>
      startRedis('--cluster-enabled', 'yes', '--cluster-require-full-coverage', 'no', '--cluster-node-timeout', '1000'),
    ),
  );
  const addresses = nodes.map(({ port }) => `127.0.0.1:${port}`);
  await run('redis-cli', ['--cluster', 'create', ...addresses, '--cluster-yes']);
  for (const { command } of nodes)
    while (!(await command('cluster', 'info')).includes('cluster_state:ok'))
      await new Promise(resolve => setTimeout(resolve, 50));
  return nodes;
}
