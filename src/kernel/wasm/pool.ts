/**
 * Threads that run kernels together. A job is one or a few tasks, each a kernel, its arguments and a number of chunks;
 * threads claim chunks until none is left. The main thread takes part, closes the job when nothing is left to claim, and waits only for
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
  /** The same for tasks that do not depend on each other: threads meet once for all of them. */
  runAll(tasks: readonly Task[]): void;
  dispose(): Promise<void>;
}

export interface Task {
  kernel: string;
  chunks: number;
  args: readonly number[];
}

/** Most tasks of a job. */
export const MOST_TASKS = 4;

type Kernels = Record<string, (...args: number[]) => void>;

/** Words of the control block. */
const EPOCH = 0; // counts jobs
const OPEN = 1; // the job that may be joined, 0 for none
const ACTIVE = 2; // workers inside a job
const NEXT = 3; // the next chunk to claim
const FAILED = 4; // a worker's kernel trapped
const TASKS = 5; // how many
const FIRST = 6; // the first task: kernel, chunks, number of arguments, arguments
const TASK_WORDS = 26;
export const CONTROL_WORDS = FIRST + MOST_TASKS * TASK_WORDS;
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
    const kernel = control[${FIRST}];
    if (kernel === ${QUIT}) break;
    try {
      if (kernel === ${LOAD}) {
        const { module, memory } = receiveMessageOnPort(parentPort).message;
        kernels.push(...Object.values(new WebAssembly.Instance(module, { env: { memory } }).exports));
      } else {
        let passed = 0;
        let next = Atomics.add(control, ${NEXT}, 1);
        for (let task = 0, at = ${FIRST}; task < control[${TASKS}]; task++, at += ${TASK_WORDS}) {
          const run = kernels[control[at]];
          const chunks = control[at + 1];
          const args = control.slice(at + 3, at + 3 + control[at + 2]);
          for (; next < passed + chunks; next = Atomics.add(control, ${NEXT}, 1)) run(...args, next - passed, chunks, thread);
          passed += chunks;
        }
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
  const runHere = ({ kernel, args }: Task) => kernels[kernel](...args, 0, 1, 0);
  if (threads === 1) {
    return {
      threads,
      load: (bytes, place = own) => void load(bytes, place),
      run: (kernel, chunks, ...args) => runHere({ kernel, chunks, args }),
      runAll: tasks => tasks.forEach(runHere),
      async dispose() {},
    };
  }

  const words = new Int32Array(memory.buffer, control, CONTROL_WORDS);
  const { Worker } = await import('node:worker_threads');
  const workers = Array.from(
    { length: threads - 1 },
    (_, i) =>
      new Worker(WORKER, {
        eval: true,
        workerData: { memory, control, thread: i + 1 },
        // All that a worker makes is arguments: it needs no room to let them pile up.
        resourceLimits: { maxYoungGenerationSizeMb: 1 },
      }),
  );
  const ready = (worker: InstanceType<typeof Worker>) =>
    new Promise((resolve, reject) => worker.once('message', resolve).once('error', reject));
  await Promise.all(workers.map(ready));
  for (const worker of workers) worker.unref();

  const open = (...tasks: { kernel: number; chunks: number; args: readonly number[] }[]) => {
    words[TASKS] = tasks.length;
    tasks.forEach(({ kernel, chunks, args }, i) => {
      const at = FIRST + i * TASK_WORDS;
      words[at] = kernel;
      words[at + 1] = chunks;
      words[at + 2] = args.length;
      words.set(args, at + 3);
    });
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
  const runAll = (tasks: readonly Task[]) => {
    assert(tasks.length <= MOST_TASKS, `${tasks.length} tasks in one job`);
    if (tasks.every(({ chunks }) => chunks <= 1)) {
      tasks.forEach(runHere);
      return;
    }
    open(...tasks.map(({ kernel, chunks, args }) => ({ kernel: numbers.get(kernel)!, chunks, args })));
    let passed = 0;
    let next = Atomics.add(words, NEXT, 1);
    for (const { kernel, chunks, args } of tasks) {
      const here = kernels[kernel];
      for (; next < passed + chunks; next = Atomics.add(words, NEXT, 1)) here(...args, next - passed, chunks, 0);
      passed += chunks;
    }
    close();
  };
  return {
    threads,
    load(bytes, place = own) {
      const module = load(bytes, place);
      for (const worker of workers) worker.postMessage({ module, memory: place.memory });
      open({ kernel: LOAD, chunks: 0, args: [] });
      // Every worker must have it before the next job.
      while (Atomics.load(words, NEXT) !== workers.length);
      close();
    },
    runAll,
    run: (kernel, chunks, ...args) => runAll([{ kernel, chunks, args }]),
    async dispose() {
      open({ kernel: QUIT, chunks: 0, args: [] });
      await Promise.all(workers.map(worker => worker.terminate()));
    },
  };
}
