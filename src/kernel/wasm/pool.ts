/**
 * Threads that run kernels together. The main thread writes a kernel's number and arguments into shared memory and
 * raises a counter; workers spin on it for a moment, then sleep; the main thread takes part and waits for the rest.
 * Without shared memory the pool is the main thread alone.
 */
export interface Pool {
  readonly threads: number;
  /** Makes a module's kernels known to all threads. */
  load(bytes: Uint8Array<ArrayBuffer>): void;
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
const LOAD = -2;

/**
 * A worker's whole program, as text: it must run where no bundler and no TypeScript loader reaches. It spins for
 * about 50 microseconds between jobs of one token before it sleeps, so that it costs nothing while idle.
 */
const WORKER = `
const { parentPort, receiveMessageOnPort, workerData } = require('node:worker_threads');
const { memory, control: at, thread, threads } = workerData;
const kernels = [];
const control = new Int32Array(memory.buffer, at, ${CONTROL_WORDS});
let seen = 0;
parentPort.postMessage('ready');
for (;;) {
  let spins = 0;
  while (Atomics.load(control, ${EPOCH}) === seen) if (++spins > 20000) Atomics.wait(control, ${EPOCH}, seen, 1000);
  seen = Atomics.load(control, ${EPOCH});
  const kernel = Atomics.load(control, ${KERNEL});
  if (kernel === ${QUIT}) break;
  if (kernel === ${LOAD}) {
    const { exports } = new WebAssembly.Instance(receiveMessageOnPort(parentPort).message, { env: { memory } });
    kernels.push(...Object.values(exports));
  } else kernels[kernel](...control.subarray(${ARGS}, ${ARGS} + control[${COUNT}]), thread, threads);
  Atomics.sub(control, ${BUSY}, 1);
}
`;

export async function createPool(memory: WebAssembly.Memory, control: number, threads: number): Promise<Pool> {
  const kernels: Kernels = {};
  const numbers = new Map<string, number>();
  const load = (bytes: Uint8Array<ArrayBuffer>): WebAssembly.Module => {
    const module = new WebAssembly.Module(bytes);
    const { exports } = new WebAssembly.Instance(module, { env: { memory } });
    for (const [name, kernel] of Object.entries(exports as Kernels)) {
      numbers.set(name, numbers.size);
      kernels[name] = kernel;
    }
    return module;
  };
  const runHere = (kernel: string, ...args: number[]) => kernels[kernel](...args, 0, 1);
  if (threads === 1) return { threads, load, run: runHere, runHere, async dispose() {} };

  const words = new Int32Array(memory.buffer, control, CONTROL_WORDS);
  const { Worker } = await import('node:worker_threads');
  const workers = Array.from(
    { length: threads - 1 },
    (_, i) => new Worker(WORKER, { eval: true, workerData: { memory, control, thread: i + 1, threads } }),
  );
  const ready = (worker: InstanceType<typeof Worker>) =>
    new Promise((resolve, reject) => worker.once('message', resolve).once('error', reject));
  await Promise.all(workers.map(ready));
  for (const worker of workers) worker.unref();

  const start = (kernel: number, args: readonly number[]) => {
    words[COUNT] = args.length;
    words.set(args, ARGS);
    Atomics.store(words, BUSY, workers.length);
    Atomics.store(words, KERNEL, kernel);
    Atomics.add(words, EPOCH, 1);
    Atomics.notify(words, EPOCH);
  };
  const join = () => {
    while (Atomics.load(words, BUSY) !== 0);
  };
  return {
    threads,
    runHere,
    load(bytes) {
      const module = load(bytes);
      for (const worker of workers) worker.postMessage(module);
      start(LOAD, []);
      join();
    },
    run(kernel, ...args) {
      start(numbers.get(kernel)!, args);
      kernels[kernel](...args, 0, threads);
      join();
    },
    async dispose() {
      start(QUIT, []);
      await Promise.all(workers.map(worker => worker.terminate()));
    },
  };
}
