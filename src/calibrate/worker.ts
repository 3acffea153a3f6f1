/** The worker thread: runs the tasks that it receives, one at a time, and replies to each. */
import { parentPort } from 'node:worker_threads';
import { KvasirError } from '../util/errors.ts';
import { type Tasks, tasks } from './tasks.ts';

export interface TaskMessage {
  id: number;
  name: keyof Tasks;
  request: never;
}

export interface TaskReply {
  id: number;
  result?: unknown;
  /** Error classes are lost between threads, so a flag says whether it was a KvasirError. */
  error?: { message: string; isKvasirError: boolean };
}

parentPort?.on('message', ({ id, name, request }: TaskMessage) => {
  const reply: TaskReply = { id };
  try {
    reply.result = tasks[name](request);
  } catch (error) {
    reply.error = { message: (error as Error).message, isKvasirError: error instanceof KvasirError };
  }
  parentPort?.postMessage(reply);
});
