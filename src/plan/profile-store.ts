/**
 * Profiles on disk: `model.kvprofile` next to `model.gguf`, or `profiles/<fingerprint>.kvprofile` in Kvasir's cache folder,
 * where `kvasir calibrate` writes. Node only.
 */

import { profileNames } from '../hub/profile-name.ts';
import { type ByteSource, fileSource } from '../model/source.ts';
import { platform } from '../platform/node.ts';
import { FormatError, InputError } from '../util/errors.ts';
import { fileError } from '../util/file-error.ts';
import { formatFileSize } from '../util/units.ts';
import { decodeProfile, type Profile } from './profile.ts';

const MAX_PROFILE_BYTES = 2 ** 30;

/** $KVASIR_CACHE, else `kvasir` in the user's cache folder. */
export async function kvasirCacheDir(): Promise<string> {
  const { homedir } = platform.node.os;
  const { join } = platform.node.path;
  const { KVASIR_CACHE, XDG_CACHE_HOME } = process.env;
  return KVASIR_CACHE || join(XDG_CACHE_HOME || join(homedir(), '.cache'), 'kvasir');
}

async function profileDir(): Promise<string> {
  const { join } = platform.node.path;
  return join(await kvasirCacheDir(), 'profiles');
}

export async function profilePath(fingerprint: string): Promise<string> {
  const { join } = platform.node.path;
  return join(await profileDir(), `${fingerprint}.kvprofile`);
}

/** Whether there is any file that could be this model's profile: if not, its fingerprint is not needed. */
export async function mayHaveProfile(modelPath: string): Promise<boolean> {
  const { readdir } = platform.node.fs.promises;
  if ((await listProfilePaths(modelPath)).length > 0) return true;
  const calibrated = await readdir(await profileDir()).catch(() => []);
  return calibrated.some(name => name.endsWith('.kvprofile'));
}

/** The result of searching a model's profile. */
export interface ProfileSearch {
  profile?: Profile;
  /** Where it was found. */
  path?: string;
  /** Why files next to the model were not used. */
  notice?: string;
}

/**
 * Finds the newest profile of a model, next to it or in the cache folder: after a pull and a calibration, the latter one
 * counts. A file for another model is skipped with a notice, since a model's file may be replaced by a new version; a
 * damaged file is an error.
 */
export async function findProfile(modelPath: string, fingerprint: string): Promise<ProfileSearch> {
  const skipped: string[] = [];
  const notice = () => skipped.join('\n') || undefined;
  for (const path of await listProfilePaths(modelPath, fingerprint)) {
    const profile = await readProfile(path);
    if (profile.fingerprint === fingerprint) return { profile, path, notice: notice() };
    const { model } = profile.provenance;
    skipped.push(
      `${path} is not used: it was made for ${model ? `"${model}"` : 'another model'} (${profile.fingerprint.slice(0, 12)}), ` +
        `not for this file (${fingerprint.slice(0, 12)}).`,
    );
  }
  return { notice: notice() };
}

/** The files that may be a model's profile, newest first. Without a fingerprint: only those next to the model. */
export async function listProfilePaths(modelPath: string, fingerprint?: string): Promise<string[]> {
  const { realpath, stat } = platform.node.fs.promises;
  const real = await realpath(modelPath).catch(() => modelPath);
  const paths = [modelPath, real].flatMap(profileNames);
  if (fingerprint !== undefined) paths.push(await profilePath(fingerprint));
  const found = await Promise.all(
    [...new Set(paths)].map(async path => ({ path, file: await stat(path).catch(() => undefined) })),
  );
  return found
    .filter(({ file }) => file?.isFile())
    .sort((a, b) => b.file!.mtimeMs - a.file!.mtimeMs)
    .map(({ path }) => path);
}

/** Reads a profile; `name` is used in error messages. */
export async function readProfile(path: string, name = path): Promise<Profile> {
  const source = await fileSource(path);
  try {
    return await decodeSource(source, name);
  } finally {
    await source.close();
  }
}

/** Reads and checks a whole profile. */
export async function decodeSource(source: ByteSource, name = source.name): Promise<Profile> {
  checkProfileSize(source.size, true, name);
  return decodeProfile(await source.read(0, source.size), name);
}

export function checkProfileSize(bytes: number, isTotal: boolean, name: string): void {
  if (bytes <= MAX_PROFILE_BYTES) return;
  throw new FormatError(
    `${name} has ${isTotal ? '' : 'more than '}${formatFileSize(bytes)}; a profile has at most ` +
      `${formatFileSize(MAX_PROFILE_BYTES)}. Check that it is a profile.`,
  );
}

/** Throws if `writeFileAtomic` could not write there: before work that takes hours. */
export async function checkWritable(path: string): Promise<void> {
  const { constants, promises } = platform.node.fs;
  const { dirname } = platform.node.path;
  const failed = (error: NodeJS.ErrnoException): never => {
    throw fileError(path, 'written', error);
  };
  await promises.mkdir(dirname(path), { recursive: true }).catch(failed);
  await promises.access(dirname(path), constants.W_OK).catch(failed);
  const existing = await promises.stat(path).catch(() => undefined);
  if (existing && !existing.isFile()) throw new InputError(`${path} is not a file. Use another path.`);
}

/** Writes a file completely or not at all. */
export async function writeFileAtomic(path: string, bytes: Uint8Array): Promise<void> {
  const { mkdir, rename, rm, writeFile } = platform.node.fs.promises;
  const { dirname } = platform.node.path;
  const draft = `${path}.${process.pid}.part`;
  try {
    await mkdir(dirname(path), { recursive: true });
    await writeFile(draft, bytes);
    await rename(draft, path);
  } catch (error) {
    await rm(draft, { force: true }).catch(() => {});
    throw fileError(path, 'written', error as NodeJS.ErrnoException);
  }
}
