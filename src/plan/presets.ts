/**
 * The presets in front of the codecs: how much quality, for how many bits. With a profile, the plan of these bits that it
 * expects the least divergence of; without one, a codec that needs no calibration.
 */
import { F16, type KvSpec, specOf } from '../codec/spec.ts';
import { InputError } from '../util/errors.ts';
import { AUTO, choosePlan, type PlanSpec } from './auto.ts';
import { supportsShape } from './default-codecs.ts';
import type { Plan, PlanShape, Preset } from './plan.ts';
import type { Profile } from './profile.ts';

/** What is used if neither a codec nor a preset is given. */
export const DEFAULT_PRESET: Preset = 'balanced';

interface PresetSpecs {
  withProfile?: PlanSpec;
  withoutProfile: KvSpec;
}

export const presetSpecs: Readonly<Record<Preset, PresetSpecs>> = {
  // More bits than calibration could improve on.
  safe: { withoutProfile: specOf('q8_0') },
  balanced: { withProfile: { ...AUTO, bits: 3 }, withoutProfile: specOf('tq4') },
  small: { withProfile: { ...AUTO, bits: 2 }, withoutProfile: specOf('tq3') },
};

export function choosePreset(preset: Preset, shape: PlanShape, profile?: Profile): Plan {
  const { withProfile, withoutProfile } = presetSpecs[preset];
  const recommended = profile && withProfile ? choosePlan(withProfile, shape, profile) : undefined;
  // A profile that nothing was measured for (`--probe-tokens 0`) recommends nothing.
  if (recommended?.predicted !== undefined) return { ...recommended, preset };
  // q8_0 has blocks of 32 values, which not every head dimension is a multiple of.
  const spec = supportsShape(withoutProfile, shape) ? withoutProfile : F16;
  return { ...choosePlan(spec, shape, profile), preset };
}

/** What chooses the codec of a cache: a spec, a preset, or the memory that it may take. */
export interface CacheChoice {
  kv?: string;
  quality?: Preset;
  contextMemory?: number;
}

/** Throws if a preset is combined with something else that chooses the codec. */
export function checkCacheChoice({ kv, quality, contextMemory }: CacheChoice): void {
  if (quality === undefined) return;
  if (kv === undefined && contextMemory === undefined) return;
  throw new InputError(
    option => {
      const preset = option('quality', quality);
      const [other, choice] =
        kv === undefined ? [option('contextMemory'), 'what fits'] : [option('kv', kv), 'this codec'];
      return (
        `${other} and ${preset} both choose the codec of the cache. ` +
        `Drop ${preset} to use ${choice}, or ${other} to use the preset.`
      );
    },
    { option: 'quality' },
  );
}
