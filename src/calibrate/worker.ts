/** A thread's whole program: runs the tasks that it is sent, one at a time, and answers each. */
import { parentPort } from 'node:worker_threads';
import { KvasirError } from '../errors.ts';
import { type Tasks, tasks } from './tasks.ts';

export interface Message {
  id: number;
  name: keyof Tasks;
  request: never;
}

export interface Answer {
  id: number;
  result?: unknown;
  /** Of an error: classes do not survive the way between threads. */
  error?: { message: string; own: boolean };
}

parentPort?.on('message', ({ id, name, request }: Message) => {
  const answer: Answer = { id };
  try {
    answer.result = tasks[name](request);
  } catch (error) {
    answer.error = { message: (error as Error).message, own: error instanceof KvasirError };
  }
  parentPort?.postMessage(answer);
});
