/** The platform of Node, and of what runs Node's modules. In browsers, bundlers take browser.ts instead. */
import * as crypto from 'node:crypto';
import * as fs from 'node:fs';
import * as os from 'node:os';
import * as path from 'node:path';
import * as url from 'node:url';
import * as v8 from 'node:v8';
import { Worker } from 'node:worker_threads';
import { createAnswers } from './answers.ts';
import { readFile, writeFile } from './node-files.ts';
import { openDawn } from './node-gpu.ts';
import type { Platform, Thread } from './platform.ts';

export const platform: Platform = {
  coreCount: os.availableParallelism,
  memoryLimit() {
    const max = 0.9 * Math.min(os.totalmem(), process.constrainedMemory() || Number.POSITIVE_INFINITY);
    // macOS counts reclaimable file cache as used, so its free memory says nothing.
    return os.platform() === 'darwin' ? max : Math.min(max, os.freemem());
  },
  canShareMemory: true,
  canBlock: true,
  yieldToEventLoop: () => new Promise(resolve => setImmediate(resolve)),
  // Node 20 needs the flag. Later versions need none and warn about it.
  enableRelaxedSimd: () => v8.setFlagsFromString('--experimental-wasm-relaxed-simd'),
  enableWideSimd,
  startThread,
  openGpu: async () => (globalThis as { navigator?: { gpu?: GPU } }).navigator?.gpu ?? openDawn(),
  readFile,
  writeFile,
  node: { crypto, fs, os, path, url },
};

/**
 * V8 can since Node 22, with a gain since Node 24, on x64 with AVX2; elsewhere its flag has no effect. It applies to all
 * modules of the process; `node --no-experimental-wasm-revectorize` keeps it off.
 */
function enableWideSimd(): boolean {
  const { arch, execArgv, versions } = process;
  const canJoin = arch === 'x64' && Number.parseInt(versions.node, 10) >= 24;
  if (!canJoin || execArgv.includes('--no-experimental-wasm-revectorize')) return false;
  v8.setFlagsFromString('--experimental-wasm-revectorize');
  return true;
}

const PRELUDE = `
const { parentPort } = require('node:worker_threads');
const post = message => parentPort.postMessage(message);
const onMessage = listener => parentPort.on('message', listener);
`;

function startThread(program: string, onEnd: (why: string) => void): Thread {
  const answers = createAnswers();
  let isEnding = false;
  const worker = new Worker(PRELUDE + program, {
    eval: true,
    // For kernels, which allocate nothing but argument arrays: a small young generation is enough.
    resourceLimits: { maxYoungGenerationSizeMb: 1 },
  });
  const end = (why: string) => {
    answers.end(why);
    if (!isEnding) onEnd(why);
  };
  worker.on('message', answer => {
    answers.receive(answer);
    if (answers.waiting === 0) worker.unref();
  });
  // Never removed: an error event without a listener ends the process.
  worker.on('error', error => end(error.message));
  worker.on('exit', code => end(`exit code ${code}`));
  return {
    ask(message) {
      const answer = answers.next();
      worker.ref();
      worker.postMessage(message);
      return answer;
    },
    async terminate() {
      isEnding = true;
      await worker.terminate();
    },
  };
}
