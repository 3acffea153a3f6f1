/** Measures the plans that the results do not have yet, and stores them after every group of plans. */
import { parseSpec } from '../../src/codec/spec.ts';
import type { Engine } from '../../src/engine/engine.ts';
import { measureDivergence } from '../../src/eval/divergence.ts';
import { createPlan, type Plan, type PlanShape, planBytes } from '../../src/plan/plan.ts';
import type { Profile } from '../../src/plan/profile.ts';
import { DeviceError, KvasirError, ShapeError, UnsupportedError } from '../../src/util/errors.ts';
import { findMeasurements, type PlanKey, planId, type Results, round } from './results.ts';
import type { Section } from './suite.ts';
import type { Text } from './texts.ts';

/** Plans that run through a row together and share its f16 reference, limited so that their caches stay small. */
export const MAX_GROUP = { plans: 8, bytes: 2 ** 30 };

export interface Measuring {
  results: Results;
  texts: readonly Text[];
  context: number;
  signal: AbortSignal;
  /** Stores the results. */
  save(): Promise<void>;
  /** Called with the number of evaluations that are done, including part of the current one. */
  onProgress(evaluations: number): void;
  /** A plan that cannot be measured, and why. */
  onFailed(message: string): void;
}

/** A row of a text with plans that were not measured on it. */
export interface Job {
  text: string;
  row: number;
  pageTokens: number;
  plans: PlanKey[];
}

/** Row by row over all texts, so that an interrupted run has measured every text; one page size after the other. */
export function pendingJobs(sections: readonly Section[], results: Results): Job[] {
  const jobs = new Map<string, Job>();
  const seen = new Set<string>();
  for (const { entries, texts, rows } of sections) {
    for (const { plan } of entries) {
      if (results.refused[planId(plan)] !== undefined) continue;
      for (const text of texts) {
        const done = new Set(findMeasurements(results, plan, text, rows).map(({ row }) => row));
        for (let row = 0; row < rows; row++) {
          const id = [row, text, planId(plan)].join(' ');
          if (done.has(row) || seen.has(id)) continue;
          seen.add(id);
          const { pageTokens } = plan;
          const key = [pageTokens, row, text].join(' ');
          const job = jobs.get(key) ?? { text, row, pageTokens, plans: [] };
          job.plans.push(plan);
          jobs.set(key, job);
        }
      }
    }
  }
  return [...jobs.values()].sort((a, b) => b.pageTokens - a.pageTokens || a.row - b.row);
}

export const countPlans = (jobs: readonly Job[]): number => jobs.reduce((sum, { plans }) => sum + plans.length, 0);

/** Creates each plan once: devices keep compiled kernels and tables per codec. */
export class Plans {
  readonly #plans = new Map<string, Plan>();
  readonly #shape: PlanShape;
  readonly #profiles: ReadonlyMap<string, Profile>;

  constructor(shape: PlanShape, profiles: ReadonlyMap<string, Profile>) {
    this.#shape = shape;
    this.#profiles = profiles;
  }

  get(key: PlanKey): Plan {
    const id = planId(key);
    const plan =
      this.#plans.get(id) ??
      createPlan(parseSpec(key.kv), { ...this.#shape, pageTokens: key.pageTokens }, this.#profiles.get(key.profile));
    this.#plans.set(id, plan);
    return plan;
  }

  /** Why a plan cannot be created, in a few words for a table; undefined if it can. */
  refusal(key: PlanKey): string | undefined {
    try {
      this.get(key);
      return undefined;
    } catch (error) {
      if (error instanceof UnsupportedError) return 'not calibrated';
      if (error instanceof ShapeError) return `not for heads of ${this.#shape.headDim} dims`;
      throw error;
    }
  }
}

export async function runJobs(engine: Engine, jobs: readonly Job[], plans: Plans, measuring: Measuring): Promise<void> {
  const groups = jobs.flatMap(job => splitGroups(job, plans, measuring.context));
  let done = 0;
  for (const job of groups) {
    const onProgress = (share: number) => measuring.onProgress(done + share * job.plans.length);
    try {
      await runGroup(engine, job, plans, { ...measuring, onProgress });
      done += job.plans.length;
    } catch (error) {
      if (!(error instanceof KvasirError) || error instanceof DeviceError) throw error;
      // One plan that fails must not cost the others their measurement.
      if (job.plans.length > 1) groups.push(...job.plans.map(plan => ({ ...job, plans: [plan] })));
      else measuring.onFailed(`${planId(job.plans[0])}: ${error.message}`);
    }
    if (measuring.signal.aborted) return;
  }
}

function splitGroups(job: Job, plans: Plans, context: number): Job[] {
  const groups: PlanKey[][] = [];
  let bytes = 0;
  for (const key of job.plans) {
    const size = planBytes(plans.get(key), context);
    const group = groups.at(-1);
    if (group && group.length < MAX_GROUP.plans && bytes + size <= MAX_GROUP.bytes) {
      group.push(key);
      bytes += size;
    } else {
      groups.push([key]);
      bytes = size;
    }
  }
  return groups.map(group => ({ ...job, plans: group }));
}

async function runGroup(engine: Engine, job: Job, plans: Plans, measuring: Measuring): Promise<void> {
  const { results, context, signal } = measuring;
  const { ids, skip } = measuring.texts.find(({ name }) => name === job.text)!;
  const rows = await measureDivergence(engine, ids, {
    plans: job.plans.map(key => plans.get(key)),
    context,
    skipRows: skip + job.row,
    rows: 1,
    signal,
    onProgress: ({ done, total }) => measuring.onProgress(done / total),
  });
  if (signal.aborted) return;
  const keys = [{ kv: 'f16', pageTokens: job.pageTokens, profile: '' }, ...job.plans];
  keys.forEach((key, i) => {
    const { bits, kld, top1, perplexity } = rows[i];
    if (i === 0 && findMeasurements(results, key, job.text, job.row + 1).some(({ row }) => row === job.row)) return;
    const numbers = { bits, kld: round(kld), top1: round(top1), perplexity: round(perplexity) };
    results.measurements.push({ text: job.text, row: job.row, ...key, ...numbers });
  });
  await measuring.save();
}
