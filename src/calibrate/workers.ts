/** Threads that run tasks while the device reads on. With none, tasks run here. */
import { InputError } from '../errors.ts';
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
  const workers = Array.from({ length: threads }, () => {
    const worker = new Worker(new URL('./worker.js', import.meta.url));
    worker.on('message', ({ id, result, error }: Answer) => {
      const { resolve, reject } = waiting.get(id)!;
      waiting.delete(id);
      if (error) reject(error.own ? new InputError(error.message) : new Error(error.message));
      else resolve(result as never);
    });
    worker.on('error', error => {
      for (const { reject } of waiting.values()) reject(error);
    });
    return worker;
  });
  return {
    threads,
    run: (name, request, transfer) =>
      new Promise((resolve, reject) => {
        const id = next++;
        waiting.set(id, { resolve, reject });
        workers[id % threads].postMessage({ id, name, request }, transfer);
      }),
    async dispose() {
      await Promise.all(workers.map(worker => worker.terminate()));
    },
  };
}
