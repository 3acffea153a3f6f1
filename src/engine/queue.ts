/** One piece of work at a time, in the order in which it was given: all of it shares the activations of a device. */
import { type Pause, withPause } from '../cache/pause.ts';

export type Exclusive = <T>(work: (pause: Pause) => Promise<T>) => Promise<T>;

export function createQueue(): Exclusive {
  let last: Promise<unknown> = Promise.resolve();
  return work => {
    const result = last.then(() => withPause(work));
    last = result.catch(() => {});
    return result;
  };
}
