/** Opens a profile from a path, a URL, or its bytes in any form that Node and browsers have. */
import { describeValue, isPlainObject } from '../describe-value.ts';
import { FormatError, InputError } from '../errors.ts';
import { type BytesInput, isFileUrl, openBytes, parseIfUrl, pathOfFileUrl } from '../model/open-bytes.ts';
import { isProfileStart, type Profile } from './profile.ts';
import { checkProfileSize, decodeSource, readProfile } from './profile-store.ts';

/** A path, an http, https or file URL (string or `URL`), the file's bytes, or a profile from `decodeProfile`. */
export type ProfileInput = string | BytesInput | Profile;

export async function openProfile(input: ProfileInput, { signal }: { signal?: AbortSignal } = {}): Promise<Profile> {
  const source = parseIfUrl(input);
  if (typeof source === 'string') return readProfile(source);
  if (isFileUrl(source)) return readProfile(pathOfFileUrl(source));
  if (isProfile(source)) return source;
  const opened = await openBytes(source, { signal, checkSize: checkProfileSize, checkStart });
  if (opened) return decodeSource(opened);
  throw new InputError(
    'A profile is a path, a URL, a File, Blob, Uint8Array, ArrayBuffer or Response, or a decoded profile; got ' +
      `${describeValue(source)}.`,
  );
}

const isProfile = (value: unknown): value is Profile =>
  isPlainObject(value) && Array.isArray(value.learned) && typeof value.hash === 'string';

function checkStart(start: Uint8Array, name: string): void {
  if (!isProfileStart(start)) throw new FormatError(`${name} is not a Kvasir profile. Pass a .kvprofile file.`);
}
