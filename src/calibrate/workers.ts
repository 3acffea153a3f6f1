/** Threads that run tasks while the device reads on. With none, tasks run here. */
import { DeviceError, InputError } from '../errors.ts';
import { type Tasks, tasks } from './tasks.ts';
import type { Answer } from './worker.ts';

export interface Workers {
  /** How many tasks run at a time. */
  readonly threads: number;
  /** The buffers in `transfer` go to the thread, and are gone here. */
  run<Name extends keyof Tasks>(
    name: Name,
    request: Parameters<Tasks[Name]>[0],
    transfer: ArrayBuffer[],
  ): Promise<ReturnType<Tasks[Name]>>;
  /** Tasks that still run are given up. */
  dispose(): Promise<void>;
}

interface Waiting {
  resolve(result: never): void;
  reject(error: Error): void;
}

export async function createWorkers(threads: number): Promise<Workers> {
  if (threads === 0)
    return { threads: 1, run: async (name, request) => tasks[name](request as never) as never, async dispose() {} };

  const { Worker } = await import('node:worker_threads');
  const waiting = new Map<number, Waiting>();
  let next = 0;
  let failure: DeviceError | undefined;
  const terminate = () => Promise.all(workers.map(worker => worker.terminate()));
  /** One thread that stops ends them all: its tasks are lost. */
  const fail = (why: string) => {
    if (failure) return;
    failure = new DeviceError(`A calibration thread stopped (${why}). Run it again: what is done is kept.`);
    void terminate();
    for (const { reject } of waiting.values()) reject(failure);
    waiting.clear();
  };
  const workers = Array.from({ length: threads }, () => {
    const worker = new Worker(new URL('./worker.js', import.meta.url));
    worker.on('message', ({ id, result, error }: Answer) => {
      const task = waiting.get(id);
      waiting.delete(id);
      if (!error) task?.resolve(result as never);
      else task?.reject(error.own ? new InputError(error.message) : new DeviceError(taskFailed(error.message)));
    });
    worker.on('error', error => fail(error.message));
    worker.on('exit', code => fail(`exit code ${code}`));
    return worker;
  });
  return {
    threads,
    run: (name, request, transfer) =>
      new Promise((resolve, reject) => {
        if (failure) throw failure;
        const id = next++;
        waiting.set(id, { resolve, reject });
        workers[id % threads].postMessage({ id, name, request }, transfer);
      }),
    async dispose() {
      failure ??= new DeviceError('The calibration threads are disposed.');
      await terminate();
    },
  };
}

const taskFailed = (why: string) => `A calibration task failed (${why}). Run it again: what is done is kept.`;
