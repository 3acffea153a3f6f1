/** `--profile`: a path, a URL, or a repository on the hub. */

import { stat } from 'node:fs/promises';
import { basename } from 'node:path';
import type { ModelFile } from '../engine/engine.ts';
import { resolveProfile } from '../engine/profile.ts';
import { parseProfileName } from '../hub/name.ts';
import { resolveModel } from '../hub/resolve.ts';
import { AUTO } from '../plan/auto.ts';
import type { ProfileSearch } from '../plan/profile-store.ts';
import { pullProfile } from '../plan/pull.ts';
import { createProgress } from './progress.ts';

export const PROFILE_HELP =
  "calibration profile: a file, a URL, or org/repo[:file] on the hub (default: this model's profile, if there is one)";

/** The path or URL of a profile; one on the hub is downloaded unless it is in the cache. */
export async function resolveProfileFlag(
  text: string | undefined,
  model?: string,
  signal?: AbortSignal,
): Promise<string | undefined> {
  const isFile = text !== undefined && (await stat(text).catch(() => undefined)) !== undefined;
  const name = text === undefined || isFile ? undefined : parseProfileName(text);
  if (!name) return text;
  const progress = createProgress({ title: `profile of ${name.repo}`, unit: 'B' });
  return await pullProfile(name, {
    modelFile: await fileNameOf(model),
    signal,
    onProgress: ({ done, total }) => progress.update(done, total),
    onMessage: progress.note,
  }).finally(progress.end);
}

/** A model that is not on disk cannot tell which of several profiles is its own. */
async function fileNameOf(model?: string): Promise<string | undefined> {
  const found = model === undefined ? undefined : await resolveModel(model).catch(() => undefined);
  return found && basename(found.path);
}

/** The given profile, or the one that the model uses, for any codec: it tells what to expect. Prints a notice. */
export async function findModelProfile(file: ModelFile, model: string, flag?: string): Promise<ProfileSearch> {
  const given = await resolveProfileFlag(flag, model);
  const { profile, path = given, notice } = await resolveProfile(file, [AUTO], given);
  if (notice) console.error(notice);
  return { profile, path };
}
