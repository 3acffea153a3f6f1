/**
 * The cache is opened between two passes only: copying a sequence whose pass is being recorded would take away what that
 * pass has planned. Whoever runs one piece of work at a time hands each a pause, and opening asks for it.
 */
import { assert } from '../util/errors.ts';

declare const isPause: unique symbol;

/** Says that no pass is being recorded, until the work that it was handed to has ended. Only `withPause` makes one. */
export interface Pause {
  readonly isOver: boolean;
  readonly [isPause]: true;
}

export async function withPause<T>(work: (pause: Pause) => Promise<T>): Promise<T> {
  const pause = { isOver: false };
  try {
    return await work(pause as typeof pause & Pause);
  } finally {
    pause.isOver = true;
  }
}

export function checkPause({ isOver }: Pause): void {
  assert(!isOver, 'the cache was opened after its pause was over');
}
