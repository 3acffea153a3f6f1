/**
 * Threads that run kernels together. The main thread writes a kernel's number and arguments into shared memory and
 * raises a counter; workers spin on it for a moment, then sleep; the main thread takes part and waits for the rest.
 * Without shared memory the pool is the main thread alone.
 */
export interface Pool {
  readonly threads: number;
  /** Runs a kernel on all threads; two arguments are added: the thread's number and how many there are. */
  run(kernel: string, ...args: number[]): void;
  /** Runs it here alone: for work too small to be worth waking others. */
  runHere(kernel: string, ...args: number[]): void;
  dispose(): Promise<void>;
}

type Kernels = Record<string, (...args: number[]) => void>;

/** Words of the control block: a counter of jobs, threads still busy, the kernel, its argument count, arguments. */
const EPOCH = 0;
const BUSY = 1;
const KERNEL = 2;
const COUNT = 3;
const ARGS = 4;
export const CONTROL_WORDS = 64;
const QUIT = -1;

/**
 * A worker's whole program, as text: it must run where no bundler and no TypeScript loader reaches. It spins for
 * about 50 microseconds between jobs of one token before it sleeps, so that it costs nothing while idle.
 */
const WORKER = `
const { parentPort, workerData } = require('node:worker_threads');
const { module, memory, control: at, thread, threads, names } = workerData;
const { exports } = new WebAssembly.Instance(module, { env: { memory } });
const kernels = names.map(name => exports[name]);
const control = new Int32Array(memory.buffer, at, ${CONTROL_WORDS});
let seen = 0;
parentPort.postMessage('ready');
for (;;) {
  let spins = 0;
  while (Atomics.load(control, ${EPOCH}) === seen) if (++spins > 20000) Atomics.wait(control, ${EPOCH}, seen, 1000);
  seen = Atomics.load(control, ${EPOCH});
  const kernel = Atomics.load(control, ${KERNEL});
  if (kernel === ${QUIT}) break;
  kernels[kernel](...control.subarray(${ARGS}, ${ARGS} + control[${COUNT}]), thread, threads);
  Atomics.sub(control, ${BUSY}, 1);
}
`;

export async function createPool(
  module: WebAssembly.Module,
  memory: WebAssembly.Memory,
  control: number,
  threads: number,
): Promise<Pool> {
  const instance = await WebAssembly.instantiate(module, { env: { memory } });
  const kernels = instance.exports as unknown as Kernels;
  const names = Object.keys(kernels);
  const numbers = new Map(names.map((name, i) => [name, i]));
  const runHere = (kernel: string, ...args: number[]) => kernels[kernel](...args, 0, 1);
  if (threads === 1) return { threads, run: runHere, runHere, async dispose() {} };

  const words = new Int32Array(memory.buffer, control, CONTROL_WORDS);
  const { Worker } = await import('node:worker_threads');
  const workers = Array.from(
    { length: threads - 1 },
    (_, i) =>
      new Worker(WORKER, { eval: true, workerData: { module, memory, control, thread: i + 1, threads, names } }),
  );
  await Promise.all(
    workers.map(worker => new Promise((ready, fail) => worker.once('message', ready).once('error', fail))),
  );
  for (const worker of workers) worker.unref();

  const start = (kernel: number, args: readonly number[]) => {
    words[COUNT] = args.length;
    words.set(args, ARGS);
    Atomics.store(words, BUSY, workers.length);
    Atomics.store(words, KERNEL, kernel);
    Atomics.add(words, EPOCH, 1);
    Atomics.notify(words, EPOCH);
  };
  return {
    threads,
    runHere,
    run(kernel, ...args) {
      start(numbers.get(kernel)!, args);
      kernels[kernel](...args, 0, threads);
      while (Atomics.load(words, BUSY) !== 0);
    },
    async dispose() {
      start(QUIT, []);
      await Promise.all(workers.map(worker => worker.terminate()));
    },
  };
}
