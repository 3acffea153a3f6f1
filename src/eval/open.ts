/** Opens a model for an evaluation: its file, and the plans to compare. */
import { F16 } from '../codec/spec.ts';
import { type ModelFile, openModelFile, planShape } from '../engine/engine.ts';
import { resolveProfile } from '../engine/profile.ts';
import type { ModelInput } from '../model/input.ts';
import { AUTO, choosePlan, parsePlanSpec } from '../plan/auto.ts';
import { createPlan, presets } from '../plan/plan.ts';
import { choosePreset } from '../plan/presets.ts';
import type { ProfileInput } from '../plan/profile-input.ts';
import { rule } from '../util/rules.ts';

/** The rule of the option `kv`. */
export const specs = rule('an array of codec specs', value => Array.isArray(value) && value.length > 0);

export interface OpenForEvaluationOptions {
  /** Default: f16 and the presets. */
  kv?: readonly string[];
  profile?: ProfileInput;
  pageTokens?: number;
  memoryLimit?: number;
  /** Max tokens of a sequence. Default: what `loadModel` takes. */
  context?: number;
  signal?: AbortSignal;
}

export async function openForEvaluation(model: ModelInput, options: OpenForEvaluationOptions) {
  const { kv, profile: input, pageTokens, memoryLimit, context, signal } = options;
  const file: ModelFile = await openModelFile(model, { memoryLimit, context });
  try {
    const specs = kv?.map(parsePlanSpec);
    const { profile, notice } = await resolveProfile(file, specs ?? [AUTO], input, { signal });
    const shape = planShape(file, pageTokens);
    const plans = specs?.map(spec => choosePlan(spec, shape, profile)) ?? [
      createPlan(F16, shape),
      ...presets.map(preset => choosePreset(preset, shape, profile)),
    ];
    const notices = new Set([notice, ...plans.map(plan => plan.notice)].filter(text => text !== undefined));
    return { file, profile, plans, notices: [...notices] };
  } catch (error) {
    await file.gguf.close();
    throw error;
  }
}
