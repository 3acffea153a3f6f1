/** `kvasir inspect`: a model, the layers of its cache, a profile, or what fits into memory. */
import type { Command } from 'commander';
import type { ModelShape } from '../plan/memory.ts';
import type { Preset } from '../plan/plan.ts';
import { platform } from '../platform/node.ts';
import { parseTiers, type Tier } from '../store/tiers.ts';
import { InputError } from '../util/errors.ts';
import { parseBytes, parseCount } from '../util/units.ts';
import { flagName } from './flag-names.ts';
import { showLayers } from './inspect-layers.ts';
import { showModel } from './inspect-model.ts';
import { isProfileName, showProfile } from './inspect-profile.ts';
import { parseShape, showSizes } from './inspect-sizes.ts';
import { parseList, parsePreset } from './model-command.ts';
import { PROFILE_HELP } from './profile-flag.ts';

export interface InspectFlags {
  kv?: string[];
  quality?: Preset;
  contextMemory?: number;
  context?: number;
  memory?: number;
  tier?: Tier[];
  profile?: string;
  shape?: ModelShape;
  tensors?: boolean;
  json?: boolean;
}

/** What can be shown, and the flags that each view has besides --json. */
const VIEWS: Record<string, readonly (keyof InspectFlags)[]> = {
  'a model': ['kv', 'context', 'memory', 'tier', 'profile', 'tensors'],
  'the layers of a cache': ['kv', 'quality', 'contextMemory', 'context', 'profile'],
  'a profile': [],
  'a shape': ['shape', 'kv', 'context', 'memory', 'tier'],
};

const HELP = `
Examples:
  kvasir inspect model.gguf                     a model: metadata, presets, size of its cache per codec
  kvasir inspect org/repo:Q4_K_M                the same, before a download: does it run, and what fits?
  kvasir inspect model.gguf --kv f16,tq4,tq2    the same, for these codecs
  kvasir inspect model.gguf --kv tq4            the codec of every layer; also with --quality or --context-memory
  kvasir inspect model.kvprofile                a profile: what it was learned on, and what to expect
  kvasir inspect --shape 36x8x128 --context 128k --memory 20GiB    what fits, without a model`;

const SHAPE_CONTEXT = 4096;

export function addInspect(program: Command): void {
  addInspectOptions(program.command('inspect'))
    .description('show a model, the codecs of its cache, a profile, or what fits into memory')
    .argument(
      '[file]',
      'a model: a .gguf file or org/repo:Q4_K_M; or a profile: a .kvprofile file, a URL or org/repo:file.kvprofile',
    )
    .addHelpText('after', HELP)
    .action(inspect);
}

export const addInspectOptions = (command: Command): Command =>
  command
    .option(
      '--kv <specs>',
      'codecs: one, or auto:2.25, is shown layer by layer; several, with commas, are compared',
      parseList,
    )
    .option('--quality <preset>', 'show a preset layer by layer: safe, balanced or small', parsePreset)
    .option(
      '--context-memory <size>',
      'show a plan that fits a full context into this memory, layer by layer',
      parseBytes,
    )
    .option(
      '--context <n>',
      `tokens per sequence, e.g. 32k (default: the model's; ${SHAPE_CONTEXT} of a shape)`,
      parseCount,
    )
    .option('--memory <size>', 'memory for weights and caches, to see what fits (default: the free memory)', parseBytes)
    .option('--tier <list>', 'also what these tiers hold: host=4GiB,disk=/dir:50GiB', parseTiers)
    .option('--profile <file>', PROFILE_HELP)
    .option('--shape <LxHxD>', 'instead of a model: layers x KV heads x head dimension, e.g. 36x8x128', parseShape)
    .option('--tensors', 'list every tensor')
    .option('--json', 'print as JSON');

export async function inspect(name: string | undefined, flags: InspectFlags): Promise<void> {
  const { kv, quality, contextMemory, context = SHAPE_CONTEXT, memory = platform.memoryLimit(), tier, shape } = flags;
  if (name === undefined) {
    if (!shape) throw new InputError('Name a model or a profile, or give a --shape, such as 36x8x128.');
    checkFlags('a shape', flags);
    return showSizes({ shape, context, room: memory, tiers: tier }, flags);
  }
  if (await isProfileName(name)) {
    checkFlags('a profile', flags);
    return showProfile(name, flags);
  }
  if (kv?.length !== 1 && quality === undefined && contextMemory === undefined) {
    checkFlags('a model', flags);
    return showModel(name, flags);
  }
  checkFlags('the layers of a cache', flags);
  return showLayers(name, { ...flags, kv: kv?.join() });
}

function checkFlags(view: string, flags: InspectFlags): void {
  const other = (Object.keys(flags) as (keyof InspectFlags)[]).find(
    flag => flag !== 'json' && !VIEWS[view].includes(flag),
  );
  if (other === undefined) return;
  throw new InputError(`${flagName(other)} does not apply to ${view}. \`kvasir help inspect\` lists what does.`);
}
