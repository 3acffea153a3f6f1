/** Notices a service that hangs, such as in an endless GPU call: it is asked for a sign of life while answers are waited for. */

export interface Watchdog {
  /** Told whether answers are waited for. */
  setActive(isActive: boolean): void;
}

interface WatchdogOptions {
  /** Resolves when the service has done what it was given so far. */
  ping(): Promise<unknown>;
  onHang(limitMs: number): void;
}

/** A limit is this many checks. They are counted, since this process may have been suspended itself. */
const CHECKS = 8;

/** Without a limit, it does nothing. */
export function createWatchdog(limitMs: number | undefined, { ping, onHang }: WatchdogOptions): Watchdog {
  let timer: ReturnType<typeof setInterval> | undefined;
  let isAsking = false;
  let checks = 0;

  const check = (limit: number) => {
    if (isAsking) {
      if (++checks === CHECKS) onHang(limit);
      return;
    }
    isAsking = true;
    checks = 0;
    const answered = () => {
      isAsking = false;
    };
    // A service that answers with an error does not hang.
    ping().then(answered, answered);
  };

  return {
    setActive(isActive) {
      clearInterval(timer);
      timer = isActive && limitMs !== undefined ? setInterval(check, limitMs / CHECKS, limitMs) : undefined;
    },
  };
}
