/** Opens a profile from a path, a hub name, a URL, or its bytes in any form that Node and browsers have. */

import { type BytesInput, isFileUrl, openBytes, parseIfUrl, pathOfFileUrl } from '../model/open-bytes.ts';
import { describeValue, isPlainObject } from '../util/describe-value.ts';
import { FormatError, InputError } from '../util/errors.ts';
import { isProfileStart, type Profile } from './profile.ts';
import { checkProfileSize, decodeSource, readProfile } from './profile-store.ts';

/**
 * A path, a name on the hub (`org/repo` or `org/repo:file.kvprofile`) that is in the hub cache, an http, https or file
 * URL (string or `URL`), the file's bytes, or a profile from `decodeProfile`.
 */
export type ProfileInput = string | BytesInput | Profile;

export interface ProfileOpenOptions {
  signal?: AbortSignal;
  /** Path of the model, to choose among several profiles of a repository. */
  modelFile?: string;
}

export async function openProfile(
  input: ProfileInput,
  { signal, modelFile }: ProfileOpenOptions = {},
): Promise<Profile> {
  const source = parseIfUrl(input);
  if (typeof source === 'string') {
    // Node only: package.json leaves it out of browser bundles, where every string is a URL.
    const { resolveProfilePath } = await import('../hub/resolve.ts');
    return readProfile(await resolveProfilePath(source, { modelFile }));
  }
  if (isFileUrl(source)) return readProfile(pathOfFileUrl(source));
  if (isProfile(source)) return source;
  const opened = await openBytes(source, { signal, checkSize: checkProfileSize, checkStart });
  if (opened) return decodeSource(opened).finally(opened.close);
  throw new InputError(
    'A profile is a path, a name on the hub, a URL, a File, Blob, Uint8Array, ArrayBuffer or Response, or a decoded ' +
      `profile; got ${describeValue(source)}.`,
  );
}

const isProfile = (value: unknown): value is Profile =>
  isPlainObject(value) && Array.isArray(value.learned) && typeof value.hash === 'string';

function checkStart(start: Uint8Array, name: string): void {
  if (!isProfileStart(start)) throw new FormatError(`${name} is not a Kvasir profile. Pass a .kvprofile file.`);
}
