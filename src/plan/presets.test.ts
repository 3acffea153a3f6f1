import { fileURLToPath } from 'node:url';
import { beforeAll, describe, expect, it } from 'vitest';
import { type PlanShape, type Preset, planShapeOf, presets } from './plan.ts';
import { choosePreset } from './presets.ts';
import type { Profile } from './profile.ts';
import { readProfile } from './profile-store.ts';

let profile: Profile;
let shape: PlanShape;

beforeAll(async () => {
  profile = await readProfile(fileURLToPath(new URL('../../models/mimir.kvprofile', import.meta.url)));
  shape = planShapeOf(profile.shape);
});

describe('the presets', () => {
  it.each<[Preset, string, string]>([
    ['safe', 'q8_0', 'q8_0'],
    ['balanced', 'tq4', 'auto-mead:3'],
    ['small', 'tq3', 'auto-mead:2'],
  ])('%s is %s without a profile, and %s with one', (preset, without, withOne) => {
    expect(choosePreset(preset, shape)).toMatchObject({ preset, spec: without, predicted: undefined });
    expect(choosePreset(preset, shape, profile)).toMatchObject({ preset, spec: withOne });
  });

  it('have fewer bits from one to the next, and more expected divergence', () => {
    const [safe, balanced, small] = presets.map(preset => choosePreset(preset, shape, profile));
    expect(safe.bits).toBeGreaterThan(balanced.bits);
    expect([balanced.bits, small.bits]).toEqual([expect.closeTo(3, 1), expect.closeTo(2, 1)]);
    expect(balanced.predicted!).toBeLessThan(small.predicted!);
  });

  it('are the same as without a profile, if nothing was measured for it', () => {
    const unmeasured = { ...profile, sensitivities: {}, measurements: [] };
    const specs = presets.map(preset => choosePreset(preset, shape, unmeasured).spec);
    expect(specs).toEqual(['q8_0', 'tq4', 'tq3']);
  });

  it('take the codec that was measured best at their bits, and what calibration measured of any', () => {
    const measurements = [
      { kv: 'q8_0', bits: 8.5, kld: 1e-4 },
      { kv: 'tq2', bits: 2.25, kld: 1e-6 },
    ];
    const measured = { ...profile, measurements };
    expect(choosePreset('balanced', shape, measured)).toMatchObject({ spec: 'tq2', predicted: 1e-6 });
    expect(choosePreset('safe', shape, measured)).toMatchObject({ spec: 'q8_0', predicted: 1e-4 });
  });

  it('give no notice', () => {
    for (const known of [undefined, profile])
      for (const preset of presets) expect(choosePreset(preset, shape, known).notice).toBeUndefined();
  });

  it('safe is f16 if the head dimension is no multiple of the blocks of q8_0', () => {
    expect(choosePreset('safe', { ...shape, headDim: 80 }).spec).toBe('f16');
  });
});
