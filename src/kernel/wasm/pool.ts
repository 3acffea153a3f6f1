/**
 * A thread pool that runs kernels. A job is one or more tasks: a kernel, its arguments and a number of chunks. Threads
 * claim chunks until none is left. The main thread takes part, closes the job when all chunks are claimed, and waits
 * only for workers that joined it, so a worker that is asleep costs nothing. Between jobs workers spin briefly, then
 * sleep. Without shared memory the main thread runs everything.
 *
 * When a kernel traps or a worker stops, the pool fails: it terminates its workers, and every later job throws the same
 * error. The main thread receives no events while it waits, so workers report traps in shared memory, and a worker
 * without progress for `stallSeconds` counts as stopped.
 *
 * Modules are sent as messages, which workers receive outside of jobs: `load` resolves when all have instantiated it.
 */

import { platform } from '../../platform/node.ts';
import { DeviceError } from '../../util/errors.ts';
import {
  ACTIVE_WORKERS,
  CONTROL_WORDS,
  EPOCH,
  FAILED_THREAD,
  FIRST_TASK,
  MAIN_WAITING,
  MAX_SPINS,
  MAX_TASKS,
  NEXT_CHUNK,
  OPEN_JOB,
  RECEIVE_MESSAGES,
  readError,
  startWorkers,
  TASK_COUNT,
  TASK_WORDS,
} from './pool-workers.ts';
import type { Task } from './task.ts';

export interface Pool {
  readonly threads: number;
  /** Instantiates a module on all threads, over the pool's memory or over another one with a suffix for its names. */
  load(bytes: Uint8Array<ArrayBuffer>, other?: { memory: WebAssembly.Memory; suffix: string }): Promise<void>;
  /** Runs all chunks of independent tasks as one job, of at most MAX_TASKS each: threads synchronize once for all of them. */
  runAll(tasks: readonly Task[]): void;
  /** The same for small kernels, which process `values` values together: on the main thread alone if these are few. */
  runSmall(values: number, tasks: readonly Task[]): void;
  dispose(): Promise<void>;
}

/** Below this many values, small kernels are too short to be worth waking other threads. */
const MIN_PARALLEL_VALUES = 8192;

type Kernels = Record<string, (...args: number[]) => void>;

/** Value of NEXT_CHUNK that stops threads from claiming another chunk. */
const NO_CHUNKS_LEFT = 2 ** 30;

/**
 * Seconds without progress after which a worker counts as stopped: on a busy machine a thread may not run for a while.
 */
const STALL_SECONDS = 30;

/** Modules of which pools, or the memories of a pool, share the bytes. */
const compiled = new WeakMap<Uint8Array, Promise<WebAssembly.Module>>();

export async function createPool(
  memory: WebAssembly.Memory,
  control: number,
  threads: number,
  stallSeconds = STALL_SECONDS,
): Promise<Pool> {
  const kernels: Kernels = {};
  const indices = new Map<string, number>();
  const poolMemory = { memory, suffix: '' };
  let failure: DeviceError | undefined;
  let terminate = async () => {};
  /** Keeps the first failure: later ones are its consequences. */
  const fail = (what: string, cause?: unknown): DeviceError => {
    if (failure) return failure;
    failure = new DeviceError(`${what}. Dispose the model and load it again.`, { cause });
    void terminate();
    return failure;
  };
  const stopped = (why: string) => fail(`A worker thread of the wasm device stopped (${why})`);
  const trapped = (kernel: string, cause: unknown) =>
    fail(`Kernel "${kernel}" of the wasm device failed (${(cause as Error).message})`, cause);
  const throwIfFailed = () => {
    if (failure) throw failure;
  };

  const load = async (bytes: Uint8Array<ArrayBuffer>, target: typeof poolMemory): Promise<WebAssembly.Module> => {
    throwIfFailed();
    const compiling = compiled.get(bytes) ?? WebAssembly.compile(bytes);
    compiled.set(bytes, compiling);
    const module = await compiling;
    const { exports } = await WebAssembly.instantiate(module, { env: { memory: target.memory } });
    for (const [name, kernel] of Object.entries(exports as Kernels)) {
      indices.set(name + target.suffix, indices.size);
      kernels[name + target.suffix] = kernel;
    }
    return module;
  };
  const runOnMain = ({ kernel, args }: Task) => {
    throwIfFailed();
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
  // Memory that is not shared moves when it grows: nothing may keep a view of it.
  if (threads === 1) {
    return {
      threads,
      async load(bytes, target = poolMemory) {
        await load(bytes, target);
      },
      runAll: tasks => tasks.forEach(runOnMain),
      runSmall: (_, tasks) => tasks.forEach(runOnMain),
      dispose,
    };
  }

  const words = new Int32Array(memory.buffer, control, CONTROL_WORDS);
  const workers = await startWorkers(memory, control, threads - 1, stopped);
  terminate = workers.terminate;
  let isLoading = false;
  let lastLoad: Promise<void> = Promise.resolve();

  const open = (...tasks: { kernel: number; chunks: number; args: readonly number[] }[]) => {
    words[TASK_COUNT] = tasks.length;
    tasks.forEach(({ kernel, chunks, args }, i) => {
      const at = FIRST_TASK + i * TASK_WORDS;
      words[at] = kernel;
      words[at + 1] = chunks;
      words[at + 2] = args.length;
      words.set(args, at + 3);
    });
    Atomics.store(words, NEXT_CHUNK, 0);
    const epoch = Atomics.load(words, EPOCH) + 1;
    Atomics.store(words, OPEN_JOB, epoch);
    Atomics.store(words, EPOCH, epoch);
    Atomics.notify(words, EPOCH);
  };
  /** Changes with every chunk that a worker claims, and when a worker joins or leaves a job. */
  const progress = () => Atomics.load(words, NEXT_CHUNK) * threads + Atomics.load(words, ACTIVE_WORKERS);
  const waitFor = (word: number, target: number) => {
    for (let spins = 0; spins < MAX_SPINS; spins++) if (Atomics.load(words, word) === target) return;
    Atomics.store(words, MAIN_WAITING, 1);
    let idle = 0;
    for (let value = Atomics.load(words, word); value !== target; value = Atomics.load(words, word)) {
      const before = progress();
      // One second at a time: a process that was suspended for a minute counts one second of it.
      const outcome = sleep(words, word, value, 1000);
      idle = outcome === 'timed-out' && progress() === before ? idle + 1 : 0;
      if (idle >= stallSeconds) throw stopped(`no progress in ${stallSeconds} seconds`);
    }
    Atomics.store(words, MAIN_WAITING, 0);
  };
  const close = () => {
    Atomics.store(words, OPEN_JOB, 0);
    waitFor(ACTIVE_WORKERS, 0);
    if (Atomics.load(words, FAILED_THREAD) !== 0) throw stopped(readError(words));
  };
  const runJob = (tasks: readonly Task[]) => {
    // While the workers receive messages they run no jobs.
    if (isLoading || tasks.reduce((sum, { chunks }) => sum + chunks, 0) <= 1) {
      tasks.forEach(runOnMain);
      return;
    }
    throwIfFailed();
    open(...tasks.map(({ kernel, chunks, args }) => ({ kernel: indices.get(kernel)!, chunks, args })));
    let passed = 0;
    let next = Atomics.add(words, NEXT_CHUNK, 1);
    for (const { kernel, chunks, args } of tasks) {
      const run = kernels[kernel];
      try {
        for (; next < passed + chunks; next = Atomics.add(words, NEXT_CHUNK, 1)) run(...args, next - passed, chunks, 0);
      } catch (error) {
        Atomics.store(words, NEXT_CHUNK, NO_CHUNKS_LEFT);
        close();
        throw trapped(kernel, error);
      }
      passed += chunks;
    }
    close();
  };
  const loadOnAll = async (bytes: Uint8Array<ArrayBuffer>, target: typeof poolMemory) => {
    const module = await load(bytes, target);
    isLoading = true;
    open({ kernel: RECEIVE_MESSAGES, chunks: 0, args: [] });
    try {
      await workers.load(module, target.memory);
    } catch (error) {
      throw stopped((error as Error).message);
    }
    close();
    isLoading = false;
  };
  const runAll = (tasks: readonly Task[]) => {
    for (let first = 0; first < tasks.length; first += MAX_TASKS) runJob(tasks.slice(first, first + MAX_TASKS));
  };
  return {
    threads,
    load(bytes, target = poolMemory) {
      const loaded = lastLoad.then(() => loadOnAll(bytes, target));
      lastLoad = loaded.catch(() => {});
      return loaded;
    },
    runAll,
    runSmall: (values, tasks) => (values < MIN_PARALLEL_VALUES ? tasks.forEach(runOnMain) : runAll(tasks)),
    dispose,
  };
}

/** `Atomics.wait`. A page's main thread may not sleep, so it spins. */
function sleep(words: Int32Array, word: number, value: number, ms: number): 'ok' | 'not-equal' | 'timed-out' {
  if (platform.canBlock) return Atomics.wait(words, word, value, ms);
  const end = performance.now() + ms;
  while (performance.now() < end) if (Atomics.load(words, word) !== value) return 'ok';
  return 'timed-out';
}
