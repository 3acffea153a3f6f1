/** The files in deploy/: checked by the programs that read them, and against the server. */
import { execFileSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { get } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { afterAll, describe, expect, it } from 'vitest';
import { parse, parseAllDocuments } from 'yaml';
import { kvasir, outputOf } from '../support/command.ts';
import { ALL_CASES, itAll } from '../support/matrix.ts';
import { mimir } from '../support/mimir.ts';
import { freePort, type ServerProcess, startListener, startServer } from '../support/serve.ts';

const root = fileURLToPath(new URL('../..', import.meta.url));
const read = (name: string) => readFileSync(join(root, 'deploy', name), 'utf8');
const folder = mkdtempSync(join(tmpdir(), 'kvasir-deploy-'));
afterAll(() => rmSync(folder, { recursive: true }));

// biome-ignore lint/suspicious/noExplicitAny: YAML of any shape; each test checks what it reads.
type Yaml = any;

interface Balancer {
  name: 'nginx' | 'haproxy';
  file: string;
  path: string;
  /** Where it listens, in the file. */
  listen: string;
  check: (file: string) => string[];
  run: (file: string) => string[];
}

const pid = `pid ${join(folder, 'nginx.pid')};`;
const balancers: Balancer[] = [
  {
    name: 'nginx',
    file: 'nginx.conf',
    path: '/usr/sbin/nginx',
    listen: 'listen 8080',
    check: file => ['-t', '-q', '-c', file, '-g', pid],
    run: file => ['-c', file, '-g', `${pid} daemon off;`],
  },
  {
    name: 'haproxy',
    file: 'haproxy.cfg',
    path: '/usr/sbin/haproxy',
    listen: 'bind :8080',
    check: file => ['-c', '-q', '-f', file],
    run: file => ['-db', '-f', file],
  },
];

/** The file with other addresses: those in it are names of containers, which only compose resolves. */
function withAddresses({ file, listen }: Balancer, port: number, servers: readonly number[]): string {
  const text = read(file);
  const moved = [
    [listen, listen.replace(/:?8080/, `127.0.0.1:${port}`)],
    ...servers.map((server, i) => [`kvasir-${i + 1}:8000`, `127.0.0.1:${server}`]),
  ].reduce((changed, [from, to]) => {
    expect(changed).toContain(from);
    return changed.replaceAll(from, to);
  }, text);
  const path = join(folder, file);
  writeFileSync(path, moved);
  return path;
}

for (const balancer of balancers) {
  const missing = existsSync(balancer.path) ? undefined : `no ${balancer.path}`;
  if (missing && process.env.CI) throw new Error(`CI must test deploy/${balancer.file}. Install ${balancer.name}.`);
  const title = `deploy/${balancer.file}`;

  describe.skipIf(missing)(missing ? `${title} (skipped: ${missing})` : title, () => {
    it(`is accepted by ${balancer.name}`, async () => {
      const file = withAddresses(balancer, await freePort(), [await freePort(), await freePort()]);
      expect(execFileSync(balancer.path, balancer.check(file), { encoding: 'utf8', stdio: 'pipe' })).toBe('');
    });

    describe.skipIf(!ALL_CASES)('before two servers', () => {
      it('sends conversations back to their server, and loses none that had not begun when a server dies', async () => {
        await using cluster = await startCluster(balancer);
        await expectSticky(
          cluster,
          i => ({ 'x-session-id': `session ${i}` }),
          () => 'Tell me a story.',
        );
        await expectSticky(
          cluster,
          () => ({}),
          i => `Tell me story ${i}.`,
        );
        await expectNoLoss(cluster);
      }, 300_000);
    });
  });
}

interface Cluster {
  ask(messages: readonly Message[], headers?: Record<string, string>, maxTokens?: number): Promise<Reply>;
  servers: readonly ServerProcess[];
  [Symbol.asyncDispose](): Promise<void>;
}

interface Message {
  role: string;
  content: string;
}

interface Reply {
  status: number;
  /** The name that the server was started with. */
  server: string;
  text: string;
  cachedTokens: number;
}

/** Two servers that call the same model by different names, behind the real load balancer. */
async function startCluster(balancer: Balancer): Promise<Cluster> {
  const names = ['kvasir-1', 'kvasir-2'];
  const servers = await Promise.all(names.map(name => startServer(mimir, '--served-name', name, '--context', '2k')));
  const port = await freePort();
  const ports = servers.map(server => server.port);
  const stop = await startListener(port, balancer.path, ...balancer.run(withAddresses(balancer, port, ports)));
  return {
    servers,
    async ask(messages, headers = {}, maxTokens = 8) {
      const response = await fetch(`http://127.0.0.1:${port}/v1/chat/completions`, {
        method: 'POST',
        headers: { 'content-type': 'application/json', ...headers },
        body: JSON.stringify({ messages, max_tokens: maxTokens, temperature: 0, ignore_eos: true }),
      });
      if (!response.ok) return { status: response.status, server: '', text: await response.text(), cachedTokens: 0 };
      const { model, choices, usage } = (await response.json()) as Yaml;
      const { cached_tokens } = usage.prompt_tokens_details;
      return { status: 200, server: model, text: choices[0].message.content, cachedTokens: cached_tokens };
    },
    async [Symbol.asyncDispose]() {
      await Promise.all([stop(), ...servers.map(server => server.kill())]);
    },
  };
}

/** The same in all conversations, and longer than a page of the cache. */
const system = { role: 'system', content: 'You tell long stories about old gods and what they drank. '.repeat(20) };

async function expectSticky(
  { ask }: Cluster,
  headersOf: (i: number) => Record<string, string>,
  questionOf: (i: number) => string,
): Promise<void> {
  const chosen = await Promise.all(
    Array.from({ length: 12 }, async (_, i) => {
      const messages: Message[] = [system, { role: 'user', content: questionOf(i) }];
      const replies: Reply[] = [];
      for (let turn = 0; turn < 3; turn++) {
        const reply = await ask(messages, headersOf(i));
        replies.push(reply);
        messages.push({ role: 'assistant', content: reply.text }, { role: 'user', content: `And then? (${turn})` });
      }
      expect(replies.map(({ status }) => status)).toEqual([200, 200, 200]);
      expect(new Set(replies.map(({ server }) => server)).size).toBe(1);
      for (const { cachedTokens } of replies.slice(1)) expect(cachedTokens).toBeGreaterThan(0);
      return replies[0].server;
    }),
  );
  expect(new Set(chosen).size).toBe(2);
}

async function expectNoLoss({ ask, servers }: Cluster): Promise<void> {
  const replies = Array.from({ length: 16 }, (_, i) =>
    ask([system, { role: 'user', content: `Tell me story ${i}.` }], {}, 200),
  );
  // Dies while it computes answers, none of which has begun to be sent.
  while ((await metricsOf(servers[0])).get('vllm:num_requests_running') === 0) await delay(5);
  await servers[0].kill();
  const after = Array.from({ length: 8 }, (_, i) => ask([system, { role: 'user', content: `Tell me more ${i}.` }]));
  for (const reply of await Promise.all([...replies, ...after])) expect(reply).toMatchObject({ status: 200 });
  expect(new Set((await Promise.all(after)).map(({ server }) => server))).toEqual(new Set(['kvasir-2']));
}

/** Values by name, with labels summed. */
async function metricsOf({ url }: { url: string }, headers: Record<string, string> = {}): Promise<Map<string, number>> {
  const text = await (await fetch(`${url}/metrics`, { headers })).text();
  const values = new Map<string, number>();
  for (const [, name] of text.matchAll(/^# TYPE (\S+)/gm)) values.set(name, 0);
  for (const [, name, value] of text.matchAll(/^([\w:]+)(?:\{.*\})? (\S+)$/gm))
    values.set(name, (values.get(name) ?? 0) + Number(value));
  return values;
}

const compose: Yaml = parse(read('compose.yaml'), { merge: true });
const manifest: Yaml[] = parseAllDocuments(read('kubernetes.yaml')).map(document => {
  expect(document.errors).toEqual([]);
  return document.toJS();
});
const find = (kind: string, name: string) =>
  manifest.find(object => object.kind === kind && object.metadata.name === name) ?? expect.fail(`no ${kind} ${name}`);
const pod = find('Deployment', 'kvasir').spec.template;
const [container] = pod.spec.containers;

describe('environment variables', async () => {
  const { stdout } = await kvasir(['serve', '--help']);
  const known = new Set([...stdout.matchAll(/env:\s+(\w+)/g)].map(([, name]) => name));
  const elsewhere = ['KVASIR_CACHE'];
  const used = (text: string) => [...text.matchAll(/\b(KVASIR_\w+)/g)].map(([, name]) => name);

  it.each(['Containerfile', 'compose.yaml', 'kubernetes.yaml'])('of deploy/%s exist', name => {
    expect(used(read(name)).length).toBeGreaterThan(0);
    expect(used(read(name)).filter(variable => !known.has(variable) && !elsewhere.includes(variable))).toEqual([]);
  });
});

describe('with a server', async () => {
  const apiKey = 'a key for a test'.replaceAll(' ', '-');
  const operatorPort = await freePort();
  const server = await startServer(
    mimir,
    ...['--api-key', `${apiKey},another-${apiKey}`, '--operator-port', String(operatorPort)],
    ...['--allowed-hosts', compose.services['kvasir-1'].environment.KVASIR_ALLOWED_HOSTS],
  );
  const operatorUrl = `http://127.0.0.1:${operatorPort}`;
  afterAll(() => server.kill());

  it('the dashboard shows only metrics that the server has', async () => {
    const known = await metricsOf({ url: operatorUrl });
    const dashboard = JSON.parse(read('grafana/dashboard.json'));
    const shown = dashboard.panels.flatMap((panel: Yaml) => panel.targets.map(({ expr }: Yaml) => expr)).join('\n');
    const names = [...shown.matchAll(/\b(?:vllm:|kvasir_)\w+/g)].map(([name]) => name.replace(/_bucket$/, ''));
    expect(new Set(names).size).toBeGreaterThan(12);
    expect(names.filter(name => !known.has(name))).toEqual([]);
  });

  it('the autoscaler follows a metric that the server has', async () => {
    const known = await metricsOf({ url: operatorUrl });
    const [, followed] = read('kubernetes.yaml').match(/__name__="(\S+?)"/) ?? [];
    expect(known.has(followed)).toBe(true);
    const [, renamed] = read('kubernetes.yaml').match(/name: \{ as: (\w+) \}/) ?? [];
    expect(find('HorizontalPodAutoscaler', 'kvasir').spec.metrics[0].pods.metric.name).toBe(renamed);
  });

  it("the image's health check succeeds, and fails without a server", () => {
    const [command, ...args]: string[] = JSON.parse(
      read('Containerfile').match(/^\s*CMD (\["node", "-e".*)$/m)?.[1] ?? '[]',
    );
    expect(command).toBe('node');
    const check = (port: number) =>
      execFileSync(process.execPath, args, { env: { ...process.env, KVASIR_PORT: String(port) }, stdio: 'pipe' });
    check(server.port);
    expect(() => check(1)).toThrow();
  });

  it('probes, HAProxy and Prometheus need no key, so that keys can change', async () => {
    const status = async (url: string, host?: string) =>
      new Promise<number | undefined>((resolve, reject) => {
        get(url, { headers: host ? { host } : {} }, response => resolve(response.resume().statusCode)).on(
          'error',
          reject,
        );
      });
    for (const { httpGet } of [container.livenessProbe, container.readinessProbe]) {
      expect(httpGet.port).toBe('operator');
      // The kubelet asks by the address of the pod.
      expect(await status(operatorUrl + httpGet.path)).toBe(200);
    }
    const [, checked] = read('haproxy.cfg').match(/http-check send meth GET uri (\S+)$/m) ?? [];
    expect(await status(server.url + checked)).toBe(200);
    const [scraped] = parse(read('prometheus.yaml')).scrape_configs;
    expect(scraped.authorization).toBeUndefined();
    expect(await status(`${operatorUrl}/metrics`, scraped.static_configs[0].targets[0])).toBe(200);
    expect(await status(`${operatorUrl}/metrics`, 'evil.example')).toBe(403);
    expect(pod.metadata.annotations['prometheus.io/port']).toBe(portOf('KVASIR_OPERATOR_PORT'));
    expect(container.ports.find(({ name }: Yaml) => name === 'operator').containerPort).toBe(
      Number(portOf('KVASIR_OPERATOR_PORT')),
    );
  });
});

/** The value of a variable of the container. */
const portOf = (variable: string): string => container.env.find(({ name }: Yaml) => name === variable).value;

describe('deploy/compose.yaml', () => {
  it('mounts files that exist', () => {
    const mounts = Object.values<Yaml>(compose.services).flatMap(({ volumes = [] }) => volumes);
    const files = mounts.filter((mount: string) => mount.startsWith('./')).map((mount: string) => mount.split(':')[0]);
    expect(files.length).toBeGreaterThan(4);
    expect(files.filter((file: string) => !existsSync(join(root, 'deploy', file)))).toEqual([]);
    const volumes = mounts
      .filter((mount: string) => !mount.startsWith('.'))
      .map((mount: string) => mount.split(':')[0]);
    expect(Object.keys(compose.volumes)).toEqual(expect.arrayContaining(volumes));
  });

  it('has the servers that the load balancers and Prometheus name, and builds the image', () => {
    const servers = Object.keys(compose.services).filter(name => name.startsWith('kvasir-'));
    const named = (text: string) => new Set(text.match(/kvasir-\d+:\d+/g));
    for (const { file } of balancers) expect(named(read(file))).toEqual(new Set(servers.map(name => `${name}:8000`)));
    const { KVASIR_OPERATOR_PORT: port, KVASIR_ALLOWED_HOSTS: hosts } = compose.services[servers[0]].environment;
    const { targets } = parse(read('prometheus.yaml')).scrape_configs[0].static_configs[0];
    expect(targets).toEqual(servers.map(name => `${name}:${port}`));
    expect(hosts.split(',')).toEqual(servers);
    const { context, dockerfile } = compose.services[servers[0]].build;
    expect(existsSync(join(root, 'deploy', context, dockerfile))).toBe(true);
  });
});

it('the image is built from files that exist', () => {
  const needed = [...read('Containerfile.dockerignore').matchAll(/^!(.+)$/gm)].map(([, path]) => path);
  expect(needed.filter(path => !existsSync(join(root, path)))).toEqual([]);
  const { files } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
  const packed = files.filter((path: string) => !/dist|^!/.test(path));
  expect(needed).toEqual(expect.arrayContaining(packed));
});

describe('deploy/kubernetes.yaml', () => {
  it('keeps the variables that Kubernetes makes of a Service apart from those of kvasir', () => {
    const services = manifest.filter(({ kind }: Yaml) => kind === 'Service').map(({ metadata }: Yaml) => metadata.name);
    expect(services).toContain('kvasir');
    expect(pod.spec.enableServiceLinks).toBe(false);
  });

  it('has only fields that Kubernetes knows, of the right types', () => {
    const objects = manifest.map((object, i) => {
      const module = object.apiVersion.includes('/') ? object.apiVersion : `core/${object.apiVersion}`;
      return `const object${i}: import('kubernetes-types/${module}').${object.kind} = ${JSON.stringify(object)};`;
    });
    const types = join(root, 'node_modules/kubernetes-types/*');
    const compilerOptions = {
      strict: true,
      noEmit: true,
      module: 'nodenext',
      types: [],
      paths: { 'kubernetes-types/*': [types] },
    };
    // The check itself must find a wrong name.
    const wrong = objects.map(line => line.replace('"minReplicas"', '"minimumReplicas"')).at(-1);
    const lines = [...objects, '// @ts-expect-error', wrong?.replace(/const \w+/, 'const wrong'), 'export {};'];
    writeFileSync(join(folder, 'manifest.ts'), lines.join('\n'));
    writeFileSync(join(folder, 'tsconfig.json'), JSON.stringify({ compilerOptions, files: ['manifest.ts'] }));
    const tsc = join(root, 'node_modules/typescript/bin/tsc');
    expect(outputOf(() => execFileSync(process.execPath, [tsc, '-p', folder], { encoding: 'utf8' }))).toBe('');
  });

  it('selects its pods, by the port that they have', () => {
    const { labels } = pod.metadata;
    const { matchLabels } = find('Deployment', 'kvasir').spec.selector;
    expect(labels).toMatchObject(matchLabels);
    expect(find('PodDisruptionBudget', 'kvasir').spec.selector.matchLabels).toEqual(matchLabels);
    const ports = container.ports.map(({ name }: Yaml) => name);
    for (const service of manifest.filter(({ kind }) => kind === 'Service')) {
      expect(labels).toMatchObject(service.spec.selector);
      for (const { targetPort } of service.spec.ports) expect(ports).toContain(targetPort);
    }
    for (const probe of [container.livenessProbe, container.readinessProbe])
      expect(ports).toContain(probe.httpGet.port);
    // Operators' routes have no key: they are reached by the address of a pod, and by no Service.
    for (const service of manifest.filter(({ kind }) => kind === 'Service'))
      expect(service.spec.ports.map(({ targetPort }: Yaml) => targetPort)).toEqual(['http']);
  });

  it('mounts volumes that it has, and scales the deployment', () => {
    const volumes = pod.spec.volumes.map(({ name }: Yaml) => name);
    for (const { name } of container.volumeMounts) expect(volumes).toContain(name);
    find('PersistentVolumeClaim', pod.spec.volumes[0].persistentVolumeClaim.claimName);
    const { kind, name } = find('HorizontalPodAutoscaler', 'kvasir').spec.scaleTargetRef;
    find(kind, name);
  });
});

itAll('docs/deploy.md has the table that scripts/sizing-table.mjs prints', () => {
  const table = execFileSync(process.execPath, ['scripts/sizing-table.mjs'], { cwd: root, encoding: 'utf8' });
  expect(readFileSync(join(root, 'docs/deploy.md'), 'utf8')).toContain(table);
});
