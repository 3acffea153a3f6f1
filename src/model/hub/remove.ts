/**
 * Takes a model out of the hub cache, in every snapshot that shows it, and leaves the cache as Python's
 * huggingface_hub expects it: no blob that a file still shows is lost, no empty snapshot and no ref to one is left.
 */
import { readdir, rm, rmdir, stat } from 'node:fs/promises';
import { dirname, join, sep } from 'node:path';
import { InputError } from '../../errors.ts';
import { cacheDir, type Env, isCommit, readRef, repoDir, snapshotFiles, snapshotPath } from './cache.ts';
import { askFor, groupModels, matchModels, requireModelName } from './name.ts';
import { bullets } from './text.ts';

export interface Removal {
  /** What the snapshots show: links, or the files themselves. */
  files: readonly string[];
  blobs: readonly string[];
  /** What goes with the blobs. */
  bytes: number;
  run(): Promise<void>;
}

/** What removing a model would delete; nothing is touched before `run`. */
export async function planRemoval(text: string, env: Env = process.env): Promise<Removal> {
  const name = requireModelName(text);
  const dir = repoDir(cacheDir(env), name.repo);
  const commits = (await list(join(dir, 'snapshots'))).filter(isCommit);
  const files: string[] = [];
  for (const commit of commits) {
    const models = groupModels(await snapshotFiles(dir, commit));
    const matches = matchModels(models, name);
    if (matches.length > 1) {
      const ways = matches.map(model => `kvasir rm ${askFor(name.repo, model, models)}`);
      throw new InputError(`${text} means ${matches.length} models. Say which one:${bullets(ways)}`);
    }
    files.push(...matches.flatMap(({ parts }) => parts.map(part => snapshotPath(dir, commit, part))));
  }
  if (files.length === 0)
    throw new InputError(`${text} is not on this machine. \`kvasir list\` shows the models that are.`);

  const { blobs, bytes } = await unshared(dir, commits, files);
  const run = async () => {
    for (const file of files) await rm(file, { force: true });
    for (const blob of blobs) await rm(blob, { force: true });
    for (const file of files) await removeEmpty(dirname(file), join(dir, 'snapshots'));
    await tidy(dir);
  };
  return { files, blobs, bytes, run };
}

/** The blobs that these files show and no other file does, and the bytes that go with them. */
async function unshared(dir: string, commits: readonly string[], files: readonly string[]) {
  const others: string[] = [];
  for (const commit of commits) {
    const root = join(dir, 'snapshots', commit);
    const names = await list(root, true);
    others.push(...names.map(name => join(root, name)).filter(path => !files.includes(path)));
  }
  // A symlink and a hard link alike lead to the inode of the blob.
  const kept = new Set(await Promise.all(others.map(inodeOf)));
  const going = new Map<string, number>();
  for (const file of files) {
    const { size } = await stat(file);
    const inode = await inodeOf(file);
    if (inode && !kept.has(inode)) going.set(inode, size);
  }
  const all = (await list(join(dir, 'blobs'))).map(name => join(dir, 'blobs', name));
  const inodes = await Promise.all(all.map(inodeOf));
  const blobs = all.filter((_, i) => going.has(inodes[i] ?? ''));
  return { blobs, bytes: [...going.values()].reduce((sum, size) => sum + size, 0) };
}

async function inodeOf(path: string): Promise<string | undefined> {
  const found = await stat(path, { bigint: true }).catch(() => undefined);
  return found?.isFile() ? `${found.dev} ${found.ino}` : undefined;
}

/** Removes a folder and its parents below `root` as far as they are empty. */
async function removeEmpty(folder: string, root: string): Promise<void> {
  for (let at = folder; at.startsWith(root + sep); at = dirname(at)) {
    const gone = await rmdir(at).then(
      () => true,
      () => false,
    );
    if (!gone) return;
  }
}

/** Refs of snapshots that are gone; the whole folder once it has no snapshot and no unfinished download. */
async function tidy(dir: string): Promise<void> {
  const left = await list(join(dir, 'snapshots'));
  const unfinished = (await list(join(dir, 'blobs'))).some(name => name.endsWith('.incomplete'));
  if (left.length === 0 && !unfinished) return rm(dir, { recursive: true, force: true });
  const refs = join(dir, 'refs');
  for (const name of await list(refs, true)) {
    const commit = await readRef(dir, name.split(sep).join('/'));
    if (commit && !left.includes(commit)) {
      await rm(join(refs, name));
      await removeEmpty(dirname(join(refs, name)), refs);
    }
  }
}

const list = (folder: string, recursive = false): Promise<string[]> => readdir(folder, { recursive }).catch(() => []);
