/** `startWorker`: the engine in a Worker, so that the page never waits for it. */
import type { LoadOptions } from '../api/model.ts';
import type { BytesInput } from '../model/open-bytes.ts';
import type { ProfileInput } from '../plan/profile-input.ts';
import { platform } from '../platform/node.ts';
import { DeviceError, UnsupportedError } from '../util/errors.ts';
import { connectService, type RemoteService } from './connect.ts';
import { messagePort } from './port.ts';

/** What the page asks of its Worker. */
export interface WorkerSource {
  model: unknown;
  loadOptions: Omit<LoadOptions, 'signal' | 'onProgress'>;
  store?: boolean;
  sha256?: string;
}

/** A URL, relative to the page; a File, Blob or the bytes; for a split model, an array of its files. */
export type WorkerModel = string | Exclude<BytesInput, Response> | readonly Exclude<BytesInput, Response>[];

/** Those of `loadModel`, and where the model is kept. */
export interface WorkerOptions extends LoadOptions {
  /** Keep the model, a URL or a File, in the site's storage, and load it from there the next time. Default: false. */
  store?: boolean;
  /** The sha256 that a stored model must have, in hex. */
  sha256?: string;
  /** A Worker that calls `runWorker`. Default: it is started from this package's own file. */
  worker?: Worker;
}

/** Vite's development server, for one, does not serve files of a package that is linked from another folder. */
const FORBIDDEN =
  'The Worker could not be started: the server refuses engine-worker.js (403). A package that is linked, as by ' +
  '`npm install ../kvasir`, is outside the folders that Vite serves: install the tarball of `npm pack` instead, or add ' +
  "the package's folder to `server.fs.allow` in Vite's configuration.";

const NOT_STARTED =
  'The Worker could not be started. Serve engine-worker.js next to the script that starts it, or pass a Worker that ' +
  'calls runWorker as the option `worker`.';

/** Starts a Worker and loads a model there. `close` ends the Worker. */
export async function startWorker(model: WorkerModel, options: WorkerOptions = {}): Promise<RemoteService> {
  const { store, sha256, worker: given, signal, onProgress, ...loadOptions } = options;
  signal?.throwIfAborted();
  if (typeof Worker === 'undefined')
    throw new UnsupportedError('startWorker needs the Workers of a browser. In Node, use loadModel.');
  const worker = given ?? openWorker();
  // Asked of the page, since a Worker cannot: stored models may otherwise be evicted.
  if (store) await navigator.storage?.persist?.();
  const source: WorkerSource = {
    model: Array.isArray(model) ? model.map(absoluteUrl) : absoluteUrl(model),
    loadOptions: { ...loadOptions, profile: absoluteUrl(loadOptions.profile) as ProfileInput | undefined },
    store,
    sha256,
  };
  let onAbort = () => {};
  const aborted = new Promise<never>((_, reject) => {
    onAbort = () => reject(signal?.reason);
    signal?.addEventListener('abort', onAbort);
  });
  let notStarted: Promise<DeviceError> | undefined;
  worker.addEventListener('error', ({ message }) => {
    // An error of its program has a message; without one the program was not found.
    if (!message) notStarted = explainNotStarted(given === undefined);
  });
  try {
    return await Promise.race([aborted, connectService(messagePort(worker), { source, onProgress })]);
  } catch (error) {
    worker.terminate();
    throw (await notStarted) ?? error;
  } finally {
    signal?.removeEventListener('abort', onAbort);
  }
}

async function explainNotStarted(isOurs: boolean): Promise<DeviceError> {
  const answer = isOurs ? await fetch(workerUrl()).catch(() => undefined) : undefined;
  return new DeviceError(answer?.status === 403 ? FORBIDDEN : NOT_STARTED);
}

/** Bundlers know this form, and build the Worker's program too. */
function openWorker(): Worker {
  try {
    return new Worker(new URL('./engine-worker.js', import.meta.url), { type: 'module' });
  } catch (error) {
    if ((error as Error).name !== 'SecurityError') throw error;
    // This module is from another origin, such as a CDN. A Worker of the page's own may import from there.
    const program = new Blob([`import ${JSON.stringify(workerUrl())};`], { type: 'text/javascript' });
    return new Worker(URL.createObjectURL(program), { type: 'module' });
  }
}

/** Where its program is unless a bundler has moved it. Not as above, or bundlers would build it a second time. */
const workerUrl = (): string => import.meta.url.replace(/[^/]*$/, 'engine-worker.js');

/** URLs cannot be sent as messages, and a Worker resolves relative ones against its own. */
const absoluteUrl = (value: unknown): unknown =>
  typeof value === 'string' || value instanceof URL ? new URL(value, platform.baseUrl).href : value;
