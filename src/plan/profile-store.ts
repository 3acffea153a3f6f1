/**
 * Profiles on disk: `profiles/<fingerprint>.kvprofile` in Kvasir's cache folder, or `model.kvprofile` next to `model.gguf`.
 * Node only; node modules are imported dynamically, so that browsers can bundle this file.
 */
import { FormatError, InputError } from '../errors.ts';
import { decodeProfile, type Profile } from './profile.ts';

const MAX_PROFILE_BYTES = 2 ** 30;

/** $KVASIR_CACHE, else `kvasir` in the user's cache folder. */
export async function kvasirCacheDir(): Promise<string> {
  const { homedir } = await import('node:os');
  const { join } = await import('node:path');
  const { KVASIR_CACHE, XDG_CACHE_HOME } = process.env;
  return KVASIR_CACHE || join(XDG_CACHE_HOME || join(homedir(), '.cache'), 'kvasir');
}

export async function profilePath(fingerprint: string): Promise<string> {
  const { join } = await import('node:path');
  return join(await kvasirCacheDir(), 'profiles', `${fingerprint}.kvprofile`);
}

/** The profile next to a model, or in the cache folder; undefined if there is none. */
export async function findProfile(modelPath: string, fingerprint: string): Promise<Profile | undefined> {
  const { access } = await import('node:fs/promises');
  for (const path of [modelPath.replace(/(\.gguf)?$/i, '.kvprofile'), await profilePath(fingerprint)]) {
    const exists = await access(path).then(
      () => true,
      () => false,
    );
    if (exists) return readProfile(path);
  }
  return undefined;
}

export async function readProfile(path: string): Promise<Profile> {
  const { readFile, stat } = await import('node:fs/promises');
  const fail = (error: NodeJS.ErrnoException) => {
    throw new InputError(`${path} cannot be read (${error.code ?? error.message}). Check the path of the profile.`);
  };
  const { size } = await stat(path).catch(fail);
  if (size > MAX_PROFILE_BYTES)
    throw new FormatError(`${path} has ${size} bytes; profiles have at most ${MAX_PROFILE_BYTES}. Check the path.`);
  const bytes = await readFile(path).catch(fail);
  return decodeProfile(new Uint8Array(bytes), path);
}

/** Writes a file completely or not at all. */
export async function writeFileAtomic(path: string, bytes: Uint8Array): Promise<void> {
  const { mkdir, rename, writeFile } = await import('node:fs/promises');
  const { dirname } = await import('node:path');
  await mkdir(dirname(path), { recursive: true });
  const draft = `${path}.${process.pid}.part`;
  await writeFile(draft, bytes);
  await rename(draft, path);
}
