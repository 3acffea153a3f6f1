/** The plan of a model's cache: of a codec, of a memory budget, or of a preset. */

import { type ModelFile, planShape } from '../engine/engine.ts';
import type { FingerprintOptions } from '../engine/model-fingerprint.ts';
import { resolveProfile } from '../engine/profile.ts';
import { AUTO, choosePlan, parsePlanSpec } from '../plan/auto.ts';
import { type KvMode, type Plan, withMode } from '../plan/plan.ts';
import { type CacheChoice, choosePreset, DEFAULT_PRESET, presetSpecs } from '../plan/presets.ts';
import type { ProfileInput } from '../plan/profile-input.ts';
import type { ProfileSearch } from '../plan/profile-store.ts';

export interface PlanOptions extends CacheChoice, FingerprintOptions {
  context?: number;
  pageTokens?: number;
  kvMode?: KvMode;
  profile?: ProfileInput;
}

export async function resolvePlan(file: ModelFile, options: PlanOptions): Promise<ProfileSearch & { plan: Plan }> {
  const { quality: preset = DEFAULT_PRESET, contextMemory, context, pageTokens, profile: input } = options;
  const { kvMode = 'packed', signal, onProgress } = options;
  const implied = contextMemory === undefined ? undefined : AUTO;
  const spec = options.kv === undefined ? implied : parsePlanSpec(options.kv);
  const { withProfile, withoutProfile } = presetSpecs[preset];
  const found = await resolveProfile(file, [spec ?? withProfile ?? withoutProfile], input, { signal, onProgress });
  const shape = planShape(file, pageTokens);
  const plan =
    spec === undefined
      ? choosePreset(preset, shape, found.profile)
      : choosePlan(spec, shape, found.profile, { contextMemory, context, kvMode });
  return { ...found, plan: withMode(plan, kvMode) };
}
