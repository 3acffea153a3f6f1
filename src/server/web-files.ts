/** The web app: its built files, held in memory, so that no path of a request reaches the file system. */
import { createHash } from 'node:crypto';
import { createReadStream, existsSync, readdirSync, readFileSync, statSync } from 'node:fs';
import { extname, join } from 'node:path';
import { Readable } from 'node:stream';
import { fileURLToPath } from 'node:url';
import { gzipSync } from 'node:zlib';

/** The app is built here; the small model of the package is next to it. Both paths hold in src/ and in dist/. */
const appFolder = fileURLToPath(new URL('../../dist/web/', import.meta.url));
const modelFolder = fileURLToPath(new URL('../../models/', import.meta.url));
const MODEL_FILES = ['mimir.gguf', 'mimir.kvprofile'];

const TYPES: Record<string, string> = {
  '.html': 'text/html; charset=utf-8',
  '.js': 'text/javascript; charset=utf-8',
  '.css': 'text/css; charset=utf-8',
  '.svg': 'image/svg+xml',
  '.png': 'image/png',
  '.wasm': 'application/wasm',
  '.webmanifest': 'application/manifest+json',
  '.txt': 'text/plain; charset=utf-8',
  '.woff2': 'font/woff2',
};
const BINARY = 'application/octet-stream';
const COMPRESSED = /text|svg|json|wasm/;

/** No scripts but the app's own; isolated, so that its WebAssembly may use threads. */
const SECURITY_HEADERS = {
  'content-security-policy': [
    "default-src 'self'",
    "script-src 'self' 'wasm-unsafe-eval'",
    "worker-src 'self' blob:",
    // Models may be loaded from other hosts.
    "connect-src 'self' https: blob: data:",
    "img-src 'self' data: blob:",
    "object-src 'none'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
  ].join('; '),
  'cross-origin-opener-policy': 'same-origin',
  'cross-origin-embedder-policy': 'require-corp',
  'cross-origin-resource-policy': 'same-origin',
  'referrer-policy': 'no-referrer',
  'x-content-type-options': 'nosniff',
};

/** Names of files under this folder contain a hash of their content. */
const HASHED_FOLDER = '/assets/';

export interface WebFiles {
  /** Answers GET and HEAD of a file of the app; undefined if there is no such file. */
  respond(request: Request): Response | undefined;
}

interface WebFile {
  headers: Record<string, string>;
  body: Uint8Array<ArrayBuffer>;
  gzip?: Uint8Array<ArrayBuffer>;
}

/** Reads the built app. Undefined if it has not been built. */
export function readWebFiles(folder = appFolder): WebFiles | undefined {
  if (!existsSync(join(folder, 'index.html'))) return undefined;
  const files = new Map<string, WebFile>();
  for (const name of readdirSync(folder, { recursive: true }).map(String)) {
    if (!statSync(join(folder, name)).isFile()) continue;
    const path = `/${name.replaceAll('\\', '/')}`;
    files.set(path === '/index.html' ? '/' : path, readWebFile(join(folder, name), path));
  }
  return {
    respond(request) {
      const { pathname } = new URL(request.url);
      const file = files.get(pathname);
      if (file) return fileResponse(file, request);
      const model = MODEL_FILES.find(name => pathname === `/models/${name}`);
      return model ? modelResponse(join(modelFolder, model), request) : undefined;
    },
  };
}

function readWebFile(path: string, url: string): WebFile {
  const body = new Uint8Array(readFileSync(path));
  const type = TYPES[extname(path)] ?? BINARY;
  return {
    body,
    ...(COMPRESSED.test(type) && { gzip: new Uint8Array(gzipSync(body)) }),
    headers: {
      ...SECURITY_HEADERS,
      'content-type': type,
      'cache-control': url.startsWith(HASHED_FOLDER) ? 'public, max-age=31536000, immutable' : 'no-cache',
      etag: `"${createHash('sha256').update(body).digest('base64url').slice(0, 22)}"`,
      vary: 'accept-encoding',
    },
  };
}

function fileResponse({ body, gzip, headers }: WebFile, request: Request): Response {
  if (request.headers.get('if-none-match')?.includes(headers.etag)) return new Response(null, { status: 304, headers });
  const isCompressed = gzip && request.headers.get('accept-encoding')?.includes('gzip');
  const sent = isCompressed ? gzip : body;
  return new Response(request.method === 'HEAD' ? null : sent, {
    headers: { ...headers, ...(isCompressed && { 'content-encoding': 'gzip' }), 'content-length': String(sent.length) },
  });
}

/** Read from disk: it is large, and few ask for it. */
function modelResponse(path: string, request: Request): Response {
  const { size, mtimeMs } = statSync(path);
  const headers = {
    ...SECURITY_HEADERS,
    'content-type': BINARY,
    'content-length': String(size),
    'cache-control': 'no-cache',
    etag: `"${size}-${Math.floor(mtimeMs)}"`,
  };
  if (request.headers.get('if-none-match')?.includes(headers.etag)) return new Response(null, { status: 304, headers });
  if (request.method === 'HEAD') return new Response(null, { headers });
  return new Response(Readable.toWeb(createReadStream(path)) as ReadableStream<Uint8Array>, { headers });
}
