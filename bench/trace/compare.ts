import { type Replay, replayTrace, type TraceRequest } from './replay.ts';

export interface TraceRow extends Replay {
  capacity: number;
  /** (hits - LRU's) / (Belady's - LRU's); null where they are equal. */
  gapClosed: number | null;
}

/** Replays a trace with each policy at each capacity. LRU and Belady always run: they are the scale. */
export function comparePolicies(
  trace: readonly TraceRequest[],
  capacities: readonly number[],
  policies: readonly string[],
): TraceRow[] {
  return capacities.flatMap(capacity => {
    const replays = new Map<string, Replay>();
    for (const name of new Set(['lru', 'belady', ...policies])) replays.set(name, replayTrace(trace, capacity, name));
    const [lru, belady] = [replays.get('lru')!.hits, replays.get('belady')!.hits];
    return policies.map(name => {
      const replay = replays.get(name)!;
      const gapClosed = belady === lru ? null : (replay.hits - lru) / (belady - lru);
      return { capacity, ...replay, gapClosed };
    });
  });
}
