/** From what a user types after `run` to a file on this machine. Never touches the network. */
import { readdir, stat } from 'node:fs/promises';
import { basename, dirname, join, resolve } from 'node:path';
import { InputError } from '../../errors.ts';
import { cacheDir, cachedRepos, type Env, readRef, repoDir, snapshotFiles, snapshotPath, snapshots } from './cache.ts';
import {
  askFor,
  checkRevision,
  type GgufModel,
  groupModels,
  type ModelName,
  matchModels,
  parseModelName,
} from './name.ts';
import { bullets } from './text.ts';

export interface ResolveOptions {
  /** Which revision's files to prefer; main unless given. */
  revision?: string;
  env?: Env;
}

export interface ResolvedModel {
  /** The file to open: the first part of a split model. */
  path: string;
  /** All parts, in order. */
  parts: string[];
  /** Set for a model from the hub's cache. */
  repo?: string;
  commit?: string;
  quant?: string;
}

export async function resolveModel(text: string, options: ResolveOptions = {}): Promise<ResolvedModel> {
  const found = await stat(text).catch(() => undefined);
  if (found?.isFile()) return localModel(text);
  if (found?.isDirectory() && !parseModelName(text)?.quant) return failDirectory(text);
  const name = parseModelName(text);
  if (!name) {
    throw new InputError(`there is no file '${text}': give the path of a .gguf file, or org/repo:Q4_K_M from the hub`);
  }
  return cachedModel(name, options);
}

async function localModel(text: string): Promise<ResolvedModel> {
  const path = resolve(text);
  const dir = dirname(path);
  const model = groupModels(await readdir(dir)).find(({ parts }) => parts.includes(basename(path)));
  // A name that says nothing (no .gguf ending) is a model all the same: its first bytes will tell.
  if (!model) return { path, parts: [path] };
  requireWhole(model, `find the missing ones and put them into ${dir}`);
  const parts = model.parts.map(part => join(dir, part));
  return { path: parts[0], parts };
}

async function failDirectory(text: string): Promise<never> {
  const models = groupModels(await readdir(text));
  const hint = models.length > 0 ? ` It holds:${bullets(models.map(({ file }) => join(text, file)))}` : '';
  throw new InputError(`'${text}' is a folder: give the path of a .gguf file.${hint}`);
}

async function cachedModel(name: ModelName, options: ResolveOptions): Promise<ResolvedModel> {
  const { env = process.env, revision } = options;
  const cache = cacheDir(env);
  const dir = repoDir(cache, name.repo);
  const found: GgufModel[] = [];
  for (const commit of await commitsOf(dir, revision)) {
    const models = groupModels(await snapshotFiles(dir, commit));
    const matches = matchModels(models, name);
    if (matches.length === 1) {
      requireWhole(matches[0], `run: kvasir pull ${askFor(name.repo, matches[0], models)}`);
      const parts = matches[0].parts.map(part => snapshotPath(dir, commit, part));
      return { path: parts[0], parts, repo: name.repo, commit, quant: matches[0].quant };
    }
    if (matches.length > 1) {
      const ways = matches.map(model => askFor(name.repo, model, models));
      throw new InputError(`${name.repo} is here more than once: say which one of${bullets(ways)}`);
    }
    found.push(...models);
  }
  throw await absent(name, found, cache);
}

/** A revision that was asked for is the only one looked at; else main comes first, and older snapshots serve too. */
async function commitsOf(dir: string, revision: string | undefined): Promise<string[]> {
  if (revision === undefined) return snapshots(dir, 'main');
  const commit = await readRef(dir, checkRevision(revision));
  return commit === undefined ? [] : [commit];
}

function requireWhole({ file, parts, partCount }: GgufModel, advice: string): void {
  if (parts.length === partCount) return;
  throw new InputError(`${file} comes in ${partCount} parts, and only ${parts.length} are here: ${advice}`);
}

async function absent(name: ModelName, found: GgufModel[], cache: string): Promise<InputError> {
  const { repo, quant, file } = name;
  const wanted = file ? `${repo}/${file}` : quant ? `${repo}:${quant}` : repo;
  const ways = [...new Set(found.map(model => askFor(repo, model, found)))];
  const repos = await cachedRepos(cache);
  const here = ways.length > 0 ? ` Here is:${bullets(ways)}` : repos.length > 0 ? ` Here are:${bullets(repos)}` : '';
  return new InputError(`${wanted} is not on this machine: run kvasir pull ${wanted}.${here}`);
}
