/**
 * The service worker: keeps the app's files, so that it opens without a network. Requests to the engine pass by, and
 * models, which the app keeps itself.
 */

interface WorkerScope {
  readonly registration: { readonly scope: string };
  skipWaiting(): Promise<void>;
  readonly clients: { claim(): Promise<void> };
  addEventListener(type: string, listener: (event: WorkerEvent) => void): void;
}

interface WorkerEvent {
  readonly request: Request;
  waitUntil(work: Promise<unknown>): void;
  respondWith(response: Promise<Response>): void;
}

/** Put in by the build: the files with hashes in their names. */
declare const __FILES__: readonly string[];

const scope = self as unknown as WorkerScope;
const base = new URL(scope.registration.scope);
const files = new Set(__FILES__.map(name => new URL(name, base).href));
const extras = ['./', './icon.svg', './manifest.webmanifest', './sample.txt'].map(name => new URL(name, base).href);
const CACHE = 'kvasir-app';

scope.addEventListener('install', event => {
  const fill = async () => {
    const cache = await caches.open(CACHE);
    await cache.addAll([...extras, ...files]);
    await scope.skipWaiting();
  };
  event.waitUntil(fill());
});

scope.addEventListener('activate', event => {
  const clean = async () => {
    const cache = await caches.open(CACHE);
    const isOld = (url: string) => !files.has(url) && !extras.includes(url);
    for (const request of await cache.keys()) if (isOld(request.url)) await cache.delete(request);
    await scope.clients.claim();
  };
  event.waitUntil(clean());
});

scope.addEventListener('fetch', event => {
  const { request } = event;
  const url = request.url.split(/[?#]/)[0]!;
  if (request.method !== 'GET') return;
  if (files.has(url)) event.respondWith(fromCacheFirst(request));
  else if (extras.includes(url)) event.respondWith(fromNetworkFirst(request));
});

/** Their names change with their content. */
const fromCacheFirst = async (request: Request): Promise<Response> =>
  isolate((await caches.match(request, { ignoreVary: true })) ?? (await fetch(request)));

/** The newest version; without a network, the one that was kept. */
async function fromNetworkFirst(request: Request): Promise<Response> {
  try {
    const response = await fetch(request);
    if (response.ok) await (await caches.open(CACHE)).put(request, response.clone());
    return isolate(response);
  } catch (error) {
    const kept = await caches.match(request, { ignoreVary: true, ignoreSearch: true });
    if (!kept) throw error;
    return isolate(kept);
  }
}

/**
 * WebAssembly may use threads on an isolated page only, and such a page may only start Workers whose script has the header
 * too. Hosts that cannot set headers get them here.
 */
function isolate(response: Response): Response {
  if (response.headers.has('cross-origin-embedder-policy')) return response;
  const headers = new Headers(response.headers);
  headers.set('cross-origin-opener-policy', 'same-origin');
  headers.set('cross-origin-embedder-policy', 'require-corp');
  return new Response(response.body, { status: response.status, statusText: response.statusText, headers });
}
