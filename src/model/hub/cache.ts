/**
 * The hub cache on disk, shared with Python's huggingface_hub and others, so that a model is downloaded once:
 *
 *   models--org--repo/blobs/<sha256>             the bytes, named by their hash (git's sha1 for files outside LFS)
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
import { basename, dirname, join, relative, sep } from 'node:path';

export type Env = Record<string, string | undefined>;

const expand = (path: string) => path.replace(/^~(?=$|[\\/])/, homedir());

export function hfHome(env: Env): string {
  if (env.HF_HOME) return expand(env.HF_HOME);
  return join(expand(env.XDG_CACHE_HOME || join(homedir(), '.cache')), 'huggingface');
}

export function cacheDir(env: Env): string {
  return env.HF_HUB_CACHE ? expand(env.HF_HUB_CACHE) : join(hfHome(env), 'hub');
}

/** The user's token: $HF_TOKEN, else the file that `hf auth login` wrote. */
export async function readToken(env: Env): Promise<string | undefined> {
  const path = env.HF_TOKEN_PATH ? expand(env.HF_TOKEN_PATH) : join(hfHome(env), 'token');
  const text = env.HF_TOKEN || (await readFile(path, 'utf8').catch(() => ''));
  return text.trim() || undefined;
}

export const repoDir = (cache: string, repo: string): string => join(cache, `models--${repo.replace('/', '--')}`);

export const isCommit = (text: unknown): text is string => typeof text === 'string' && /^[0-9a-f]{40}$/.test(text);

/** The size of a file, or undefined where there is none: a dangling link counts as none. */
export async function fileSize(path: string): Promise<number | undefined> {
  const found = await stat(path).catch(() => undefined);
  return found?.isFile() ? found.size : undefined;
}

/** The commit that a revision stood for when it was last pulled. */
export async function readRef(dir: string, revision: string): Promise<string | undefined> {
  if (isCommit(revision)) return revision;
  const text = await readFile(join(dir, 'refs', revision), 'utf8').catch(() => '');
  return isCommit(text.trim()) ? text.trim() : undefined;
}

export async function writeRef(dir: string, revision: string, commit: string): Promise<void> {
  if (revision === commit) return;
  await replace(join(dir, 'refs', revision), path => writeFile(path, commit));
}

export const snapshotPath = (dir: string, commit: string, file: string): string =>
  join(dir, 'snapshots', commit, ...file.split('/'));

/** Makes snapshots/<commit>/<file> show a blob, and gives its path. */
export async function linkSnapshot(dir: string, commit: string, file: string, hash: string): Promise<string> {
  const blob = join(dir, 'blobs', hash);
  const pointer = snapshotPath(dir, commit, file);
  const [there, target] = await Promise.all([pointer, blob].map(path => realpath(path).catch(() => undefined)));
  // Where there are no symlinks Python keeps the file itself in the snapshot, and no blob.
  if (there !== undefined && (target === undefined || target === there)) return pointer;
  await replace(pointer, async path => {
    // Windows needs a privilege for symlinks; a hard link costs no space, and a copy works everywhere.
    await symlink(relative(dirname(pointer), blob), path)
      .catch(() => link(blob, path))
      .catch(() => copyFile(blob, path));
  });
  return pointer;
}

/** Writes beside and renames over, so that a reader never sees half a file. */
async function replace(path: string, write: (path: string) => Promise<void>): Promise<void> {
  const fresh = `${path}.${process.pid}.${Math.random().toString(36).slice(2)}.tmp`;
  await mkdir(dirname(path), { recursive: true });
  try {
    await write(fresh);
    await rename(fresh, path);
  } finally {
    await rm(fresh, { force: true });
  }
}

/** The snapshots of a repository: the one that `revision` names first, then the newest. */
export async function snapshots(dir: string, revision: string): Promise<string[]> {
  const names = await readdir(join(dir, 'snapshots')).catch(() => []);
  const head = await readRef(dir, revision);
  const dated = names
    .filter(isCommit)
    .map(async name => ({ name, time: name === head ? Number.POSITIVE_INFINITY : await modified(dir, name) }));
  return (await Promise.all(dated)).sort((a, b) => b.time - a.time).map(({ name }) => name);
}

const modified = async (dir: string, name: string) => (await stat(join(dir, 'snapshots', name))).mtimeMs;

/** The GGUF files of a snapshot whose bytes are really there, as the repository names them. */
export async function snapshotFiles(dir: string, commit: string): Promise<string[]> {
  const root = join(dir, 'snapshots', commit);
  const names = await readdir(root, { recursive: true }).catch(() => []);
  const ggufs = names.filter(name => /\.gguf$/i.test(name));
  const sizes = await Promise.all(ggufs.map(name => fileSize(join(root, name))));
  return ggufs.filter((_, i) => sizes[i] !== undefined).map(name => name.split(sep).join('/'));
}

export async function cachedRepos(cache: string): Promise<string[]> {
  const names = await readdir(cache).catch(() => []);
  const repos = names.map(name => /^models--(.+?)--(.+)$/.exec(name)).filter(match => match !== null);
  return repos.map(([, org, name]) => `${org}/${name}`).sort();
}

/** A cached file's sha256, free of charge: it is the name of its blob. Undefined for files that lie elsewhere. */
export async function cachedSha256(path: string): Promise<string | undefined> {
  const real = await realpath(path).catch(() => '');
  const name = basename(real);
  return basename(dirname(real)) === 'blobs' && /^[0-9a-f]{64}$/.test(name) ? name : undefined;
}
