/** The worker threads of a pool: their program, and the control block in shared memory that coordinates them. */
import type { MessagePort, Worker } from 'node:worker_threads';
import { DeviceError } from '../../errors.ts';

/** Max tasks per job. */
export const MAX_TASKS = 32;
export const TASK_WORDS = 26;

/** Indices of the control block's words. */
export const EPOCH = 0; // counts jobs
export const OPEN_JOB = 1; // the job that may be joined, 0 for none
export const ACTIVE_WORKERS = 2; // workers inside the job
export const NEXT_CHUNK = 3; // the next chunk to claim; in a LOAD_MODULE job, the number of workers that are done
export const FAILED_THREAD = 4; // a worker whose kernel trapped, 0 for none
export const MAIN_WAITING = 5; // 1 while the main thread sleeps and must be notified
export const TASK_COUNT = 6; // number of tasks in the job
export const FIRST_TASK = 7; // the first task: kernel, chunks, number of arguments, arguments
export const CONTROL_WORDS = FIRST_TASK + MAX_TASKS * TASK_WORDS;

/** Instead of a kernel index: every worker receives a module from its port and instantiates it. */
export const LOAD_MODULE = -1;

/** Polls before a thread sleeps: a fraction of a millisecond. */
export const MAX_SPINS = 20000;

/** The worker's whole program as text, so that it runs without a bundler or a TypeScript loader. */
const PROGRAM = `
const { receiveMessageOnPort, workerData } = require('node:worker_threads');
const { memory, control: at, thread, port } = workerData;
const kernels = [];
const control = new Int32Array(memory.buffer, at, ${CONTROL_WORDS});
const wake = word => Atomics.load(control, ${MAIN_WAITING}) && Atomics.notify(control, word);
let seen = 0;
for (;;) {
  let spins = 0;
  while (Atomics.load(control, ${EPOCH}) === seen) if (++spins > ${MAX_SPINS}) Atomics.wait(control, ${EPOCH}, seen, 1000);
  seen = Atomics.load(control, ${EPOCH});
  Atomics.add(control, ${ACTIVE_WORKERS}, 1);
  if (Atomics.load(control, ${OPEN_JOB}) === seen) {
    const loads = control[${FIRST_TASK}] === ${LOAD_MODULE};
    try {
      if (loads) {
        const { module, memory } = receiveMessageOnPort(port).message;
        kernels.push(...Object.values(new WebAssembly.Instance(module, { env: { memory } }).exports));
      } else {
        let passed = 0;
        let next = Atomics.add(control, ${NEXT_CHUNK}, 1);
        for (let task = 0, at = ${FIRST_TASK}; task < control[${TASK_COUNT}]; task++, at += ${TASK_WORDS}) {
          const chunks = control[at + 1];
          if (next < passed + chunks) {
            const run = kernels[control[at]];
            const args = control.slice(at + 3, at + 3 + control[at + 2]);
            for (; next < passed + chunks; next = Atomics.add(control, ${NEXT_CHUNK}, 1)) run(...args, next - passed, chunks, thread);
          }
          passed += chunks;
        }
      }
    } catch (error) {
      port.postMessage(error.message);
      Atomics.store(control, ${FAILED_THREAD}, thread);
    }
    if (loads) {
      Atomics.add(control, ${NEXT_CHUNK}, 1);
      wake(${NEXT_CHUNK});
    }
  }
  Atomics.sub(control, ${ACTIVE_WORKERS}, 1);
  wake(${ACTIVE_WORKERS});
}
`;

export interface PoolWorkers {
  readonly count: number;
  /** Sends a module to every worker; a LOAD_MODULE job makes them receive it. */
  send(module: WebAssembly.Module, memory: WebAssembly.Memory): void;
  /** Why a worker set FAILED_THREAD. */
  errorOf(thread: number): string;
  terminate(): Promise<void>;
}

/** Starts threads 1 to `count`. `onStop` is called when one ends before `terminate`. */
export async function startWorkers(
  memory: WebAssembly.Memory,
  control: number,
  count: number,
  onStop: (why: string) => void,
): Promise<PoolWorkers> {
  const { MessageChannel, receiveMessageOnPort, Worker } = await import('node:worker_threads');
  const started: { worker: Worker; port: MessagePort }[] = [];
  let ending = false;
  const terminate = async () => {
    ending = true;
    await Promise.all(started.map(({ worker }) => worker.terminate()));
  };
  const start = (thread: number) =>
    new Promise<void>((resolve, reject) => {
      const { port1, port2 } = new MessageChannel();
      const worker = new Worker(PROGRAM, {
        eval: true,
        workerData: { memory, control, thread, port: port2 },
        transferList: [port2],
        // A worker allocates nothing but argument arrays: a small young generation is enough.
        resourceLimits: { maxYoungGenerationSizeMb: 1 },
      });
      started.push({ worker, port: port1 });
      const stopped = (why: string) => {
        reject(new Error(why));
        if (!ending) onStop(why);
      };
      // Never removed: an error event without a listener ends the process.
      worker.on('error', error => stopped(error.message));
      worker.on('exit', code => stopped(`exit code ${code}`));
      worker.on('online', resolve);
    });
  try {
    await Promise.all(Array.from({ length: count }, (_, i) => start(i + 1)));
  } catch (cause) {
    await terminate();
    throw new DeviceError(
      `A worker thread of the wasm device did not start (${(cause as Error).message}). Use fewer threads.`,
      { cause },
    );
  }
  for (const { worker } of started) worker.unref();
  return {
    count,
    send(module, memory) {
      for (const { port } of started) port.postMessage({ module, memory });
    },
    errorOf: thread => receiveMessageOnPort(started[thread - 1].port)?.message ?? 'unknown error',
    terminate,
  };
}
