/** What the advisor does every half second: it learns from the events, and publishes which leaves to evict next. */
import { SOURCES } from '../eviction.ts';
import { createKvGraph, LEAF_TIERS } from './kv-graph.ts';
import { BATCH, EVENT, openAdvisorSide } from './shared-memory.ts';

/** Reading events stops after so long: a cycle takes less than 50 ms. The rest is read in the next one. */
const MAX_READ_MS = 25;
/** Events between two looks at the clock. */
const EVENTS_PER_CHECK = 64;

export interface AdvisorCycle {
  /** Returns whether it has read all events. */
  run(): boolean;
  sleep(ms: number): void;
}

export function createAdvisorCycle(memory: SharedArrayBuffer): AdvisorCycle {
  const side = openAdvisorSide(memory);
  const graph = createKvGraph();
  const apply = (kind: number, key: number, value: number) => {
    if (kind === EVENT.use) graph.noteUse(key, value);
    else if (kind === EVENT.idle) graph.noteIdle(key, value);
    else if (kind === EVENT.source) graph.noteSource(key, SOURCES[value]);
    else graph.noteMove(key, LEAF_TIERS[value]);
  };
  return {
    run() {
      const started = performance.now();
      let events = 0;
      const isDue = () => ++events % EVENTS_PER_CHECK === 0 && performance.now() - started > MAX_READ_MS;
      const isDone = side.read(apply, isDue);
      const next = graph.suggestEviction(BATCH);
      side.publish(next, graph, Date.now(), performance.now() - started);
      return isDone;
    },
    sleep: side.sleep,
  };
}
