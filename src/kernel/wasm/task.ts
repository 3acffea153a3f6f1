/** Kernels that a pool runs in chunks. */
import { orderArgs, type Signature, signature } from './module.ts';

/** What the pool passes to a kernel after the arguments of its task. */
export interface Chunk {
  chunk: number;
  chunks: number;
  thread: number;
}

/** The signature of a kernel with these parameters and those of a `Chunk`. */
export const chunked = <P extends string>(name: string, ...params: P[]): Signature<P | keyof Chunk> =>
  signature<P | keyof Chunk>(name, ...params, 'chunk', 'chunks', 'thread');

export interface Task {
  kernel: string;
  chunks: number;
  args: readonly number[];
}

export type TaskArgs<P extends string> = Record<Exclude<P, keyof Chunk>, number>;

export function task<P extends string>({ name, params }: Signature<P>, chunks: number, args: TaskArgs<P>): Task {
  const own = params.slice(0, -3) as Exclude<P, keyof Chunk>[];
  return { kernel: name, chunks, args: orderArgs({ name, params: own }, args) };
}
