/** The options that choose the codec of a cache, and how the choice is printed. */
import type { Command } from 'commander';
import { type Plan, type Preset, presets } from '../plan/plan.ts';
import { InputError } from '../util/errors.ts';
import { parseBytes } from '../util/units.ts';
import { formatShort } from './table.ts';

export function addCacheOptions(command: Command): Command {
  return command
    .option(
      '--quality <preset>',
      'of the KV cache: safe (q8_0), balanced (default) or small, which use the profile, if there is one, else tq4 and tq3',
      parsePreset,
    )
    .option(
      '--kv <spec>',
      'instead of --quality: a codec (see `kvasir codecs`), or auto, or auto:2.25 for a plan of 2.25 bits per value',
    )
    .option(
      '--context-memory <size>',
      'memory limit for the KV cache of a full context, e.g. 300MB; the plan chooses codecs that fit',
      parseBytes,
    );
}

export function parsePreset(text: string): Preset {
  const found = presets.find(preset => preset === text);
  if (found) return found;
  throw new InputError(`"${text}" is not a preset. Use ${presets.join(', ')}; --kv takes codecs.`);
}

/** "balanced: auto-mead:3, 3.00 bits per value, expected divergence .0062 nats per token (profile)". */
export const formatCache = ({ preset, spec, bits, predicted }: Pick<Plan, 'preset' | 'spec' | 'bits' | 'predicted'>) =>
  `${preset ? `${preset}: ` : ''}${spec}, ${bits.toFixed(2)} bits per value` +
  (predicted === undefined ? '' : `, expected divergence ${formatShort(predicted)} nats per token (profile)`);
