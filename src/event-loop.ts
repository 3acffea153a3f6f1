/** Long work on the main thread, and the timers, signals and sockets that wait for it. */

/** Work shorter than this is not interrupted, in ms. With the operation that comes on top it stays below 50. */
const PATIENCE = 12;

/** Lets timers, signals and sockets have their turn. */
export const eventLoop = (): Promise<void> =>
  new Promise(resolve => (typeof setImmediate === 'function' ? setImmediate(resolve) : setTimeout(resolve)));

export interface Turns {
  /** Whether the event loop has waited long enough. */
  due(): boolean;
  take(): Promise<void>;
  /** The event loop had its turn, by somebody else's waiting. */
  taken(): void;
  /** The longest wait so far, in ms. */
  longest(): number;
}

export function createTurns(): Turns {
  let since = performance.now();
  let longest = 0;
  const waited = () => performance.now() - since;
  const taken = () => {
    since = performance.now();
  };
  return {
    taken,
    due: () => waited() > PATIENCE,
    async take() {
      longest = Math.max(longest, waited());
      await eventLoop();
      taken();
    },
    longest: () => Math.max(longest, waited()),
  };
}
