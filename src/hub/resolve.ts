/** Finds the file of a model or profile by its path or its name in the hub cache. Never uses the network. */
import { readdir, stat } from 'node:fs/promises';
import { basename, dirname, join, posix, resolve } from 'node:path';
import { InputError } from '../util/errors.ts';
import {
  cacheDir,
  type Env,
  listCachedRepos,
  listSnapshotFiles,
  listSnapshots,
  readRef,
  repoDir,
  snapshotPath,
} from './cache.ts';
import { bulletList } from './format.ts';
import {
  checkRevision,
  formatModelName,
  type GgufModel,
  groupModels,
  type ModelName,
  matchModels,
  type ProfileName,
  parseModelName,
  parseProfileName,
} from './name.ts';
import { profileNames } from './profile-name.ts';

export interface ResolveOptions {
  /** Only look at this branch, tag or commit. Default: `main` first, then other snapshots. */
  revision?: string;
  /** Where HF_HUB_CACHE and HF_HOME are looked up. Default: `process.env`. */
  env?: Env;
}

export interface ResolvedModel {
  /** The file to open: the first part of a split model. */
  path: string;
  /** All parts, in order. */
  parts: string[];
  /** Set for a model in the hub cache. */
  repo?: string;
  commit?: string;
  quant?: string;
}

/** A name on the hub of a model that is not in the cache. */
export class NotDownloadedError extends InputError {
  static override readonly name: string = 'InputError';
}

/** Finds a model by path or by name (`org/repo:Q4_K_M`) in the cache. Throws if it is not on this machine. */
export async function resolveModel(pathOrName: string, options: ResolveOptions = {}): Promise<ResolvedModel> {
  const found = await stat(pathOrName).catch(() => undefined);
  if (found?.isFile()) return resolveLocalModel(pathOrName);
  if (found?.isDirectory() && !parseModelName(pathOrName)?.quant) return rejectFolder(pathOrName);
  const withEnding = `${pathOrName}.gguf`;
  if ((await stat(withEnding).catch(() => undefined))?.isFile()) return resolveLocalModel(withEnding);
  const name = parseModelName(pathOrName);
  if (!name) {
    const here = groupModels(await readdir('.').catch(() => [])).map(({ file }) => file);
    throw new InputError(
      `there is no file '${pathOrName}': use the path of a .gguf file, or a name on the hub such as org/repo:Q4_K_M.` +
        (here.length > 0 ? ` In this folder:${bulletList(here)}` : ''),
    );
  }
  return resolveCachedModel(name, options);
}

/** Where a profile is looked for. */
export interface ProfileSearchOptions extends Pick<ResolveOptions, 'env' | 'revision'> {
  /** Path or name of the model's file, to choose among several profiles. */
  modelFile?: string;
}

/** Finds a profile by path or by name (`org/repo`, `org/repo:file.kvprofile`) in the cache. */
export async function resolveProfilePath(pathOrName: string, options: ProfileSearchOptions = {}): Promise<string> {
  const isFile = (await stat(pathOrName).catch(() => undefined)) !== undefined;
  const name = isFile ? undefined : parseProfileName(pathOrName);
  const path = name ? await findCachedProfile(name, options) : pathOrName;
  if (path !== undefined) return path;
  throw new InputError(
    `there is no file '${pathOrName}', and no such profile in the hub cache: run kvasir pull MODEL --profile ` +
      `${pathOrName}, and leave this option out, since the profile is then found next to the model`,
  );
}

/** The path of a profile in the hub cache; undefined if it is not there, or not the only one. */
export async function findCachedProfile(
  name: ProfileName,
  { env = process.env, revision = 'main', modelFile }: ProfileSearchOptions = {},
): Promise<string | undefined> {
  const dir = repoDir(cacheDir(env), name.repo);
  for (const commit of await listSnapshots(dir, revision)) {
    const file = matchProfile(await listSnapshotFiles(dir, commit, '.kvprofile'), name, modelFile);
    if (file !== undefined) return snapshotPath(dir, commit, file);
  }
  return undefined;
}

/** The named file, else the one named after the model, else the only one. */
export function matchProfile(available: string[], { file }: ProfileName, modelFile?: string): string | undefined {
  if (file !== undefined) return available.find(name => name === file);
  const own = modelFile === undefined ? [] : profileNames(basename(modelFile));
  const matches = available.filter(name => own.includes(posix.basename(name)));
  if (matches.length === 1) return matches[0];
  return available.length === 1 ? available[0] : undefined;
}

async function resolveLocalModel(text: string): Promise<ResolvedModel> {
  const path = resolve(text);
  const dir = dirname(path);
  // A folder may be closed to listing and open to reading. The other files of a split model are then found by their names.
  const model = groupModels(await readdir(dir).catch(() => [])).find(({ parts }) => parts.includes(basename(path)));
  // A file without .gguf in its name may be a model: its first bytes are checked when it is opened.
  if (!model) return { path, parts: [path] };
  requireAllParts(model, `put the missing ones into ${dir}`);
  const parts = model.parts.map(part => join(dir, part));
  return { path: parts[0], parts };
}

async function rejectFolder(text: string): Promise<never> {
  const models = groupModels(await readdir(text).catch(() => []));
  const hint = models.length > 0 ? ` It contains:${bulletList(models.map(({ file }) => join(text, file)))}` : '';
  throw new InputError(`'${text}' is a folder: use the path of a .gguf file.${hint}`);
}

async function resolveCachedModel(name: ModelName, options: ResolveOptions): Promise<ResolvedModel> {
  const { env = process.env, revision } = options;
  const cache = cacheDir(env);
  const dir = repoDir(cache, name.repo);
  const others: GgufModel[] = [];
  for (const commit of await candidateCommits(dir, revision)) {
    const models = groupModels(await listSnapshotFiles(dir, commit, '.gguf'));
    const matches = matchModels(models, name);
    if (matches.length === 1) {
      requireAllParts(matches[0], `run: kvasir pull ${formatModelName(name.repo, matches[0], models)}`);
      const parts = matches[0].parts.map(part => snapshotPath(dir, commit, part));
      return { path: parts[0], parts, repo: name.repo, commit, quant: matches[0].quant };
    }
    if (matches.length > 1) {
      const names = matches.map(model => formatModelName(name.repo, model, models));
      throw new InputError(`${name.repo} has several models in the cache. Choose one:${bulletList(names)}`);
    }
    others.push(...models);
  }
  throw await notFoundError(name, others, cache);
}

/** The given revision only; by default all snapshots, main first. */
async function candidateCommits(dir: string, revision: string | undefined): Promise<string[]> {
  if (revision === undefined) return listSnapshots(dir, 'main');
  const commit = await readRef(dir, checkRevision(revision));
  return commit === undefined ? [] : [commit];
}

function requireAllParts({ file, parts, partCount }: GgufModel, advice: string): void {
  if (parts.length === partCount) return;
  throw new InputError(`${file} has ${partCount} parts, but only ${parts.length} are on this machine: ${advice}`);
}

async function notFoundError(name: ModelName, others: GgufModel[], cache: string): Promise<NotDownloadedError> {
  const { repo, quant, file } = name;
  const wanted = file ? `${repo}/${file}` : quant ? `${repo}:${quant}` : repo;
  const names = [...new Set(others.map(model => formatModelName(repo, model, others)))];
  const repos = await listCachedRepos(cache);
  const cached = names.length > 0 ? names : repos;
  const hint = cached.length > 0 ? ` In the cache:${bulletList(cached)}` : '';
  return new NotDownloadedError(`${wanted} is not on this machine: run kvasir pull ${wanted}.${hint}`);
}
