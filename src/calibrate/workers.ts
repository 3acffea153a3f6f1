/** Worker threads for CPU tasks, so that the device does not wait. With 0 threads, tasks run in the caller's thread. */
import { decodeError } from '../util/error-message.ts';
import { DeviceError, KvasirError } from '../util/errors.ts';
import { type Tasks, tasks } from './tasks.ts';
import type { TaskReply } from './worker.ts';

export interface Workers {
  /** Number of tasks that run at the same time. */
  readonly threads: number;
  /** Runs a task. The buffers in `transfer` move to the thread and cannot be used afterwards. */
  run<Name extends keyof Tasks>(
    name: Name,
    request: Parameters<Tasks[Name]>[0],
    transfer: ArrayBuffer[],
  ): Promise<ReturnType<Tasks[Name]>>;
  /** Stops all threads; running tasks are lost. */
  dispose(): Promise<void>;
}

interface PendingTask {
  resolve(result: never): void;
  reject(error: Error): void;
}

export async function createWorkers(threads: number): Promise<Workers> {
  if (threads === 0)
    return { threads: 1, run: async (name, request) => tasks[name](request as never) as never, async dispose() {} };

  const { Worker } = await import('node:worker_threads');
  const pending = new Map<number, PendingTask>();
  let next = 0;
  let failure: DeviceError | undefined;
  const terminate = () => Promise.all(workers.map(worker => worker.terminate()));
  /** If one thread stops, its tasks are lost, so all threads stop. */
  const fail = (why: string) => {
    if (failure) return;
    failure = new DeviceError(
      `A calibration thread stopped (${why}). Run calibration again: it continues where it stopped.`,
    );
    void terminate();
    for (const { reject } of pending.values()) reject(failure);
    pending.clear();
  };
  const workers = Array.from({ length: threads }, () => {
    const worker = new Worker(new URL('./worker.js', import.meta.url));
    worker.on('message', ({ id, result, error }: TaskReply) => {
      const task = pending.get(id);
      pending.delete(id);
      if (!error) return task?.resolve(result as never);
      const failure = decodeError(error);
      task?.reject(failure instanceof KvasirError ? failure : new DeviceError(taskFailed(failure.message)));
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
        pending.set(id, { resolve, reject });
        workers[id % threads].postMessage({ id, name, request }, transfer);
      }),
    async dispose() {
      failure ??= new DeviceError('The calibration threads were disposed.');
      await terminate();
    },
  };
}

const taskFailed = (why: string) =>
  `A calibration task failed (${why}). Run calibration again: it continues where it stopped.`;
