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

/** What a server asks of its clients. */
export interface RedisSecurity {
  password: string;
  certificate: Certificate;
}

export interface Certificate {
  /** Paths of PEM files. */
  certificate: string;
  key: string;
}

/** A certificate for 127.0.0.1 that signs itself. */
export async function createCertificate(folder: string): Promise<Certificate> {
  const [certificate, key] = [join(folder, 'cert.pem'), join(folder, 'key.pem')];
  const subject = ['-subj', '/CN=localhost', '-addext', 'subjectAltName=IP:127.0.0.1,DNS:localhost'];
  const days = ['-days', '2'];
  await run('openssl', [
    'req',
    '-x509',
    '-newkey',
    'rsa:2048',
    '-nodes',
    ...days,
    ...subject,
    '-keyout',
    key,
    '-out',
    certificate,
  ]);
  return { certificate, key };
}

const securityOptions = ({ password, certificate: { certificate, key } }: RedisSecurity, port: number): string[] => [
  ...['--requirepass', password, '--masterauth', password, '--port', '0', '--tls-port', `${port}`],
  ...['--tls-cert-file', certificate, '--tls-key-file', key, '--tls-ca-cert-file', certificate],
  ...['--tls-auth-clients', 'no', '--tls-cluster', 'yes', '--tls-replication', 'yes'],
];
const clientOptions = (security?: RedisSecurity): string[] =>
  security ? ['--no-auth-warning', '-a', security.password, '--tls', '--cacert', security.certificate.certificate] : [];

export const startRedis = (...options: string[]): Promise<RedisServer> => startServer(options);

export const startSecureRedis = (security: RedisSecurity): Promise<RedisServer> => startServer([], security);

async function startServer(options: readonly string[], security?: RedisSecurity): Promise<RedisServer> {
  const folder = mkdtempSync(join(tmpdir(), 'kvasir-redis-'));
  const port = await freePort();
  const listening = security ? securityOptions(security, port) : ['--port', `${port}`];
  const args = [...listening, '--bind', '127.0.0.1', '--save', '', '--dir', folder, ...options];
  const process = spawn('redis-server', args, { stdio: 'ignore' });
  const exited = new Promise(resolve => process.once('exit', resolve));
  const command = async (...args: string[]) =>
    (await run('redis-cli', ['-p', `${port}`, ...clientOptions(security), ...args])).stdout.trim();
  for (let tries = 0; (await command('ping').catch(() => '')) !== 'PONG'; tries++) {
    if (tries > 200) throw new Error('redis-server does not start');
    await new Promise(resolve => setTimeout(resolve, 50));
  }
  return {
    ...{ port, process, command },
    url: security
      ? `rediss://default:${encodeURIComponent(security.password)}@127.0.0.1:${port}`
      : `redis://127.0.0.1:${port}`,
    async stop() {
      process.kill('SIGKILL');
      await exited;
      rmSync(folder, { recursive: true, force: true });
    },
  };
}

/** Nodes without replicas that serve what is left when one of them dies. */
export async function startCluster(count = 3, security?: RedisSecurity): Promise<RedisServer[]> {
  const options = [
    '--cluster-enabled',
    'yes',
    '--cluster-require-full-coverage',
    'no',
    '--cluster-node-timeout',
    '1000',
  ];
  const nodes = await Promise.all(Array.from({ length: count }, () => startServer(options, security)));
  const addresses = nodes.map(({ port }) => `127.0.0.1:${port}`);
  await run('redis-cli', [...clientOptions(security), '--cluster', 'create', ...addresses, '--cluster-yes']);
  for (const { command } of nodes)
    while (!(await command('cluster', 'info')).includes('cluster_state:ok'))
      await new Promise(resolve => setTimeout(resolve, 50));
  return nodes;
}
