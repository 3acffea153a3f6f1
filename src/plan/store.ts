/**
 * Where profiles live: `profiles/<fingerprint>.kvprofile` in Kvasir's own cache folder, or `model.kvprofile` beside
 * `model.gguf`. Node only; imports wait until then.
 */
import { FormatError, InputError } from '../errors.ts';
import { decodeProfile, type Profile } from './profile.ts';

const LARGEST = 2 ** 30;

/** $KVASIR_CACHE, else `kvasir` in the user's cache folder. */
export async function kvasirCache(): Promise<string> {
  const { homedir } = await import('node:os');
  const { join } = await import('node:path');
  const { KVASIR_CACHE, XDG_CACHE_HOME } = process.env;
  return KVASIR_CACHE || join(XDG_CACHE_HOME || join(homedir(), '.cache'), 'kvasir');
}

export async function profilePath(fingerprint: string): Promise<string> {
  const { join } = await import('node:path');
  return join(await kvasirCache(), 'profiles', `${fingerprint}.kvprofile`);
}

/** The profile that lies beside a model, or in the store; undefined where there is none. */
export async function findProfile(modelPath: string, fingerprint: string): Promise<Profile | undefined> {
  const { access } = await import('node:fs/promises');
  for (const path of [modelPath.replace(/(\.gguf)?$/i, '.kvprofile'), await profilePath(fingerprint)]) {
    const there = await access(path).then(
      () => true,
      () => false,
    );
    if (there) return readProfile(path);
  }
  return undefined;
}

export async function readProfile(path: string): Promise<Profile> {
  const { readFile, stat } = await import('node:fs/promises');
  const cannot = (error: NodeJS.ErrnoException) => {
    throw new InputError(`${path} cannot be read (${error.code ?? error.message}). Check the path of the profile.`);
  };
  const { size } = await stat(path).catch(cannot);
  if (size > LARGEST) throw new FormatError(`${path} has ${size} bytes, which no profile has. Check the path.`);
  const bytes = await readFile(path).catch(cannot);
  return decodeProfile(new Uint8Array(bytes), path);
}

/** Writes a file whole or not at all. */
export async function writeWhole(path: string, bytes: Uint8Array): Promise<void> {
  const { mkdir, rename, writeFile } = await import('node:fs/promises');
  const { dirname } = await import('node:path');
  await mkdir(dirname(path), { recursive: true });
  const draft = `${path}.${process.pid}.part`;
  await writeFile(draft, bytes);
  await rename(draft, path);
}
