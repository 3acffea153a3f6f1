/** The platform of browsers: pages, Workers, extensions. */
import { UnsupportedError } from '../util/errors.ts';
import { createAnswers } from './answers.ts';
import { readFile, writeFile } from './opfs.ts';
import type { NodeModules, Platform, Thread } from './platform.ts';

interface BrowserScope {
  navigator: Navigator & { deviceMemory?: number };
  location?: { href: string };
  document?: { baseURI: string };
}
const scope = globalThis as unknown as BrowserScope;

/** Taken where a browser does not say how much memory the device has. */
const DEFAULT_DEVICE_GIB = 4;

export const platform: Platform = {
  coreCount: () => scope.navigator.hardwareConcurrency ?? 1,
  // The other half is left to the system and to other tabs. Browsers report at most 8 to 32 GiB.
  memoryLimit: () => ((scope.navigator.deviceMemory ?? DEFAULT_DEVICE_GIB) / 2) * 2 ** 30,
  // Without the headers COOP and COEP some browsers have SharedArrayBuffer but cannot send it to a Worker.
  canShareMemory: typeof SharedArrayBuffer !== 'undefined' && globalThis.crossOriginIsolated === true,
  canBlock: scope.document === undefined,
  yieldToEventLoop,
  enableRelaxedSimd() {},
  enableWideSimd: () => false,
  startThread,
  openGpu: async () =>
    scope.navigator.gpu ?? 'this browser has no WebGPU (or the page is not served from https or localhost)',
  baseUrl: scope.document?.baseURI ?? scope.location?.href ?? '',
  readFile,
  writeFile,
  get node(): NodeModules {
    throw new UnsupportedError('Files on disk can only be opened in Node. In a browser, use a URL, a File or a Blob.');
  },
};

/**
 * By a message, which waits for its turn behind those that have arrived. Browsers delay nested timers by 4 ms, and those of
 * a hidden tab by a second. What follows `scheduler.yield()` goes before all messages: a Worker that computes one pass
 * after the other would never be told to stop.
 */
function yieldToEventLoop(): Promise<void> {
  return new Promise(resolve => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      resolve();
    };
    port2.postMessage(undefined);
  });
}

const PRELUDE = `
const post = message => postMessage(message);
const onMessage = listener => addEventListener('message', ({ data }) => listener(data));
`;

function startThread(program: string, onEnd: (why: string) => void): Thread {
  const answers = createAnswers();
  const url = URL.createObjectURL(new Blob([PRELUDE, program], { type: 'text/javascript' }));
  const worker = new Worker(url);
  worker.onmessage = ({ data }) => {
    URL.revokeObjectURL(url);
    answers.receive(data);
  };
  worker.onerror = ({ message }) => {
    const why = message || 'it could not be started: a Content-Security-Policy must allow worker-src blob:';
    answers.end(why);
    onEnd(why);
  };
  return {
    ask(message) {
      const answer = answers.next();
      worker.postMessage(message);
      return answer;
    },
    async terminate() {
      answers.end('it was terminated');
      worker.terminate();
    },
  };
}
