/** How much of a prompt has been read, among the events of its answer. */

export interface PromptProgress {
  processed: number;
  total: number;
  time_ms: number;
}

export interface ProgressChannel {
  report(progress: { done: number; total: number }): void;
  /** The events, and between them the newest progress. Progress that was not read in time is left out. */
  merge<T>(events: AsyncGenerator<T, void, void>): AsyncGenerator<T | { progress: PromptProgress }, void, void>;
}

export function createProgressChannel(): ProgressChannel {
  const started = performance.now();
  let newest: PromptProgress | undefined;
  let wake = () => {};
  return {
    report({ done, total }) {
      newest = { processed: done, total, time_ms: Math.round(performance.now() - started) };
      wake();
    },
    async *merge(events) {
      let next = events.next();
      next.catch(() => {});
      try {
        for (;;) {
          const reported = new Promise<void>(resolve => {
            wake = resolve;
          });
          const read = newest ? undefined : await Promise.race([next, reported]);
          if (read?.done) return;
          if (read) {
            next = events.next();
            // It may fail before the reader comes back, who gets the error then.
            next.catch(() => {});
            yield read.value;
          } else if (newest) {
            const progress = newest;
            newest = undefined;
            yield { progress };
          }
        }
      } finally {
        await events.return();
      }
    },
  };
}
