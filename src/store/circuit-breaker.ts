/**
 * A circuit breaker: after several failures in a row nothing is tried for a while, so that a server that is down costs no
 * time. Then one call is let through; if it fails as well, the pause doubles.
 */
export interface CircuitBreaker {
  /** Whether a call may be made now. */
  allows(): boolean;
  noteSuccess(): void;
  noteFailure(): void;
}

const MAX_FAILURES = 3;
const FIRST_PAUSE_MS = 250;
const MAX_PAUSE_MS = 30_000;

export function createCircuitBreaker(now: () => number = () => performance.now()): CircuitBreaker {
  let failures = 0;
  let pauseMs = FIRST_PAUSE_MS;
  let closedUntil = 0;
  return {
    allows() {
      if (failures < MAX_FAILURES) return true;
      if (now() < closedUntil) return false;
      // Only this one, until it is known how it went.
      closedUntil = now() + pauseMs;
      return true;
    },
    noteSuccess() {
      failures = 0;
      pauseMs = FIRST_PAUSE_MS;
    },
    noteFailure() {
      failures++;
      if (failures < MAX_FAILURES) return;
      closedUntil = now() + pauseMs;
      pauseMs = Math.min(2 * pauseMs, MAX_PAUSE_MS);
    },
  };
}
