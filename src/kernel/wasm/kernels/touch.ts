/**
 * Memory that is read next is touched while a loop is busy with something else, so that it is in the cache by then. The
 * machine looks ahead by itself, but begins anew with every block of a page.
 */
import { type I32, i32 } from '../emit.ts';
import type { Kernel } from '../module.ts';

/** What is read next. */
export interface Ahead {
  at: I32;
  bytes: number;
}

const LINE = 64;

/** Gives code for each of a loop's turns. */
export function touch(k: Kernel, ahead: Ahead | undefined, turns: number): () => void {
  if (!ahead) return () => {};
  const step = Math.floor(ahead.bytes / turns);
  const at = k.i32(ahead.at);
  return () => {
    for (let offset = 0; offset < step; offset += LINE) k.do(i32.touch(at, offset));
    k.increment(at, step);
  };
}
