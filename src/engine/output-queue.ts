/** The tokens on their way from the scheduler to a reader: bounded, so that a reader that stops reading stops its request. */

/** Tokens that may wait for their reader. */
const MAX_WAITING = 64;

export interface OutputQueue<T> extends AsyncIterable<T> {
  /** Whether the reader has fallen behind. */
  readonly isFull: boolean;
  push(value: T): void;
  /** Ends the queue: the reader gets what is left, then the error, if there is one. */
  end(error?: unknown): void;
}

/** `onDrained`: the queue was full, and the reader has read half of it. */
export function createOutputQueue<T>(onDrained: () => void): OutputQueue<T> {
  const values: T[] = [];
  let isFull = false;
  let ended = false;
  let error: unknown;
  let notify: () => void = () => {};
  return {
    get isFull() {
      return isFull;
    },
    push(value) {
      values.push(value);
      isFull ||= values.length >= MAX_WAITING;
      notify();
    },
    end(cause) {
      ended = true;
      error = cause;
      notify();
    },
    async *[Symbol.asyncIterator]() {
      for (;;) {
        while (values.length > 0) {
          const value = values.shift()!;
          if (isFull && values.length <= MAX_WAITING / 2) {
            isFull = false;
            onDrained();
          }
          yield value;
        }
        if (error !== undefined) throw error;
        if (ended) return;
        await new Promise<void>(resolve => {
          notify = resolve;
        });
      }
    },
  };
}
