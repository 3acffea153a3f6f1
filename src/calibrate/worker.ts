/** The worker thread: runs the tasks that it receives, one at a time, and replies to each. */
import { parentPort } from 'node:worker_threads';
import { type ErrorMessage, encodeError } from '../util/error-message.ts';
import { type Tasks, tasks } from './tasks.ts';

export interface TaskMessage {
  id: number;
  name: keyof Tasks;
  request: never;
}

export interface TaskReply {
  id: number;
  result?: unknown;
  error?: ErrorMessage;
}

parentPort?.on('message', ({ id, name, request }: TaskMessage) => {
  const reply: TaskReply = { id };
  try {
    reply.result = tasks[name](request);
  } catch (error) {
    reply.error = encodeError(error);
  }
  parentPort?.postMessage(reply);
});
