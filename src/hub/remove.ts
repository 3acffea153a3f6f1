/**
 * Removes a model, with the profile next to it, from all snapshots of the hub cache and leaves the cache as Python's huggingface_hub expects it: blobs
 * that other files link to stay, and no empty snapshots or refs to them remain.
 */
import { readdir, rm, rmdir, stat } from 'node:fs/promises';
import { dirname, join, sep } from 'node:path';
import { InputError } from '../util/errors.ts';
import { cacheDir, type Env, fileSize, isCommit, listSnapshotFiles, readRef, repoDir, snapshotPath } from './cache.ts';
import { bulletList } from './format.ts';
import { formatModelName, groupModels, matchModels, requireModelName } from './name.ts';
import { profileNames } from './profile-name.ts';

export interface RemoveOptions {
  /** Where HF_HUB_CACHE and HF_HOME are looked up. Default: `process.env`. */
  env?: Env;
}

export interface Removal {
  /** Paths in the snapshots: links, or the files themselves. */
  files: readonly string[];
  /** Paths of the blobs that no other file uses. */
  blobs: readonly string[];
  /** Bytes that are freed. */
  bytes: number;
  run(): Promise<void>;
}

/** Removes a model and its pulled profile from the hub cache, and returns the bytes freed. */
export async function removeModel(model: string, options?: RemoveOptions): Promise<number> {
  const removal = await planRemoval(model, options);
  await removal.run();
  return removal.bytes;
}

/** Finds what removing a model would delete; nothing is deleted until `run` is called. */
export async function planRemoval(model: string, { env = process.env }: RemoveOptions = {}): Promise<Removal> {
  const name = requireModelName(model);
  const dir = repoDir(cacheDir(env), name.repo);
  const commits = (await listFolder(join(dir, 'snapshots'))).filter(isCommit);
  const files: string[] = [];
  for (const commit of commits) {
    const models = groupModels(await listSnapshotFiles(dir, commit, '.gguf'));
    const matches = matchModels(models, name);
    if (matches.length > 1) {
      const commands = matches.map(match => `kvasir rm ${formatModelName(name.repo, match, models)}`);
      throw new InputError(`${model} matches ${matches.length} models. Choose one:${bulletList(commands)}`);
    }
    const names = matches.flatMap(({ file, parts }) => [...parts, ...profileNames(file)]);
    for (const path of names.map(name => snapshotPath(dir, commit, name)))
      if ((await fileSize(path)) !== undefined) files.push(path);
  }
  if (files.length === 0)
    throw new InputError(`${model} is not in the cache. \`kvasir list\` shows the models that are.`);

  const { blobs, bytes } = await findUnsharedBlobs(dir, commits, files);
  const run = async () => {
    for (const file of files) await rm(file, { force: true });
    for (const blob of blobs) await rm(blob, { force: true });
    for (const file of files) await removeEmptyFolders(dirname(file), join(dir, 'snapshots'));
    await removeDanglingRefs(dir);
  };
  return { files, blobs, bytes, run };
}

/** The blobs that only these files use, and their size. */
async function findUnsharedBlobs(dir: string, commits: readonly string[], files: readonly string[]) {
  const others: string[] = [];
  for (const commit of commits) {
    const root = join(dir, 'snapshots', commit);
    const names = await listFolder(root, true);
    others.push(...names.map(name => join(root, name)).filter(path => !files.includes(path)));
  }
  // Symlinks and hard links both lead to the blob's inode.
  const keptInodes = new Set(await Promise.all(others.map(inodeOf)));
  const removedInodes = new Map<string, number>();
  for (const file of files) {
    const { size } = await stat(file);
    const inode = await inodeOf(file);
    if (inode && !keptInodes.has(inode)) removedInodes.set(inode, size);
  }
  const all = (await listFolder(join(dir, 'blobs'))).map(name => join(dir, 'blobs', name));
  const inodes = await Promise.all(all.map(inodeOf));
  const blobs = all.filter((_, i) => removedInodes.has(inodes[i] ?? ''));
  return { blobs, bytes: [...removedInodes.values()].reduce((sum, size) => sum + size, 0) };
}

async function inodeOf(path: string): Promise<string | undefined> {
  const found = await stat(path, { bigint: true }).catch(() => undefined);
  return found?.isFile() ? `${found.dev} ${found.ino}` : undefined;
}

/** Removes a folder and its parents below `root` while they are empty. */
async function removeEmptyFolders(folder: string, root: string): Promise<void> {
  for (let path = folder; path.startsWith(root + sep); path = dirname(path)) {
    const removed = await rmdir(path).then(
      () => true,
      () => false,
    );
    if (!removed) return;
  }
}

/** Removes refs without a snapshot, or the whole folder if it has no snapshots and no partial downloads. */
async function removeDanglingRefs(dir: string): Promise<void> {
  const commits = await listFolder(join(dir, 'snapshots'));
  const hasPartial = (await listFolder(join(dir, 'blobs'))).some(name => name.endsWith('.incomplete'));
  if (commits.length === 0 && !hasPartial) return rm(dir, { recursive: true, force: true });
  const refs = join(dir, 'refs');
  for (const name of await listFolder(refs, true)) {
    const commit = await readRef(dir, name.split(sep).join('/'));
    if (commit && !commits.includes(commit)) {
      await rm(join(refs, name));
      await removeEmptyFolders(dirname(join(refs, name)), refs);
    }
  }
}

const listFolder = (folder: string, recursive = false): Promise<string[]> =>
  readdir(folder, { recursive }).catch(() => []);
