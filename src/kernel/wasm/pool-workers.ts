/** The worker threads of a pool: their program, and the control block in shared memory that coordinates them. */

import { platform } from '../../platform/node.ts';
import type { Thread } from '../../platform/platform.ts';
import { DeviceError } from '../../util/errors.ts';

/** Max tasks per job. */
export const MAX_TASKS = 32;
export const TASK_WORDS = 26;

/** Indices of the control block's words. */
export const EPOCH = 0; // counts jobs
export const OPEN_JOB = 1; // the job that may be joined, 0 for none
export const ACTIVE_WORKERS = 2; // workers inside the job
export const NEXT_CHUNK = 3; // the next chunk to claim
export const FAILED_THREAD = 4; // a worker whose kernel trapped, 0 for none
export const MAIN_WAITING = 5; // 1 while the main thread sleeps and must be notified
export const TASK_COUNT = 6; // number of tasks in the job
export const FIRST_TASK = 7; // the first task: kernel, chunks, number of arguments, arguments
const ERROR_LENGTH = FIRST_TASK + MAX_TASKS * TASK_WORDS; // of the failed thread's error, in UTF-16 units
const ERROR_TEXT = ERROR_LENGTH + 1; // one unit per word
const MAX_ERROR_LENGTH = 200;
export const CONTROL_WORDS = ERROR_TEXT + MAX_ERROR_LENGTH;

/** Instead of a kernel index: every worker leaves its loop to receive messages. */
export const RECEIVE_MESSAGES = -1;

/** Polls before a thread sleeps: a fraction of a millisecond. */
export const MAX_SPINS = 20000;

/**
 * The program of a worker. The first message has the control block; each later one a module and its memory. Between
 * messages the worker runs jobs and receives none.
 */
const PROGRAM = `
const kernels = [];
let control, thread;
let seen = 0;
onMessage(message => {
  let error;
  try {
    if (message.module) {
      const { exports } = new WebAssembly.Instance(message.module, { env: { memory: message.memory } });
      kernels.push(...Object.values(exports));
    } else {
      control = new Int32Array(message.memory.buffer, message.control, ${CONTROL_WORDS});
      thread = message.thread;
    }
  } catch (cause) {
    error = cause.message;
  }
  post(error);
  if (error === undefined) runJobs();
});
const wake = word => Atomics.load(control, ${MAIN_WAITING}) && Atomics.notify(control, word);
function runJobs() {
  for (let leave = false; !leave; ) {
    let spins = 0;
    while (Atomics.load(control, ${EPOCH}) === seen) if (++spins > ${MAX_SPINS}) Atomics.wait(control, ${EPOCH}, seen, 1000);
    seen = Atomics.load(control, ${EPOCH});
    Atomics.add(control, ${ACTIVE_WORKERS}, 1);
    if (Atomics.load(control, ${OPEN_JOB}) === seen) {
      leave = control[${FIRST_TASK}] === ${RECEIVE_MESSAGES};
      try {
        if (!leave) runTasks();
      } catch (error) {
        if (Atomics.compareExchange(control, ${FAILED_THREAD}, 0, thread) === 0) describe(error.message);
      }
    }
    Atomics.sub(control, ${ACTIVE_WORKERS}, 1);
    wake(${ACTIVE_WORKERS});
  }
}
function runTasks() {
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
function describe(text) {
  control[${ERROR_LENGTH}] = Math.min(text.length, ${MAX_ERROR_LENGTH});
  for (let i = 0; i < control[${ERROR_LENGTH}]; i++) control[${ERROR_TEXT} + i] = text.charCodeAt(i);
}
`;

/** What the worker that set FAILED_THREAD wrote. */
export function readError(control: Int32Array): string {
  return String.fromCharCode(...control.subarray(ERROR_TEXT, ERROR_TEXT + control[ERROR_LENGTH]));
}

export interface PoolWorkers {
  /** Instantiates a module on every worker. All must have left their loops, by a RECEIVE_MESSAGES job. */
  load(module: WebAssembly.Module, memory: WebAssembly.Memory): Promise<void>;
  terminate(): Promise<void>;
}

/** Starts threads 1 to `count`. `onStop` is called when one ends before `terminate`. */
export async function startWorkers(
  memory: WebAssembly.Memory,
  control: number,
  count: number,
  onStop: (why: string) => void,
): Promise<PoolWorkers> {
  const threads: Thread[] = [];
  const terminate = async () => {
    await Promise.all(threads.map(thread => thread.terminate()));
  };
  const ask = async (thread: Thread, message: unknown) => {
    const error = await thread.ask(message);
    if (error !== undefined) throw new Error(String(error));
  };
  try {
    while (threads.length < count) threads.push(platform.startThread(PROGRAM, onStop));
    await Promise.all(threads.map((thread, i) => ask(thread, { memory, control, thread: i + 1 })));
  } catch (cause) {
    await terminate();
    throw new DeviceError(
      `A worker thread of the wasm device did not start (${(cause as Error).message}). Use fewer threads.`,
      { cause },
    );
  }
  return {
    async load(module, memory) {
      await Promise.all(threads.map(thread => ask(thread, { module, memory })));
    },
    terminate,
  };
}
