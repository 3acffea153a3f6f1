/**
 * Threads that run kernels together. A job is a kernel, its arguments and a number of chunks; threads claim chunks
 * until none is left. The main thread takes part, closes the job when nothing is left to claim, and waits only for
 * those that did begin: a worker that the system lets sleep costs nothing. Workers spin for a moment between jobs,
 * then sleep. Without shared memory the pool is the main thread alone.
 */
import { assert } from '../../errors.ts';

export interface Pool {
  readonly threads: number;
  /** Makes a module's kernels known to all threads: over the pool's own memory, or over another under other names. */
  load(bytes: Uint8Array<ArrayBuffer>, other?: { memory: WebAssembly.Memory; suffix: string }): void;
  /** Runs all chunks of a kernel. Behind its own arguments a kernel gets the chunk, how many there are, the thread. */
  run(kernel: string, chunks: number, ...args: number[]): void;
  dispose(): Promise<void>;
}

type Kernels = Record<string, (...args: number[]) => void>;

/** Words of the control block. */
const EPOCH = 0; // counts jobs
const OPEN = 1; // the job that may be joined, 0 for none
const ACTIVE = 2; // workers inside a job
const NEXT = 3; // the next chunk to claim
const CHUNKS = 4;
const KERNEL = 5;
const COUNT = 6; // of arguments
const FAILED = 7; // a worker's kernel trapped
const ARGS = 8;
export const CONTROL_WORDS = 64;
const QUIT = -1;
const LOAD = -2;

/** A worker's whole program, as text: it must run where no bundler and no TypeScript loader reaches. */
const WORKER = `
const { parentPort, receiveMessageOnPort, workerData } = require('node:worker_threads');
const { memory, control: at, thread } = workerData;
const kernels = [];
const control = new Int32Array(memory.buffer, at, ${CONTROL_WORDS});
let seen = 0;
parentPort.postMessage('ready');
for (;;) {
  let spins = 0;
  while (Atomics.load(control, ${EPOCH}) === seen) if (++spins > 20000) Atomics.wait(control, ${EPOCH}, seen, 1000);
  seen = Atomics.load(control, ${EPOCH});
  Atomics.add(control, ${ACTIVE}, 1);
  if (Atomics.load(control, ${OPEN}) === seen) {
    const kernel = control[${KERNEL}];
    if (kernel === ${QUIT}) break;
    try {
      if (kernel === ${LOAD}) {
        const { module, memory } = receiveMessageOnPort(parentPort).message;
        kernels.push(...Object.values(new WebAssembly.Instance(module, { env: { memory } }).exports));
      } else {
        const chunks = control[${CHUNKS}];
        const args = control.slice(${ARGS}, ${ARGS} + control[${COUNT}]);
        for (let chunk; (chunk = Atomics.add(control, ${NEXT}, 1)) < chunks; ) kernels[kernel](...args, chunk, chunks, thread);
      }
    } catch {
      control[${FAILED}] = 1;
    }
    if (kernel === ${LOAD}) Atomics.add(control, ${NEXT}, 1);
  }
  Atomics.sub(control, ${ACTIVE}, 1);
}
`;

export async function createPool(memory: WebAssembly.Memory, control: number, threads: number): Promise<Pool> {
  const kernels: Kernels = {};
  const numbers = new Map<string, number>();
  const own = { memory, suffix: '' };
  const load = (bytes: Uint8Array<ArrayBuffer>, place: typeof own): WebAssembly.Module => {
    const module = new WebAssembly.Module(bytes);
    const { exports } = new WebAssembly.Instance(module, { env: { memory: place.memory } });
    for (const [name, kernel] of Object.entries(exports as Kernels)) {
      numbers.set(name + place.suffix, numbers.size);
      kernels[name + place.suffix] = kernel;
    }
    return module;
  };
  const runHere = (kernel: string, _chunks: number, ...args: number[]) => kernels[kernel](...args, 0, 1, 0);
  if (threads === 1) {
    return { threads, load: (bytes, place = own) => void load(bytes, place), run: runHere, async dispose() {} };
  }

  const words = new Int32Array(memory.buffer, control, CONTROL_WORDS);
  const { Worker } = await import('node:worker_threads');
  const workers = Array.from(
    { length: threads - 1 },
    (_, i) => new Worker(WORKER, { eval: true, workerData: { memory, control, thread: i + 1 } }),
  );
  const ready = (worker: InstanceType<typeof Worker>) =>
    new Promise((resolve, reject) => worker.once('message', resolve).once('error', reject));
  await Promise.all(workers.map(ready));
  for (const worker of workers) worker.unref();

  const open = (kernel: number, chunks: number, args: readonly number[]) => {
    words[KERNEL] = kernel;
    words[CHUNKS] = chunks;
    words[COUNT] = args.length;
    words.set(args, ARGS);
    Atomics.store(words, NEXT, 0);
    const epoch = Atomics.load(words, EPOCH) + 1;
    Atomics.store(words, OPEN, epoch);
    Atomics.store(words, EPOCH, epoch);
    Atomics.notify(words, EPOCH);
  };
  const close = () => {
    Atomics.store(words, OPEN, 0);
    while (Atomics.load(words, ACTIVE) !== 0);
    assert(words[FAILED] === 0, 'a kernel trapped in a worker thread');
  };
  return {
    threads,
    load(bytes, place = own) {
      const module = load(bytes, place);
      for (const worker of workers) worker.postMessage({ module, memory: place.memory });
      open(LOAD, 0, []);
      // Every worker must have it before the next job.
      while (Atomics.load(words, NEXT) !== workers.length);
      close();
    },
    run(kernel, chunks, ...args) {
      if (chunks <= 1) {
        runHere(kernel, 1, ...args);
        return;
      }
      const here = kernels[kernel];
      open(numbers.get(kernel)!, chunks, args);
      for (;;) {
        const chunk = Atomics.add(words, NEXT, 1);
        if (chunk >= chunks) break;
        here(...args, chunk, chunks, 0);
      }
      close();
    },
    async dispose() {
      open(QUIT, 0, []);
      await Promise.all(workers.map(worker => worker.terminate()));
    },
  };
}
