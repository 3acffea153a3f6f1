/** A local hub for tests: the API, HEAD headers, redirects to a storage server on another port, and injected faults. */
import { createHash } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

export const commit = 'c0ffee'.repeat(7).slice(0, 40);
export const repo = 'acme/tiny-GGUF';
/** A connection is cut so much later: fetch discards what has arrived but was not read yet. */
export const CUT_MS = 300;

export interface FakeFile {
  bytes: Buffer;
  /** What the hub declares, if it differs from the real value. */
  sha256?: string;
  size?: number;
  /** A small file outside LFS: served by the hub itself and identified by its git sha1. */
  outsideLfs?: boolean;
}

interface SeenRequest {
  host: 'hub' | 'store';
  method: string;
  path: string;
  range?: string;
  authorization?: string;
}

type Handler = (request: IncomingMessage, response: ServerResponse) => void;

export interface FakeHub {
  endpoint: string;
  files: Record<string, FakeFile>;
  /** The files of further repositories; all others have `files`. */
  repos: Record<string, Record<string, FakeFile>>;
  sha: string;
  requests: SeenRequest[];
  /** Body bytes sent by the storage server. */
  servedBytes: number;
  /** The next responses of the storage server, one per GET; after them it behaves normally. */
  storeFaults: Handler[];
  /** The next responses of the hub, to any request. */
  hubFaults: Handler[];
  /** Whether the storage server supports the Range header. */
  supportsRanges: boolean;
  /** Bytes after which the storage server closes the n-th GET. */
  disconnectAfter: number[];
  /** Bytes after which the storage server stops sending, for every GET. */
  hangAfter: number;
  /** Environment variables with a temporary cache folder. */
  env: { HF_HOME: string; HF_ENDPOINT: string; HF_TOKEN?: string };
  close(): Promise<void>;
}

export const sha256 = (bytes: Buffer): string => createHash('sha256').update(bytes).digest('hex');
export const gitSha1 = (bytes: Buffer): string =>
  createHash('sha1').update(`blob ${bytes.length}\0`).update(bytes).digest('hex');

export const respondWith =
  (code: number, headers: Record<string, string> = {}): Handler =>
  (_, response) =>
    response.writeHead(code, headers).end();

/** Bytes without repetition, so that a wrong offset is detected. */
export function pseudoRandomBytes(size: number, seed = 1): Buffer {
  const words = new Uint32Array(Math.ceil(size / 4));
  for (let i = 0, x = seed; i < words.length; i++) words[i] = x = (Math.imul(x, 1664525) + 1013904223 + i) >>> 0;
  return Buffer.from(words.buffer, 0, size);
}

export async function fakeHub(files: Record<string, FakeFile>): Promise<FakeHub> {
  const home = await mkdtemp(join(tmpdir(), 'kvasir-hub-'));
  const store = createServer((request, response) => {
    recordRequest(hub, 'store', request);
    const fault = hub.storeFaults.shift();
    if (fault) return fault(request, response);
    return serveBytes(hub, filesOf(hub, request)[fileOf(request)], request, response);
  });
  const front = createServer((request, response) => {
    recordRequest(hub, 'hub', request);
    const fault = hub.hubFaults.shift();
    if (fault) return fault(request, response);
    if (request.url?.startsWith('/api/models/')) return serveList(hub, request, response);
    const file = filesOf(hub, request)[fileOf(request)];
    if (!file) return respondWith(404, { 'x-error-code': 'EntryNotFound' })(request, response);
    response.setHeader('x-repo-commit', hub.sha);
    if (file.outsideLfs) {
      response.setHeader('etag', `"${gitSha1(file.bytes)}"`);
      return serveBytes(hub, file, request, response);
    }
    response.writeHead(302, {
      location: `${storeUrl}/${repoOf(request)}/store/${commit}/${fileOf(request)}`,
      'x-linked-etag': `"${file.sha256 ?? sha256(file.bytes)}"`,
      'x-linked-size': String(file.size ?? file.bytes.length),
      etag: '"of-the-redirect"',
    });
    return response.end();
  });
  const [endpoint, storeUrl] = await Promise.all([front, store].map(listen));
  const hub: FakeHub = {
    endpoint,
    files,
    repos: {},
    sha: commit,
    requests: [],
    servedBytes: 0,
    storeFaults: [],
    hubFaults: [],
    supportsRanges: true,
    disconnectAfter: [],
    hangAfter: Number.POSITIVE_INFINITY,
    env: { HF_HOME: home, HF_ENDPOINT: endpoint },
    async close() {
      for (const server of [front, store]) {
        server.closeAllConnections();
        server.close();
      }
      await rm(home, { recursive: true, force: true });
    },
  };
  return hub;
}

const listen = (server: ReturnType<typeof createServer>) =>
  new Promise<string>(done =>
    server.listen(0, '127.0.0.1', () => done(`http://127.0.0.1:${(server.address() as AddressInfo).port}`)),
  );

const repoOf = ({ url = '' }: IncomingMessage) =>
  /^\/(?:api\/models\/)?([^/]+\/[^/]+)\/(?:revision|resolve|store)\//.exec(url)?.[1] ?? '';

const filesOf = (hub: FakeHub, request: IncomingMessage) => hub.repos[repoOf(request)] ?? hub.files;

/** The path after `/org/repo/resolve/<revision>/` or `/org/repo/store/<revision>/`. */
const fileOf = ({ url = '' }: IncomingMessage) =>
  decodeURIComponent(/\/(?:resolve|store)\/[^/]+\/(.+)/.exec(url)?.[1] ?? '');

function recordRequest(hub: FakeHub, host: SeenRequest['host'], { method = '', url = '', headers }: IncomingMessage) {
  hub.requests.push({ host, method, path: url, range: headers.range, authorization: headers.authorization });
}

function serveList(hub: FakeHub, request: IncomingMessage, response: ServerResponse) {
  const siblings = Object.entries(filesOf(hub, request)).map(([rfilename, { bytes, outsideLfs, ...lie }]) => {
    const size = lie.size ?? bytes.length;
    return outsideLfs ? { rfilename, size } : { rfilename, size, lfs: { sha256: lie.sha256 ?? sha256(bytes), size } };
  });
  response.end(
    JSON.stringify({ id: repo, sha: hub.sha, siblings: [{ rfilename: 'README.md', size: 9 }, ...siblings] }),
  );
}

function serveBytes(hub: FakeHub, { bytes }: FakeFile, request: IncomingMessage, response: ServerResponse) {
  const range = hub.supportsRanges ? /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? '') : null;
  const from = Number(range?.[1] ?? 0);
  if (from >= bytes.length) return respondWith(416, { 'content-range': `bytes */${bytes.length}` })(request, response);
  const end = range?.[2] ? Math.min(bytes.length, Number(range[2]) + 1) : bytes.length;
  response.setHeader('content-length', end - from);
  if (range) response.setHeader('content-range', `bytes ${from}-${end - 1}/${bytes.length}`);
  response.statusCode = range ? 206 : 200;
  if (request.method === 'HEAD') return response.end();
  const disconnectAt = hub.disconnectAfter.shift() ?? Number.POSITIVE_INFINITY;
  const part = bytes.subarray(from, Math.min(end, from + Math.min(disconnectAt, hub.hangAfter)));
  hub.servedBytes += part.length;
  if (part.length === end - from) return response.end(part);
  return response.write(part, () => {
    if (disconnectAt <= hub.hangAfter) setTimeout(() => response.destroy(), CUT_MS);
  });
}
