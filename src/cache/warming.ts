/** The state of fetching or decoding pages of a prompt in the background, while its request waits. */

export interface Warming {
  readonly progress: WarmingProgress;
  /** Whether more may come. */
  readonly isActive: boolean;
  /** It has ended, and another attempt may find more: there was no room, or what was found has been evicted. */
  readonly isIncomplete: boolean;
  cancel(): void;
}

export interface WarmingProgress {
  /** Pages that have arrived, and that may still come. */
  arrived: number;
  left: number;
  /** From the start to the last arrival, and since then, in ms. */
  arrivedMs: number;
  silentMs: number;
}

/** Of whoever does the work. */
export interface WarmingState extends Warming {
  isActive: boolean;
  /** There was no room for the next page. */
  isBlocked: boolean;
  isCancelled: boolean;
  note(arrived: number, left: number): void;
}

/** `isEvicted`: whether pages that were found are gone again. `now`: the clock, in ms. */
export function createWarmingState(pages: number, isEvicted: () => boolean, now: () => number): WarmingState {
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
    cancel() {
      this.isCancelled = true;
    },
  };
}

/** Resolves when a warming has ended, or at once if there is nothing to warm. */
export function whenWarm(start: (onChange: () => void) => Warming | undefined): Promise<void> {
  return new Promise(resolve => {
    const noteChange = () => {
      if (!warming?.isActive) resolve();
    };
    const warming = start(noteChange);
    noteChange();
  });
}
