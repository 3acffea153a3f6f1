/** Bringing back the pages of a prompt while its request waits: fetching them from the tiers, or decoding spilled ones. */

export interface Prefetch {
  readonly progress: PrefetchProgress;
  /** Whether more may come. */
  readonly isActive: boolean;
  /** It has ended, and another attempt may find more: there was no room, or what was found has been evicted. */
  readonly isIncomplete: boolean;
  cancel(): void;
}

export interface PrefetchProgress {
  /** Pages that have arrived, and that may still come. */
  arrived: number;
  left: number;
  /** From the start to the last arrival, and since then, in ms. */
  arrivedMs: number;
  silentMs: number;
}

/** Of whoever does the work. */
export interface PrefetchState extends Prefetch {
  isActive: boolean;
  /** There was no room for the next page. */
  isBlocked: boolean;
  isCancelled: boolean;
  note(arrived: number, left: number): void;
  /** Waits for the work to end, and notes that. */
  end(work: Promise<void>, onChange: () => void): Promise<void>;
}

/** `isEvicted`: whether pages that were found are gone again. `now`: the clock, in ms. */
export function createPrefetchState(pages: number, isEvicted: () => boolean, now: () => number): PrefetchState {
  const started = now();
  let lastArrival = started;
  let counts = { arrived: 0, left: pages };
  return {
    isActive: pages > 0,
    isBlocked: false,
    isCancelled: false,
    get isIncomplete() {
      return !this.isActive && (this.isBlocked || isEvicted());
    },
    get progress() {
      return { ...counts, arrivedMs: lastArrival - started, silentMs: now() - lastArrival };
    },
    note(arrived, left) {
      counts = { arrived, left };
      lastArrival = now();
    },
    async end(work, onChange) {
      // The device is lost, or the model was disposed: the request itself will tell.
      await work.catch(() => {});
      this.isActive = false;
      onChange();
    },
    cancel() {
      this.isCancelled = true;
    },
  };
}

/** Resolves when a prefetch has ended, or at once if there is nothing to bring back. */
export function whenPrefetched(start: (onChange: () => void) => Prefetch | undefined): Promise<void> {
  return new Promise(resolve => {
    const noteChange = () => {
      if (!prefetch?.isActive) resolve();
    };
    const prefetch = start(noteChange);
    noteChange();
  });
}
