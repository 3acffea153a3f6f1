/** Downloads models from the hub, each with its profile if there is one, and profiles alone. */

import { bulletList } from '../hub/format.ts';
import { type ProfileName, parseProfileName, requireModelName } from '../hub/name.ts';
import { profileNames } from '../hub/profile-name.ts';
import {
  findModels,
  type HubOptions,
  type OpenedRepo,
  openRepo,
  type PulledFile,
  type PulledModel,
  type RemoteModel,
  storeFiles,
  storeModels,
} from '../hub/pull.ts';
import { fetchFileInfo } from '../hub/remote-files.ts';
import { findCachedProfile, matchProfile, type ProfileSearchOptions } from '../hub/resolve.ts';
import { fingerprintFiles } from '../model/fingerprint.ts';
import type { Gguf } from '../model/gguf.ts';
import { readModel } from '../model/read-model.ts';
import { openRemoteGguf } from '../model/remote.ts';
import { InputError, KvasirError, UnsupportedError } from '../util/errors.ts';
import { checkProfileSize, kvasirCacheDir, readProfile } from './profile-store.ts';

/** Options of `pull`. */
export interface PullOptions extends HubOptions {
  /**
   * Where to get the model's profile: `org/repo` or `org/repo:file.kvprofile`. Default: the model's repository, if it has
   * `model.kvprofile` or `model.gguf.kvprofile` next to `model.gguf`.
   */
  profile?: string;
  /** Download a model that this version does not run, too. Default: false. */
  force?: boolean;
}

/** The result of `pull`. */
export interface PullResult {
  repo: string;
  revision: string;
  commit: string;
  quant?: string;
  /** The file to load: the first part of the (first) model. */
  path: string;
  files: PulledFile[];
  /** The profile of the model at `path`, which `loadModel` finds by itself. */
  profile?: PulledFile;
  /** Why a profile was refused or could not be downloaded. */
  profileProblem?: string;
}

/**
 * Downloads a model (`org/repo`, `org/repo:Q4_K_M` or `org/repo/file.gguf`) into the Hugging Face cache and verifies its
 * checksum. Files in the cache are not downloaded again. Without a quantization, Q4_K_M is preferred. The header is read
 * first: a model that does not run is an UnsupportedError, and nothing is downloaded. A profile of the model is stored next
 * to it; a damaged one, or one of another model, is not, and does not affect the model.
 */
export async function pull(model: string, options: PullOptions = {}): Promise<PullResult> {
  const name = requireModelName(model);
  const profileName = options.profile === undefined ? undefined : requireProfileName(options.profile);
  const opened = await openRepo(name.repo, options);
  const found = await findModels(opened, name);
  const models = await storeModels(opened, found, {
    onProgress: options.onProgress,
    beforeDownload: options.force ? undefined : () => checkModels(opened, found),
  });
  const profiles: (PulledFile | undefined)[] = [];
  const problems: string[] = [];
  for (const pulled of models) {
    const profile = pullProfileOf(pulled, opened, profileName, options).catch(error => {
      if (!(error instanceof KvasirError)) throw error;
      problems.push(error.message);
      return undefined;
    });
    profiles.push(await profile);
  }
  const { repo, revision, listing } = opened;
  return {
    ...{ repo, revision, commit: listing.commit, quant: models[0].quant, path: models[0].files[0].path },
    files: models.flatMap(({ files }) => files),
    profile: profiles[0],
    profileProblem: problems.length > 0 ? problems.join('\n') : undefined,
  };
}

/** Throws if one of the models would not run. */
async function checkModels({ hub }: OpenedRepo, models: readonly RemoteModel[]): Promise<void> {
  for (const { files } of models) readModel(await openRemoteGguf(hub, files));
}

/** Opens a model on the hub, of which only what is read is downloaded: its headers. */
export async function openHubModel(model: string, options: HubOptions = {}): Promise<Gguf> {
  const name = requireModelName(model);
  const opened = await openRepo(name.repo, options);
  // Of several, the one that `pull` names as the file to load.
  const [{ files }] = await findModels(opened, name);
  return openRemoteGguf(opened.hub, files);
}

/** Stores a model's profile next to it; undefined if none was asked for and the model's repository has none. */
async function pullProfileOf(
  { files }: PulledModel,
  opened: OpenedRepo,
  name: ProfileName | undefined,
  options: PullOptions,
): Promise<PulledFile | undefined> {
  const isOther = name !== undefined && name.repo !== opened.repo;
  const source = isOther ? await openRepo(name.repo, { ...options, revision: undefined }) : opened;
  const ownNames = profileNames(files[0].file);
  const file = name
    ? chooseProfile(listProfiles(source), name, files[0].file)
    : ownNames.find(own => opened.listing.files.has(own));
  if (file === undefined) return undefined;
  // Next to the model, but not in place of a file of its repository.
  const free = ownNames.find(own => !opened.listing.files.has(own)) ?? ownNames[0];
  const target = !isOther && ownNames.includes(file) ? file : free;
  const fingerprint = await fingerprintFiles(
    files.map(({ path }) => path),
    { cacheDir: await kvasirCacheDir(), signal: options.signal },
  );
  return storeProfile(source, file, opened, target, fingerprint, options);
}

/** Downloads a profile into the snapshot of `into`. Without a fingerprint it may be of any model. */
async function storeProfile(
  source: OpenedRepo,
  file: string,
  into: OpenedRepo,
  target: string,
  fingerprint: string | undefined,
  { onProgress }: HubOptions,
): Promise<PulledFile> {
  const label = `${source.repo}/${file}`;
  const remote = await fetchFileInfo(source.hub, source.repo, source.listing, file);
  checkProfileSize(remote.size, true, label);
  const check = async (path: string) => {
    const profile = await readProfile(path, label);
    if (fingerprint === undefined || profile.fingerprint === fingerprint) return;
    throw new UnsupportedError(
      `${label} is the profile of another model (${profile.fingerprint.slice(0, 12)}), not of this one ` +
        `(${fingerprint.slice(0, 12)}). Run \`kvasir calibrate MODEL\`, or name another one: --profile REPO:FILE.`,
    );
  };
  const [stored] = await storeFiles(into, [{ remote, file: target }], { onProgress, check });
  return stored;
}

/** The path of a profile in the hub cache, downloaded unless it is there. */
export async function pullProfile(name: ProfileName, options: HubOptions & ProfileSearchOptions = {}): Promise<string> {
  const cached = await findCachedProfile(name, options);
  if (cached !== undefined) return cached;
  const opened = await openRepo(name.repo, options);
  const file = chooseProfile(listProfiles(opened), name, options.modelFile);
  return (await storeProfile(opened, file, opened, file, undefined, options)).path;
}

function requireProfileName(text: string): ProfileName {
  const name = parseProfileName(text);
  if (name) return name;
  throw new InputError(`'${text}' is not the name of a profile on the hub: use org/repo or org/repo:file.kvprofile`);
}

const listProfiles = ({ listing }: OpenedRepo): string[] =>
  [...listing.files.keys()].filter(file => /\.kvprofile$/i.test(file));

function chooseProfile(available: string[], name: ProfileName, modelFile?: string): string {
  const found = matchProfile(available, name, modelFile);
  if (found !== undefined) return found;
  if (available.length === 0) throw new InputError(`${name.repo} has no profile (.kvprofile): check the name`);
  const problem = name.file === undefined ? 'has several profiles' : `has no ${name.file}`;
  const choices = available.map(file => `--profile ${name.repo}:${file}`);
  throw new InputError(`${name.repo} ${problem}. Choose one:${bulletList(choices)}`);
}
