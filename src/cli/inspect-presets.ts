/** Part of `kvasir inspect MODEL`: the presets of its cache. */
import { type ModelFile, planShape } from '../engine/engine.ts';
import { maxTokensIn, planBytes, presets } from '../plan/plan.ts';
import { choosePreset } from '../plan/presets.ts';
import type { Profile } from '../plan/profile.ts';
import { formatBytes, formatCount } from '../util/units.ts';
import { NO_PROFILE } from './inspect-layers.ts';
import { formatShort, formatTable } from './table.ts';

/** `room`: bytes for the cache. */
export const comparePresets = (file: ModelFile, context: number, room: number, profile?: Profile) =>
  presets.map(preset => {
    const plan = choosePreset(preset, planShape(file), profile);
    const { spec: kv, bits, predicted, notice } = plan;
    return { preset, kv, bits, bytes: planBytes(plan, context), maxTokens: maxTokensIn(plan, room), predicted, notice };
  });

export function presetTable(rows: ReturnType<typeof comparePresets>, room: number, hasProfile: boolean): string[] {
  const unknown = hasProfile ? 'not in the profile' : 'not known';
  return [
    formatTable(
      ['preset', 'cache', 'bits per value', 'bytes', 'max tokens', 'expected divergence'],
      rows.map(({ preset, kv, bits, bytes, maxTokens, predicted }) => [
        preset,
        kv,
        bits.toFixed(3),
        formatBytes(bytes),
        formatCount(maxTokens),
        predicted === undefined ? unknown : formatShort(predicted),
      ]),
    ),
    '',
    `max tokens: of one sequence in ${formatBytes(room)}, the memory beside the weights.`,
    hasProfile
      ? 'expected divergence: Kullback-Leibler from f16 in nats per token, on text like the calibration text.'
      : `The expected divergence is ${NO_PROFILE}`,
    'balanced is the default; --quality shows another one layer by layer.',
    ...new Set(rows.flatMap(({ notice }) => notice ?? [])),
  ];
}
