/** Yielding to the event loop during long work on the main thread. */
import { platform } from './node.ts';

/** Work may block the event loop for this long. With the operation that follows, a block stays below 50 ms. */
const MAX_BLOCKING_MS = 12;

/** Lets timers, signals and sockets run. */
export const yieldToEventLoop = (): Promise<void> => platform.yieldToEventLoop();

/** Waits for the work, at most `ms` milliseconds. Its failure is ignored. */
export async function settleWithin(work: Promise<unknown>, ms: number): Promise<void> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const late = new Promise<void>(resolve => {
    timer = setTimeout(resolve, ms);
  });
  await Promise.race([work.catch(() => {}), late]);
  clearTimeout(timer);
}

export interface Yielder {
  /** Whether the event loop has been blocked for too long. */
  isDue(): boolean;
  yieldNow(): Promise<void>;
  /** Call it after yielding by other means. */
  noteYield(): void;
  /** The longest block so far, in ms. */
  longestBlock(): number;
}

export function createYielder(): Yielder {
  let lastYield = performance.now();
  let longest = 0;
  const blocked = () => performance.now() - lastYield;
  const noteYield = () => {
    lastYield = performance.now();
  };
  return {
    noteYield,
    isDue: () => blocked() > MAX_BLOCKING_MS,
    async yieldNow() {
      longest = Math.max(longest, blocked());
      await yieldToEventLoop();
      noteYield();
    },
    longestBlock: () => Math.max(longest, blocked()),
  };
}
