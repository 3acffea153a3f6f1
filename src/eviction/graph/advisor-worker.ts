/** The advisor's thread. */
import { workerData } from 'node:worker_threads';
import { createAdvisorCycle } from './advisor-cycle.ts';

const CYCLE_MS = 500;

const cycle = createAdvisorCycle(workerData as SharedArrayBuffer);
for (;;) {
  if (cycle.run()) cycle.sleep(CYCLE_MS);
}
