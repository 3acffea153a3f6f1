/** From a name to files in the cache: list, choose, ask, check the disk, fetch, link. */
import { mkdir, statfs } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { CapacityError, FormatError, InputError } from '../../errors.ts';
import { formatFileSize } from '../../units.ts';
import { cacheDir, type Env, fileSize, linkSnapshot, readToken, repoDir, snapshotPath, writeRef } from './cache.ts';
import { download, partialPath } from './download.ts';
import type { Hub } from './http.ts';
import { type Listing, listFiles, type RemoteFile, statFile } from './list.ts';
import { withLock } from './lock.ts';
import {
  askFor,
  checkRevision,
  chooseModels,
  type GgufModel,
  groupModels,
  type ModelName,
  requireModelName,
} from './name.ts';
import { bullets } from './text.ts';

export interface PullOptions {
  /** A branch, tag or commit; main unless given. */
  revision?: string;
  /** $HF_TOKEN, or the token file of `hf auth login`, unless given. Sent to the endpoint's host alone. */
  token?: string;
  /** $HF_ENDPOINT, or https://huggingface.co, unless given. */
  endpoint?: string;
  /** Stops the pull; what has arrived stays, and the next pull continues from there. */
  signal?: AbortSignal;
  onProgress?: (progress: PullProgress) => void;
  /** A sentence for the user: what was chosen, why it waits or tries again. */
  onNote?: (line: string) => void;
  /** Where the variables above are looked up: process.env unless given. */
  env?: Env;
  /** Failures in a row before a download gives up (5), the first pause (1 s), how long silence is borne (60 s). */
  retries?: number;
  retryMs?: number;
  stallMs?: number;
}

/** Bytes over all files of the pull; `done` begins with those that were in place before. */
export interface PullProgress {
  file: string;
  done: number;
  total: number;
}

export interface PulledFile {
  file: string;
  path: string;
  bytes: number;
  /** sha256; git's sha1 for a file outside large file storage. */
  hash: string;
  /** False where it was in the cache already. */
  fetched: boolean;
}

export interface PullResult {
  repo: string;
  revision: string;
  commit: string;
  quant?: string;
  /** What to load: the first part of the (first) model. */
  path: string;
  files: PulledFile[];
}

export async function pull(text: string, options: PullOptions = {}): Promise<PullResult> {
  const name = requireModelName(text);
  const { env = process.env, revision = 'main', onProgress } = options;
  checkRevision(revision);
  const hub = await openHub(env, options);
  const cache = cacheDir(env);
  const dir = repoDir(cache, name.repo);

  const listing = await listFiles(hub, name.repo, revision);
  const models = choose(listing, name, hub.note);
  const remotes: RemoteFile[] = [];
  for (const file of models.flatMap(model => model.parts)) {
    remotes.push(await statFile(hub, name.repo, listing, file));
  }

  try {
    await mkdir(join(dir, 'blobs'), { recursive: true });
    const files: PulledFile[] = [];
    const before = await inPlace(dir, listing.commit, remotes);
    const have = remotes.map(({ hash }) => before.get(hash) ?? 0);
    const total = remotes.reduce((sum, { size }) => sum + size, 0);
    await checkSpace(dir, remotes, before);
    for (const [i, remote] of remotes.entries()) {
      const report = (bytes: number) => {
        have[i] = bytes;
        onProgress?.({ file: remote.file, done: have.reduce((a, b) => a + b), total });
      };
      report(have[i]);
      const fetched = await fetchOnce(hub, cache, listing.commit, remote, report);
      report(remote.size);
      const path = await linkSnapshot(dir, listing.commit, remote.file, remote.hash);
      files.push({ file: remote.file, path, bytes: remote.size, hash: remote.hash, fetched });
    }
    await writeRef(dir, revision, listing.commit);
    return { repo: name.repo, revision, commit: listing.commit, quant: models[0].quant, path: files[0].path, files };
  } catch (error) {
    throw explain(error, cache);
  }
}

async function openHub(env: Env, options: PullOptions): Promise<Hub> {
  if (/^(1|on|yes|true)$/i.test(env.HF_HUB_OFFLINE ?? '')) {
    throw new InputError('HF_HUB_OFFLINE is set, so nothing is downloaded: unset it to pull');
  }
  const endpoint = (options.endpoint ?? (env.HF_ENDPOINT || 'https://huggingface.co')).replace(/\/+$/, '');
  if (!/^https?:\/\//.test(endpoint) || !URL.canParse(endpoint)) {
    throw new InputError(`HF_ENDPOINT is '${endpoint}', which is no web address: try https://huggingface.co`);
  }
  const token = options.token ?? (await readToken(env));
  if (token !== undefined && !/^[\x21-\x7e]+$/.test(token)) {
    throw new InputError('the Hugging Face token holds characters that no token has: check HF_TOKEN');
  }
  const { signal, onNote = () => {}, retries = 5, retryMs = 1000, stallMs = 60_000 } = options;
  return { endpoint, token, signal, note: onNote, retries, retryMs, stallMs };
}

function choose(listing: Listing, name: ModelName, note: (line: string) => void): GgufModel[] {
  const all = groupModels([...listing.files.keys()]);
  if (all.length === 0) {
    throw new InputError(
      `${name.repo} has no GGUF files: look for a repository of the same model with GGUF in its name`,
    );
  }
  const chosen = chooseModels(all, name);
  if (chosen.models.length === 0) {
    const wish = name.file ?? name.quant;
    const problem = wish === undefined ? 'has several models' : `has no ${wish}`;
    const ways = all.map(model => `kvasir pull ${askFor(name.repo, model, all)}`);
    throw new InputError(`${name.repo} ${problem}. It has:${bullets(ways)}`);
  }
  for (const { file, parts, partCount } of chosen.models) {
    if (parts.length !== partCount) {
      throw new FormatError(`${name.repo} has ${parts.length} of the ${partCount} parts of ${file}: try another file`);
    }
  }
  if (chosen.note) note(chosen.note);
  if (chosen.models.length > 1) {
    const names = chosen.models.map(model => `${name.repo}/${model.file}`);
    note(`${name.quant} means ${names.length} models, fetching all; to run one, say which:${bullets(names)}`);
  }
  return chosen.models;
}

/** How many bytes of every blob are on disk, whole or partial. */
async function inPlace(dir: string, commit: string, remotes: RemoteFile[]): Promise<Map<string, number>> {
  const found = new Map<string, number>();
  for (const remote of remotes) {
    const partial = (await fileSize(partialPath(join(dir, 'blobs', remote.hash)))) ?? 0;
    found.set(remote.hash, (await isThere(dir, commit, remote)) ? remote.size : Math.min(partial, remote.size));
  }
  return found;
}

async function isThere(dir: string, commit: string, { file, hash, size }: RemoteFile): Promise<boolean> {
  const blob = await fileSize(join(dir, 'blobs', hash));
  return (blob ?? (await fileSize(snapshotPath(dir, commit, file)))) === size;
}

async function checkSpace(dir: string, remotes: RemoteFile[], before: Map<string, number>): Promise<void> {
  const sizes = new Map(remotes.map(({ hash, size }) => [hash, size]));
  let needed = 0;
  for (const [hash, size] of sizes) needed += size - (before.get(hash) ?? 0);
  const { bavail, bsize } = await statfs(dir);
  if (needed <= bavail * bsize) return;
  throw new CapacityError(
    `this needs ${formatFileSize(needed)} more disk, and ${dir} has ${formatFileSize(bavail * bsize)} free: ` +
      'make room, choose a smaller quantization, or set HF_HUB_CACHE to a folder on another disk',
  );
}

/** Makes sure that the blob is there; true if it had to be fetched. */
async function fetchOnce(hub: Hub, cache: string, commit: string, remote: RemoteFile, report: (have: number) => void) {
  const dir = repoDir(cache, remote.repo);
  if (await isThere(dir, commit, remote)) return false;
  const lock = join(cache, '.locks', basename(dir), `${remote.hash}.kvasir`);
  const onWait = () =>
    hub.note(`${remote.file} is being pulled by another process, waiting for it (if that one died, 15 s)`);
  const fetchIt = async () => {
    if (await isThere(dir, commit, remote)) return false;
    await download(hub, remote, join(dir, 'blobs', remote.hash), report);
    return true;
  };
  return withLock(lock, fetchIt, { signal: hub.signal, onWait });
}

function explain(error: unknown, cache: string): unknown {
  const { code, message } = error as NodeJS.ErrnoException;
  if (code === 'ENOSPC' || code === 'EDQUOT') {
    return new CapacityError(`the disk is full: make room, or set HF_HUB_CACHE to a folder on another disk (${cache})`);
  }
  if (code === 'EACCES' || code === 'EPERM' || code === 'EROFS') {
    return new InputError(`cannot write to the cache: ${message}. Set HF_HUB_CACHE to a folder that you can write to`);
  }
  return error;
}
