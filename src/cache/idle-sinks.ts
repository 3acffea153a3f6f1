/** Sinks that are only kept for later prompts. Cached leaves and tails may share them, with each other and with sequences. */
import type { SharedBlock } from './pool.ts';

export interface IdleSinks {
  /** Bytes of those that nobody else holds. */
  readonly bytes: number;
  /** Notes that one more, or one less, cached leaf or tail has these sinks. */
  count(sinks: SharedBlock | undefined, change: 1 | -1): void;
}

export function createIdleSinks(): IdleSinks {
  const uses = new Map<SharedBlock, number>();
  return {
    get bytes() {
      let bytes = 0;
      for (const [{ holders, block }, count] of uses) if (holders === count) bytes += block.bytes;
      return bytes;
    },
    count(sinks, change) {
      if (!sinks) return;
      const count = (uses.get(sinks) ?? 0) + change;
      if (count > 0) uses.set(sinks, count);
      else uses.delete(sinks);
    },
  };
}
