/** The profile that goes with a model file: the one that was named, or the one that is found. */
import { learns } from '../codec/kv.ts';
import { UnsupportedError } from '../errors.ts';
import { fingerprintAll } from '../model/fingerprint.ts';
import { isAuto } from '../plan/auto.ts';
import { checkProfile, type Profile, type ProfileShape } from '../plan/profile.ts';
import { findProfile, kvasirCache, readProfile } from '../plan/store.ts';
import { knows, learnsFor, usualCodecs } from '../plan/usual.ts';
import { formatDuration } from '../units.ts';
import { type ModelFile, planShape } from './engine.ts';

/** A path, or a profile that was read already. */
export type ProfileInput = string | Profile;

export function profileShape({ config, rope }: Pick<ModelFile, 'config' | 'rope'>): ProfileShape {
  const { layers, kvHeads, headDim } = config;
  return { layers, kvHeads, headDim, turn: [...rope.frequencies] };
}

/** sha256 over the model's files; undefined for Blobs, which could only be hashed by holding them whole. */
export async function modelFingerprint({ paths }: Pick<ModelFile, 'paths'>): Promise<string | undefined> {
  return paths.length === 0 ? undefined : fingerprintAll(paths, { cacheDir: await kvasirCache() });
}

/**
 * What calibration takes a parameter and token, in seconds of one core: 550 s on two cores for the 135 M parameters of
 * SmolLM2 and 65,536 tokens of given text, and as long again where the model writes them.
 */
const CORE_SECONDS = (2 * 550) / (135e6 * 65536);
const USUAL_TOKENS = 65536;

/** About how long calibration takes on this machine, of so many tokens, of which the model writes some itself. */
export async function calibrationSeconds(
  { gguf }: Pick<ModelFile, 'gguf'>,
  tokens = USUAL_TOKENS,
  written = tokens,
): Promise<number> {
  const { availableParallelism } = await import('node:os');
  let parameters = 0;
  for (const { shape } of gguf.tensors.values()) parameters += shape.reduce((a, b) => a * b, 1);
  return (CORE_SECONDS * parameters * (tokens + written)) / availableParallelism();
}

/** One that was given must fit, and it must know what the specs need. Else it is looked for, if a spec learns from data: most do not. */
export async function profileFor(
  file: ModelFile,
  specs: readonly string[],
  given?: ProfileInput,
): Promise<Profile | undefined> {
  if (given === undefined && !specs.some(spec => isAuto(spec) || learns(spec))) return undefined;
  const print = await modelFingerprint(file);
  const named = typeof given === 'string' ? await readProfile(given) : given;
  const profile = named ?? (print ? await findProfile(file.paths[0], print) : undefined);
  if (profile) checkProfile(profile, profileShape(file), print);
  for (const spec of specs) if (!isAuto(spec) && learns(spec)) await checkLearned(file, spec, profile);
  return profile;
}

/** Says what to run for a spec that needs what no profile of this model has. */
async function checkLearned(file: ModelFile, spec: string, profile: Profile | undefined): Promise<void> {
  const shape = planShape(file);
  if (profile && knows(profile.learned[0], spec, shape)) return;
  const model = file.paths[0] === undefined ? 'MODEL' : shellWord(file.paths[0]);
  const codecs = profile?.made.codecs ?? usualCodecs(shape);
  const list = !profile && learnsFor(spec, codecs, shape) ? '' : ` --codecs ${[...codecs, spec].join()}`;
  const time = file.paths.length > 0 ? ` (about ${formatDuration(await calibrationSeconds(file))} here, once)` : '';
  const why = profile ? `its profile was made for ${codecs.join(', ')}` : 'there is no profile of it';
  throw new UnsupportedError(
    `${spec} needs to learn from this model first, and ${why}. Run: kvasir calibrate ${model}${list}${time}`,
  );
}

const shellWord = (path: string): string => (/^[\w./:+@-]+$/.test(path) ? path : `'${path.replaceAll("'", "'\\''")}'`);
