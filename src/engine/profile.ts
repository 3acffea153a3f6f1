/** The profile that goes with a model file: the one that was named, or the one that is found. */
import { learns } from '../codec/kv.ts';
import { fingerprintAll } from '../model/fingerprint.ts';
import { isAuto } from '../plan/auto.ts';
import { checkProfile, type Profile, type ProfileShape } from '../plan/profile.ts';
import { findProfile, kvasirCache, readProfile } from '../plan/store.ts';
import type { ModelFile } from './engine.ts';

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

/** One that was given must fit. Else it is looked for, if a spec learns from data: most do not. */
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
  return profile;
}
