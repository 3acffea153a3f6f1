import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { createServer, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import {
  createCertificate,
  type RedisServer,
  startCluster,
  startRedis,
  startSecureRedis,
} from '../../test/support/redis-server.ts';
import { describeWithRedis } from '../../test/support/redis-suite.ts';
import { countIntact, storeSuite, testRecord, testRecords } from '../../test/support/store-suite.ts';
import { openTiers } from './open-tiers.ts';
import { openRedisStore, type RedisStoreOptions, withoutSecrets } from './redis-store.ts';

const model = 'ab'.repeat(32);
const open = (url: string, options: Partial<RedisStoreOptions> = {}) =>
  openRedisStore({ urls: [url], model, timeoutMs: 5000, ...options });

describeWithRedis('the redis store', () => {
  let server: RedisServer;
  beforeAll(async () => {
    server = await startRedis('--enable-debug-command', 'yes');
  });
  afterAll(() => server?.stop());

  storeSuite(async () => {
    await server.command('flushall');
    return open(server.url);
  });

  it('splits large records, and misses those that lack a part', async () => {
    const store = await open(server.url);
    const records = testRecords(3, 1_300_000, 500);
    await store.put(records);
    expect(await countIntact(store, records)).toBe(3);
    const keys = (await server.command('keys', 'kvasir:1:abababababababab:l*')).split('\n');
    const ofSecond = keys.filter(key => key.includes(Buffer.from(records[1].key).toString('hex')));
    expect(ofSecond.map(key => key.slice(-1)).sort()).toEqual(['0', '1', '2']);
    await server.command('del', ofSecond.find(key => key.endsWith('2'))!);
    expect(await countIntact(store, records)).toBe(1);
    await store.delete(records);
    expect(await server.command('keys', `*${Buffer.from(records[2].key).toString('hex')}*`)).toBe('');
    await store.close();
  });

  it('is shared by several stores, but not by models, and expires', async () => {
    const records = testRecords(3, 1000, 600);
    const [a, b] = [await open(server.url, { ttlMs: 60_000 }), await open(server.url)];
    const other = await open(server.url, { model: 'cd'.repeat(32) });
    await a.put(records);
    expect(await countIntact(b, records)).toBe(3);
    expect(await other.has(records)).toBe(0);
    const key = `kvasir:1:${model.slice(0, 16)}:l${Buffer.from(records[0].key).toString('hex')}:0`;
    expect(Number(await server.command('pttl', key))).toBeGreaterThan(10_000);
    for (const store of [a, b, other]) await store.close();
  });

  it('takes its options from the text of a tier', async () => {
    const [record] = testRecords(1, 1000, 650);
    const chain = await openTiers(`redis=${server.url}?ttl=20s&timeout=5s`, { model });
    chain.put([record], '');
    await chain.close();
    const key = `kvasir:1:${model.slice(0, 16)}:l${Buffer.from(record.key).toString('hex')}:0`;
    const left = Number(await server.command('pttl', key));
    expect(left).toBeGreaterThan(10_000);
    expect(left).toBeLessThanOrEqual(20_000);
    const tier = { type: 'redis', urls: [server.url], cluster: false } as const;
    await expect(openTiers([{ ...tier, timeoutMs: 0 }], { model })).rejects.toThrow(/timeoutMs of a tier must be/);
  });

  it('misses what was overwritten with something else', async () => {
    const store = await open(server.url);
    const records = testRecords(3, 1000, 700);
    await store.put(records);
    const key = `kvasir:1:${model.slice(0, 16)}:l${Buffer.from(records[1].key).toString('hex')}:0`;
    for (const damage of [
      ['setrange', key, '500', 'xyz'],
      ['set', key, 'nonsense'],
      ['set', key, ''],
    ]) {
      await server.command(...damage);
      expect(await countIntact(store, records)).toBe(1);
    }
    expect(store.stats.damaged).toBe(3);
    // Not even a string: the command fails.
    await server.command('del', key);
    await server.command('lpush', key, 'x');
    expect(await countIntact(store, records)).toBeLessThanOrEqual(1);
    expect(store.stats.errors).toBe(4);
    await store.close();
  });

  it('loses records to eviction, and nothing else', async () => {
    const small = await startRedis('--maxmemory', '6mb', '--maxmemory-policy', 'allkeys-lru');
    const store = await open(small.url);
    for (let i = 0; i < 20; i++) await store.put(testRecords(5, 200_000, 5 * i));
    let found = 0;
    for (let i = 0; i < 100; i++) found += await countIntact(store, [testRecord(i, 200_000)]);
    expect(found).toBeGreaterThan(0);
    expect(found).toBeLessThan(40);
    expect(store.stats.errors).toBe(0);
    await store.close();
    await small.stop();
  });

  it('goes on without a server that is down, and with one that is back', async () => {
    const one = await startRedis();
    const store = await open(one.url, { timeoutMs: 1000 });
    const records = testRecords(4);
    await store.put(records);
    one.process.kill('SIGSTOP');
    const start = performance.now();
    for (let i = 0; i < 20; i++) expect(await countIntact(store, records)).toBe(0);
    // Three time-outs, then the circuit breaker.
    expect(performance.now() - start).toBeLessThan(8000);
    expect(store.stats.errors).toBeGreaterThan(0);
    one.process.kill('SIGCONT');
    await expect.poll(() => countIntact(store, records), { timeout: 20_000, interval: 100 }).toBe(4);
    await one.stop();
    await store.put(records);
    expect(await store.has(records)).toBe(0);
    expect(await countIntact(store, records)).toBe(0);
    expect(await store.delete(records)).toBe(false);
    expect(store.stats.lastError).toMatch(/^Redis does not answer/);
    await store.close();
  });
});

describe('the redis store without a server', () => {
  it('opens, misses and closes', async () => {
    const store = await open('redis://127.0.0.1:1', { timeoutMs: 500 });
    await store.put(testRecords(2));
    expect(await countIntact(store, testRecords(2))).toBe(0);
    expect(store.stats.errors).toBeGreaterThan(0);
    await store.close();
  });

  it.each([false, true])('leaves no socket open when it cannot connect in time, in a cluster: %s', async cluster => {
    const sockets = new Set<Socket>();
    let connections = 0;
    // Accepts connections, and never answers.
    const server = createServer(socket => {
      connections++;
      sockets.add(socket);
      socket.on('error', () => {});
      socket.on('close', () => sockets.delete(socket));
      socket.resume();
    });
    await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve));
    const { port } = server.address() as { port: number };
    const stores = await Promise.all(
      Array.from({ length: 6 }, () => open(`redis://127.0.0.1:${port}`, { timeoutMs: 1000, cluster })),
    );
    expect(connections).toBeGreaterThanOrEqual(6);
    // A cluster's close themselves after 15 time-outs.
    await expect.poll(() => sockets.size, { timeout: 45_000 }).toBe(0);
    for (const store of stores) await store.close();
    server.close();
  });

  // Side by side, because they wait for time-outs.
  it.concurrent.each(['garbage\r\n', '+OK\r\n', '$5\r\nwrong\r\n', '*1000000\r\n', '-ERR no\r\n', ''])(
    'misses when the server answers %j',
    async answer => {
      const sockets = new Set<Socket>();
      const server = createServer(socket => {
        sockets.add(socket);
        socket.on('error', () => {});
        socket.on('data', () => socket.write(answer.repeat(50)));
      });
      await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve));
      const { port } = server.address() as { port: number };
      const store = await open(`redis://127.0.0.1:${port}`, { timeoutMs: 300 });
      await store.put(testRecords(2));
      expect(await countIntact(store, testRecords(2))).toBe(0);
      expect(await store.has(testRecords(2))).toBe(0);
      await store.close();
      for (const socket of sockets) socket.destroy();
      server.close();
    },
  );
});

describeWithRedis('the redis store with passwords and TLS', () => {
  const folder = mkdtempSync(join(tmpdir(), 'kvasir-redis-tls-'));
  let nodes: RedisServer[] = [];
  let single: RedisServer;
  let tls: { ca: string };
  let ca = '';
  beforeAll(async () => {
    const certificate = await createCertificate(folder);
    tls = { ca: readFileSync(certificate.certificate, 'utf8') };
    ca = certificate.certificate;
    nodes = await startCluster(3, { password: 'mead/of:poetry@9 %C3', certificate });
    single = await startSecureRedis({ password: 'mead/of:poetry@9 %C3', certificate });
  }, 120_000);
  afterAll(async () => {
    for (const node of [single, ...nodes]) await node?.stop();
    rmSync(folder, { recursive: true });
  });

  it('asks every node of a cluster as its url says', async () => {
    const [{ url }] = nodes;
    const store = await open('', { urls: [url], cluster: true, tls });
    const records = testRecords(30, 1000);
    await store.put(records);
    expect(await countIntact(store, records)).toBe(30);
    const counts = await Promise.all(nodes.map(async ({ command }) => Number(await command('dbsize'))));
    expect(Math.min(...counts)).toBeGreaterThan(2);
    expect(store.stats.errors).toBe(0);
    await store.close();
  });

  it('asks a single server, with the certificate of an object or of a file that a text names', async () => {
    const [record] = testRecords(1, 1000);
    const store = await open(single.url, { tls });
    await store.put([record]);
    expect(await store.has([record])).toBe(1);
    expect(store.stats.errors).toBe(0);
    await store.close();
    const chain = await openTiers(`redis=${single.url}?ca=${ca}&timeout=5s`, { model });
    expect(chain.stats.map(({ errors }) => errors)).toEqual([0]);
    await chain.close();
    expect(await single.command('dbsize')).toBe('1');
    await expect(openTiers(`redis=${single.url}?ca=/no/such.pem`, { model })).rejects.toThrow(
      /^\/no\/such\.pem cannot be/,
    );
  });

  it('does not take TLS options with a url without TLS', async () => {
    for (const tier of [
      { urls: ['redis://:secret@127.0.0.1:1'], cluster: false, tls },
      { urls: ['rediss://127.0.0.1:1', 'redis://:secret@127.0.0.1:2'], cluster: true, tlsFiles: { ca } },
    ]) {
      const opened = openTiers([{ type: 'redis', ...tier }], { model });
      await expect(opened).rejects.toThrow(/has a url without TLS\. Write rediss:\/\/host:6379\.$/);
    }
  });

  it('tells nobody the password', async () => {
    const url = new URL(nodes[0].url);
    url.password = 'a%2Fwrong one';
    const errors: Error[] = [];
    const store = await open(url.href, { tls, onError: error => errors.push(error) });
    expect(store.stats.lastError).toMatch(/WRONGPASS|invalid/);
    await store.close();
    for (const error of errors) expect(`${error.message} ${error.stack} ${error.cause}`).not.toMatch(/wrong/);
    const urls = [url.href];
    expect(withoutSecrets(`No ${url.href} or ${decodeURIComponent(url.password)}.`, urls)).toBe('No ... or ....');
    const invalid = openTiers([{ type: 'redis', urls: ['http://:secret@host'], cluster: false }], { model });
    await expect(invalid).rejects.toThrow(/^The url of a redis tier is not valid/);
  });

  it('does not trust a certificate that nobody has signed, and says why it stores nothing', async () => {
    for (const cluster of [true, false]) {
      const store = await open(nodes[0].url, { cluster, timeoutMs: 2000 });
      await store.put(testRecords(1));
      expect(await store.has(testRecords(1))).toBe(0);
      expect(store.stats.errors).toBeGreaterThan(0);
      expect(store.stats.lastError).toMatch(/certificate/);
      await store.close();
    }
  });
});

describeWithRedis('the redis store in a cluster', () => {
  let nodes: RedisServer[] = [];
  beforeAll(async () => {
    nodes = await startCluster();
  }, 120_000);
  afterAll(async () => {
    for (const node of nodes) await node.stop();
  });

  it('runs on three nodes, and goes on when one of them is killed', async () => {
    const options = { urls: nodes.map(({ url }) => url), cluster: true };
    const store = await open('', options);
    const records = testRecords(60, 1000);
    await store.put(records);
    expect(await countIntact(store, records)).toBe(60);
    const counts = await Promise.all(nodes.map(async ({ command }) => Number(await command('dbsize'))));
    expect(Math.min(...counts)).toBeGreaterThan(5);
    await nodes[1].stop();
    const countEach = async () => {
      let found = 0;
      for (const record of records) found += await countIntact(store, [record]);
      return found;
    };
    // What the others hold is found again; the rest is a miss.
    await expect.poll(countEach, { timeout: 40_000, interval: 500 }).toBe(60 - counts[1]);
    expect(store.stats.errors).toBeGreaterThan(0);
    await store.close();
  });
});
