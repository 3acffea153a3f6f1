/**
 * Threads that run kernels together. A job is one or a few tasks, each a kernel, its arguments and a number of chunks;
 * threads claim chunks until none is left. The main thread takes part, closes the job when nothing is left to claim, and waits only for
 * those that did begin: a worker that the system lets sleep costs nothing. Workers spin for a moment between jobs,
 * then sleep. Without shared memory the pool is the main thread alone.
 *
 * When a kernel traps or a worker stops, the pool has failed: its workers are terminated and every later job throws the same
 * error. The main thread receives no events while it waits, so a worker reports a trap in shared memory, and one that makes no
 * progress for a long time counts as stopped.
 */
import { assert, DeviceError } from '../../errors.ts';
import {
  ACTIVE,
  CONTROL_WORDS,
  EPOCH,
  FAILED,
  FIRST,
  LOAD,
  MOST_TASKS,
  NEXT,
  OPEN,
  SPINS,
  startWorkers,
  TASK_WORDS,
  TASKS,
  WAITING,
} from './pool-workers.ts';

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

type Kernels = Record<string, (...args: number[]) => void>;

/** What NEXT is set to when no thread shall claim another chunk. */
const NO_MORE = 2 ** 30;

/** Seconds without progress until a worker counts as stopped: on a busy machine a thread may not run for a while. */
const PATIENCE = 30;

export async function createPool(
  memory: WebAssembly.Memory,
  control: number,
  threads: number,
  patience = PATIENCE,
): Promise<Pool> {
  const kernels: Kernels = {};
  const numbers = new Map<string, number>();
  const own = { memory, suffix: '' };
  let failure: DeviceError | undefined;
  let terminate = async () => {};
  /** Only the first failure counts; the others follow from it. */
  const fail = (what: string, cause?: unknown): DeviceError => {
    if (failure) return failure;
    failure = new DeviceError(`${what}. Dispose the model and load it again.`, { cause });
    void terminate();
    return failure;
  };
  const stopped = (why: string) => fail(`A worker thread of the wasm device stopped (${why})`);
  const trapped = (kernel: string, cause: unknown) =>
    fail(`Kernel "${kernel}" of the wasm device failed (${(cause as Error).message})`, cause);
  const check = () => {
    if (failure) throw failure;
  };

  const load = (bytes: Uint8Array<ArrayBuffer>, place: typeof own): WebAssembly.Module => {
    check();
    const module = new WebAssembly.Module(bytes);
    const { exports } = new WebAssembly.Instance(module, { env: { memory: place.memory } });
    for (const [name, kernel] of Object.entries(exports as Kernels)) {
      numbers.set(name + place.suffix, numbers.size);
      kernels[name + place.suffix] = kernel;
    }
    return module;
  };
  const runHere = ({ kernel, args }: Task) => {
    check();
    try {
      kernels[kernel](...args, 0, 1, 0);
    } catch (error) {
      throw trapped(kernel, error);
    }
  };
  const dispose = async () => {
    failure ??= new DeviceError('The wasm device is disposed. Load the model again.');
    await terminate();
  };
  if (threads === 1) {
    return {
      threads,
      load: (bytes, place = own) => void load(bytes, place),
      run: (kernel, chunks, ...args) => runHere({ kernel, chunks, args }),
      runAll: tasks => tasks.forEach(runHere),
      dispose,
    };
  }

  const words = new Int32Array(memory.buffer, control, CONTROL_WORDS);
  const workers = await startWorkers(memory, control, threads - 1, stopped);
  terminate = workers.terminate;

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
  /** Workers change one of these with every chunk that they claim, and when they enter or leave a job. */
  const progress = () => Atomics.load(words, NEXT) * threads + Atomics.load(words, ACTIVE);
  /** Waits until a word has a value. */
  const waitFor = (word: number, target: number) => {
    for (let spins = 0; spins < SPINS; spins++) if (Atomics.load(words, word) === target) return;
    Atomics.store(words, WAITING, 1);
    let idle = 0;
    for (let value = Atomics.load(words, word); value !== target; value = Atomics.load(words, word)) {
      const before = progress();
      // Second by second: a process that was suspended for a minute has waited for one of them.
      const outcome = Atomics.wait(words, word, value, 1000);
      idle = outcome === 'timed-out' && progress() === before ? idle + 1 : 0;
      if (idle >= patience) throw stopped(`no progress in ${patience} seconds`);
    }
    Atomics.store(words, WAITING, 0);
  };
  const close = () => {
    Atomics.store(words, OPEN, 0);
    waitFor(ACTIVE, 0);
    const thread = Atomics.load(words, FAILED);
    if (thread !== 0) throw stopped(workers.errorOf(thread));
  };
  const runAll = (tasks: readonly Task[]) => {
    assert(tasks.length <= MOST_TASKS, `${tasks.length} tasks in one job`);
    if (tasks.every(({ chunks }) => chunks <= 1)) {
      tasks.forEach(runHere);
      return;
    }
    check();
    open(...tasks.map(({ kernel, chunks, args }) => ({ kernel: numbers.get(kernel)!, chunks, args })));
    let passed = 0;
    let next = Atomics.add(words, NEXT, 1);
    for (const { kernel, chunks, args } of tasks) {
      const here = kernels[kernel];
      try {
        for (; next < passed + chunks; next = Atomics.add(words, NEXT, 1)) here(...args, next - passed, chunks, 0);
      } catch (error) {
        Atomics.store(words, NEXT, NO_MORE);
        close();
        throw trapped(kernel, error);
      }
      passed += chunks;
    }
    close();
  };
  return {
    threads,
    load(bytes, place = own) {
      workers.send(load(bytes, place), place.memory);
      open({ kernel: LOAD, chunks: 0, args: [] });
      // Every worker must have it before the next job.
      waitFor(NEXT, workers.count);
      close();
    },
    runAll,
    run: (kernel, chunks, ...args) => runAll([{ kernel, chunks, args }]),
    dispose,
  };
}
