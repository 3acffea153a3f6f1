/** A hub on this machine for the tests: its API, its HEAD headers, its redirect to a store on another port, its faults. */
import { createHash } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

export const commit = 'c0ffee'.repeat(7).slice(0, 40);
export const repo = 'acme/tiny-GGUF';

export interface FakeFile {
  bytes: Buffer;
  /** What the hub claims, where that is not the truth. */
  sha256?: string;
  size?: number;
  /** A small file outside large file storage: served by the hub itself, named by git's sha1. */
  plain?: boolean;
}

interface Seen {
  host: 'hub' | 'store';
  method: string;
  path: string;
  range?: string;
  authorization?: string;
}

type Answer = (request: IncomingMessage, response: ServerResponse) => void;

export interface FakeHub {
  endpoint: string;
  files: Record<string, FakeFile>;
  sha: string;
  seen: Seen[];
  /** Body bytes that left the store. */
  served: number;
  /** Next answers of the store, one a GET; after them it behaves. */
  storeFaults: Answer[];
  /** Next answers of the hub, to any request. */
  hubFaults: Answer[];
  /** Whether the store heeds Range. */
  ranges: boolean;
  /** The n-th GET of the store breaks off after so many bytes; Infinity does not. */
  breakAfter: number[];
  /** Every GET of the store goes silent after so many bytes. */
  hangAfter: number;
  /** An environment whose cache lies in a folder of its own. */
  env: { HF_HOME: string; HF_ENDPOINT: string; HF_TOKEN?: string };
  close(): Promise<void>;
}

export const sha256 = (bytes: Buffer): string => createHash('sha256').update(bytes).digest('hex');
export const gitSha1 = (bytes: Buffer): string =>
  createHash('sha1').update(`blob ${bytes.length}\0`).update(bytes).digest('hex');

export const status =
  (code: number, headers: Record<string, string> = {}): Answer =>
  (_, response) =>
    response.writeHead(code, headers).end();

/** Bytes that repeat nowhere, so that a wrong offset cannot go unnoticed. */
export function someBytes(size: number, seed = 1): Buffer {
  const words = new Uint32Array(Math.ceil(size / 4));
  for (let i = 0, x = seed; i < words.length; i++) words[i] = x = (Math.imul(x, 1664525) + 1013904223 + i) >>> 0;
  return Buffer.from(words.buffer, 0, size);
}

export async function fakeHub(files: Record<string, FakeFile>): Promise<FakeHub> {
  const home = await mkdtemp(join(tmpdir(), 'kvasir-hub-'));
  const store = createServer((request, response) => {
    note(hub, 'store', request);
    const fault = hub.storeFaults.shift();
    if (fault) return fault(request, response);
    return serveBytes(hub, hub.files[fileOf(request)], request, response);
  });
  const front = createServer((request, response) => {
    note(hub, 'hub', request);
    const fault = hub.hubFaults.shift();
    if (fault) return fault(request, response);
    if (request.url?.startsWith('/api/models/')) return serveList(hub, response);
    const file = hub.files[fileOf(request)];
    if (!file) return status(404, { 'x-error-code': 'EntryNotFound' })(request, response);
    response.setHeader('x-repo-commit', hub.sha);
    if (file.plain) {
      response.setHeader('etag', `"${gitSha1(file.bytes)}"`);
      return serveBytes(hub, file, request, response);
    }
    response.writeHead(302, {
      location: `${storeUrl}/store/${commit}/${fileOf(request)}`,
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
    sha: commit,
    seen: [],
    served: 0,
    storeFaults: [],
    hubFaults: [],
    ranges: true,
    breakAfter: [],
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

/** The path after `/org/repo/resolve/<revision>/` or `/store/<revision>/`. */
const fileOf = ({ url = '' }: IncomingMessage) =>
  decodeURIComponent(/\/(?:resolve|store)\/[^/]+\/(.+)/.exec(url)?.[1] ?? '');

function note(hub: FakeHub, host: Seen['host'], { method = '', url = '', headers }: IncomingMessage) {
  hub.seen.push({ host, method, path: url, range: headers.range, authorization: headers.authorization });
}

function serveList(hub: FakeHub, response: ServerResponse) {
  const siblings = Object.entries(hub.files).map(([rfilename, { bytes, plain, ...lie }]) => {
    const size = lie.size ?? bytes.length;
    return plain ? { rfilename, size } : { rfilename, size, lfs: { sha256: lie.sha256 ?? sha256(bytes), size } };
  });
  response.end(
    JSON.stringify({ id: repo, sha: hub.sha, siblings: [{ rfilename: 'README.md', size: 9 }, ...siblings] }),
  );
}

function serveBytes(hub: FakeHub, { bytes }: FakeFile, request: IncomingMessage, response: ServerResponse) {
  const asked = hub.ranges ? /^bytes=(\d+)-$/.exec(request.headers.range ?? '') : null;
  const from = Number(asked?.[1] ?? 0);
  if (from >= bytes.length) return status(416, { 'content-range': `bytes */${bytes.length}` })(request, response);
  response.setHeader('content-length', bytes.length - from);
  if (asked) response.setHeader('content-range', `bytes ${from}-${bytes.length - 1}/${bytes.length}`);
  response.statusCode = asked ? 206 : 200;
  if (request.method === 'HEAD') return response.end();
  const breaks = hub.breakAfter.shift() ?? Number.POSITIVE_INFINITY;
  const part = bytes.subarray(from, from + Math.min(breaks, hub.hangAfter));
  hub.served += part.length;
  if (part.length === bytes.length - from) return response.end(part);
  return response.write(part, () => {
    if (breaks <= hub.hangAfter) setTimeout(() => response.destroy(), 20); // let the bytes out first
  });
}
