/** Commands and flags of 0.1, which still work in this release and print their new name. */
import type { Command } from 'commander';
import { openModelFile } from '../engine/engine.ts';
import type { ModelShape } from '../plan/memory.ts';
import { parseTiers, type Tier } from '../store/tiers.ts';
import { UnsupportedError } from '../util/errors.ts';
import { parseBytes, parseCount } from '../util/units.ts';
import { addInspectOptions, inspect } from './inspect.ts';
import { isProfileName, showProfile } from './inspect-profile.ts';
import { showSizes } from './inspect-sizes.ts';
import { findModelProfile } from './profile-flag.ts';

const FLAGS: Record<string, Record<string, string>> = {
  calibrate: { '--codecs': '--kv' },
  eval: { '--svg': '--out', '--report': '--out' },
};

/** The arguments of a command with the new names of its flags. */
export function renameFlags([command, ...args]: readonly string[]): string[] {
  const renamed = args.map(arg => {
    const [flag] = arg.split('=', 1);
    const now = FLAGS[command]?.[flag];
    if (now !== undefined) console.error(`${flag} of kvasir ${command} is now ${now}`);
    return now === undefined ? arg : now + arg.slice(flag.length);
  });
  return command === undefined ? [] : [command, ...renamed];
}

interface EstimateFlags extends ModelShape {
  context: number;
  budget: number;
  tier?: Tier[];
  json?: boolean;
}

export function addRenamed(program: Command): void {
  const rename = (name: string, now: string) =>
    program
      .command(name, { hidden: true })
      .hook('preAction', () => console.error(`kvasir ${name} is now kvasir inspect ${now}`));
  addInspectOptions(rename('plan', 'MODEL --kv SPEC')).argument('<model>').action(inspect);
  rename('profile', 'FILE.kvprofile')
    .argument('<profile>')
    .option('--json')
    .action(async (name: string, flags: { json?: boolean }) =>
      showProfile((await isProfileName(name)) ? name : await profileOf(name), flags),
    );
  rename('estimate', '--shape LAYERSxKVHEADSxHEADDIM --memory SIZE --kv SPECS')
    .argument('[specs...]')
    .requiredOption('--layers <n>', '', parseCount)
    .requiredOption('--kv-heads <n>', '', parseCount)
    .requiredOption('--head-dim <n>', '', parseCount)
    .option('--context <n>', '', parseCount, 4096)
    .option('--budget <size>', '', parseBytes, 2 ** 33)
    .option('--tier <list>', '', parseTiers)
    .option('--page-tokens <n>', '', parseCount, 128)
    .option('--json')
    .action((specs: string[], { context, budget, tier, json, ...shape }: EstimateFlags) =>
      showSizes({ shape, context, room: budget, tiers: tier }, { kv: specs.length > 0 ? specs : undefined, json }),
    );
}

/** The path of the profile that a model uses. */
async function profileOf(model: string): Promise<string> {
  const file = await openModelFile(model);
  await file.gguf.close();
  const { path } = await findModelProfile(file, model);
  if (path === undefined) throw new UnsupportedError(`${model} has no profile. Learn one: kvasir calibrate MODEL`);
  return path;
}
