/**
 * Schemas come with requests, and all other answers wait while one is compiled or checked. What that takes is counted, in
 * steps of about 0.1 µs, and limited.
 */

/** Counts steps. Throws when there were too many. */
export type Spend = (steps: number) => void;

/** The steps that are left for the schemas of one request. */
export interface WorkBudget {
  steps: number;
}

/** Some tens of milliseconds. Large real schemas take a tenth of it. */
const MAX_STEPS = 400_000;

export const createWorkBudget = (steps = MAX_STEPS): WorkBudget => ({ steps });

/** A share of what is left, so that one schema does not take what the others need. */
export function spendHalf(budget: WorkBudget, refuse: () => never): Spend {
  const reserve = budget.steps / 2;
  return steps => {
    budget.steps -= steps;
    if (budget.steps < reserve) refuse();
  };
}
