/**
 * The hub cache on disk, in the layout of Python's huggingface_hub, so that all tools share one download:
 *
 *   models--org--repo/blobs/<sha256>             the bytes, named by their hash (the git sha1 for files outside LFS)
 *   models--org--repo/refs/<revision>            a commit, as text
 *   models--org--repo/snapshots/<commit>/<file>  a symlink to ../../blobs/<sha256>
 */
import {
  copyFile,
  link,
  mkdir,
  readdir,
  readFile,
  realpath,
  rename,
  rm,
  stat,
  symlink,
  writeFile,
} from 'node:fs/promises';
import { homedir } from 'node:os';
import { dirname, join, relative, sep } from 'node:path';

/** Environment variables, such as `process.env`. */
export type Env = Record<string, string | undefined>;

const expandHome = (path: string) => path.replace(/^~(?=$|[\\/])/, homedir());

function huggingFaceHome(env: Env): string {
  if (env.HF_HOME) return expandHome(env.HF_HOME);
  return join(expandHome(env.XDG_CACHE_HOME || join(homedir(), '.cache')), 'huggingface');
}

/** The folder of the hub cache: $HF_HUB_CACHE, else `hub` in $HF_HOME, else ~/.cache/huggingface/hub. */
export function cacheDir(env: Env = process.env): string {
  return env.HF_HUB_CACHE ? expandHome(env.HF_HUB_CACHE) : join(huggingFaceHome(env), 'hub');
}

/** The user's access token: $HF_TOKEN, else the file written by `hf auth login`. */
export async function readToken(env: Env): Promise<string | undefined> {
  const path = env.HF_TOKEN_PATH ? expandHome(env.HF_TOKEN_PATH) : join(huggingFaceHome(env), 'token');
  const text = env.HF_TOKEN || (await readFile(path, 'utf8').catch(() => ''));
  return text.trim() || undefined;
}

export const repoDir = (cache: string, repo: string): string => join(cache, `models--${repo.replace('/', '--')}`);

export const isCommit = (text: unknown): text is string => typeof text === 'string' && /^[0-9a-f]{40}$/.test(text);

/** The size of a file; undefined if it does not exist or is a dangling link. */
export async function fileSize(path: string): Promise<number | undefined> {
  const found = await stat(path).catch(() => undefined);
  return found?.isFile() ? found.size : undefined;
}

/** The commit that a revision pointed to when it was last pulled. */
export async function readRef(dir: string, revision: string): Promise<string | undefined> {
  if (isCommit(revision)) return revision;
  const text = await readFile(join(dir, 'refs', revision), 'utf8').catch(() => '');
  return isCommit(text.trim()) ? text.trim() : undefined;
}

export async function writeRef(dir: string, revision: string, commit: string): Promise<void> {
  if (revision === commit) return;
  await writeAtomically(join(dir, 'refs', revision), path => writeFile(path, commit));
}

export const snapshotPath = (dir: string, commit: string, file: string): string =>
  join(dir, 'snapshots', commit, ...file.split('/'));

/** Links snapshots/<commit>/<file> to a blob and returns the link's path. */
export async function linkSnapshot(dir: string, commit: string, file: string, hash: string): Promise<string> {
  const blob = join(dir, 'blobs', hash);
  const pointer = snapshotPath(dir, commit, file);
  const [linkTarget, blobTarget] = await Promise.all(
    [pointer, blob].map(path => realpath(path).catch(() => undefined)),
  );
  // Without symlinks, Python keeps the file itself in the snapshot, and no blob.
  if (linkTarget !== undefined && (blobTarget === undefined || blobTarget === linkTarget)) return pointer;
  await writeAtomically(pointer, async path => {
    // Symlinks need a privilege on Windows; a hard link takes no space, and a copy works everywhere.
    await symlink(relative(dirname(pointer), blob), path)
      .catch(() => link(blob, path))
      .catch(() => copyFile(blob, path));
  });
  return pointer;
}

/** Writes to a temporary file and renames it, so that a reader never sees an incomplete file. */
async function writeAtomically(path: string, write: (path: string) => Promise<void>): Promise<void> {
  const temporary = `${path}.${process.pid}.${Math.random().toString(36).slice(2)}.tmp`;
  await mkdir(dirname(path), { recursive: true });
  try {
    await write(temporary);
    await rename(temporary, path);
  } finally {
    await rm(temporary, { force: true });
  }
}

/** The commits of a repository's snapshots: the one of `revision` first, then the newest. */
export async function listSnapshots(dir: string, revision: string): Promise<string[]> {
  const names = await readdir(join(dir, 'snapshots')).catch(() => []);
  const head = await readRef(dir, revision);
  const dated = names
    .filter(isCommit)
    .map(async name => ({ name, time: name === head ? Number.POSITIVE_INFINITY : await snapshotTime(dir, name) }));
  return (await Promise.all(dated)).sort((a, b) => b.time - a.time).map(({ name }) => name);
}

const snapshotTime = async (dir: string, name: string) => (await stat(join(dir, 'snapshots', name))).mtimeMs;

/** The files of a snapshot with this extension, as named in the repository, without dangling links. */
export async function listSnapshotFiles(
  dir: string,
  commit: string,
  extension: '.gguf' | '.kvprofile',
): Promise<string[]> {
  const root = join(dir, 'snapshots', commit);
  const names = await readdir(root, { recursive: true }).catch(() => []);
  const matches = names.filter(name => name.toLowerCase().endsWith(extension));
  const sizes = await Promise.all(matches.map(name => fileSize(join(root, name))));
  return matches.filter((_, i) => sizes[i] !== undefined).map(name => name.split(sep).join('/'));
}

export async function listCachedRepos(cache: string): Promise<string[]> {
  const names = await readdir(cache).catch(() => []);
  const repos = names.map(name => /^models--(.+?)--(.+)$/.exec(name)).filter(match => match !== null);
  return repos.map(([, org, name]) => `${org}/${name}`).sort();
}
