/** Downloads files from the hub into the cache: list, select, check disk space, download, link. */
import { mkdir, rm, statfs } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { CapacityError, FormatError, InputError } from '../util/errors.ts';
import { formatFileSize } from '../util/units.ts';
import { cacheDir, type Env, fileSize, linkSnapshot, readToken, repoDir, snapshotPath, writeRef } from './cache.ts';
import { download, partialPath } from './download.ts';
import { bulletList } from './format.ts';
import type { Hub } from './http.ts';
import { withLock } from './lock.ts';
import { checkRevision, chooseModels, formatModelName, type GgufModel, groupModels, type ModelName } from './name.ts';
import { fetchFileInfo, listRepoFiles, type RemoteFile, type RepoListing } from './remote-files.ts';

/** Options of everything that uses the hub. */
export interface HubOptions {
  /** A branch, tag or commit. Default: `main`. */
  revision?: string;
  /** Access token. Default: $HF_TOKEN, or the token file of `hf auth login`. Only sent to the endpoint's host. */
  token?: string;
  /** Default: $HF_ENDPOINT, or https://huggingface.co. */
  endpoint?: string;
  /** Aborts the download; the next pull resumes it. */
  signal?: AbortSignal;
  onProgress?: (progress: PullProgress) => void;
  /** Called with messages for the user: which file was selected, why it waits or retries. */
  onMessage?: (line: string) => void;
  /** Where HF_TOKEN, HF_ENDPOINT, HF_HUB_CACHE, HF_HOME and HF_HUB_OFFLINE are looked up. Default: `process.env`. */
  env?: Env;
  /** Retries after consecutive failures without progress. Default: 5. */
  retries?: number;
  /** Delay before the first retry; doubles with each further one. Default: 1000. */
  retryDelayMs?: number;
  /** A connection without data for this long is retried. Default: 60,000. */
  idleTimeoutMs?: number;
}

export interface PullProgress {
  /** The file that is being downloaded. */
  file: string;
  /** Bytes of all files, including those that were in the cache. */
  done: number;
  total: number;
}

export interface PulledFile {
  /** Path in the repository. */
  file: string;
  /** Path on disk. */
  path: string;
  bytes: number;
  /** sha256; the git sha1 for a file outside LFS. */
  hash: string;
  /** False if it was in the cache already. */
  fetched: boolean;
}

/** A repository of the hub, as it is at one commit, and its folder in the cache. */
export interface OpenedRepo {
  hub: Hub;
  cache: string;
  repo: string;
  revision: string;
  listing: RepoListing;
}

/** A model on the hub. */
export interface RemoteModel {
  quant?: string;
  /** Its parts, in order. */
  files: RemoteFile[];
}

/** A model in the cache. */
export interface PulledModel {
  quant?: string;
  /** Its parts, in order. */
  files: PulledFile[];
}

/** A file to download, which may be of another repository, and its name in the snapshot. */
interface Download {
  remote: RemoteFile;
  file: string;
}

export async function openRepo(repo: string, options: HubOptions = {}): Promise<OpenedRepo> {
  const { env = process.env, revision = 'main' } = options;
  checkRevision(revision);
  const hub = await createConnection(env, options);
  return { hub, cache: cacheDir(env), repo, revision, listing: await listRepoFiles(hub, repo, revision) };
}

/** The models of an opened repository that match a name. */
export async function findModels({ hub, repo, listing }: OpenedRepo, name: ModelName): Promise<RemoteModel[]> {
  const found: RemoteModel[] = [];
  for (const { quant, parts } of selectModels(listing, name, hub.onMessage)) {
    const files: RemoteFile[] = [];
    for (const part of parts) files.push(await fetchFileInfo(hub, repo, listing, part));
    found.push({ quant, files });
  }
  return found;
}

/** Downloads models of an opened repository. */
export async function storeModels(
  opened: OpenedRepo,
  models: readonly RemoteModel[],
  options: StoreOptions,
): Promise<PulledModel[]> {
  const downloads = models.flatMap(({ files }) => files.map(remote => ({ file: remote.file, remote })));
  const stored = await storeFiles(opened, downloads, options);
  return models.map(({ quant, files }) => ({ quant, files: stored.splice(0, files.length) }));
}

interface StoreOptions {
  onProgress?: HubOptions['onProgress'];
  /** Called before anything is downloaded, if not everything is in the cache. */
  beforeDownload?: () => Promise<void>;
  /** Throws if a file is not what it should be: it is deleted, and not linked. */
  check?: (path: string) => Promise<void>;
}

/** Downloads files into the cache folder of a repository, unless they are there, and links them into its snapshot. */
export async function storeFiles(
  { hub, cache, repo, revision, listing: { commit } }: OpenedRepo,
  downloads: readonly Download[],
  { onProgress, beforeDownload, check }: StoreOptions,
): Promise<PulledFile[]> {
  const dir = repoDir(cache, repo);
  try {
    await mkdir(join(dir, 'blobs'), { recursive: true });
    const files: PulledFile[] = [];
    const cachedBytes = await countCachedBytes(dir, commit, downloads);
    const done = downloads.map(({ remote }) => cachedBytes.get(remote.hash) ?? 0);
    const total = downloads.reduce((sum, { remote }) => sum + remote.size, 0);
    await checkDiskSpace(dir, downloads, cachedBytes);
    if (done.reduce((a, b) => a + b, 0) < total) await beforeDownload?.();
    for (const [i, { remote, file }] of downloads.entries()) {
      const report = (bytes: number) => {
        done[i] = bytes;
        onProgress?.({ file: remote.file, done: done.reduce((a, b) => a + b), total });
      };
      report(done[i]);
      const fetched = await downloadIfMissing(hub, dir, commit, downloads[i], report);
      report(remote.size);
      const blob = join(dir, 'blobs', remote.hash);
      const stored = (await fileSize(blob)) === undefined ? snapshotPath(dir, commit, file) : blob;
      await check?.(stored).catch(async error => {
        if (fetched) await rm(blob, { force: true });
        throw error;
      });
      const path = await linkSnapshot(dir, commit, file, remote.hash);
      files.push({ file: remote.file, path, bytes: remote.size, hash: remote.hash, fetched });
    }
    await writeRef(dir, revision, commit);
    return files;
  } catch (error) {
    throw asKvasirError(error, cache);
  }
}

async function createConnection(env: Env, options: HubOptions): Promise<Hub> {
  if (/^(1|on|yes|true)$/i.test(env.HF_HUB_OFFLINE ?? '')) {
    throw new InputError('HF_HUB_OFFLINE is set, so nothing can be downloaded: unset it to pull');
  }
  const endpoint = (options.endpoint ?? (env.HF_ENDPOINT || 'https://huggingface.co')).replace(/\/+$/, '');
  if (!/^https?:\/\//.test(endpoint) || !URL.canParse(endpoint)) {
    throw new InputError(`HF_ENDPOINT is '${endpoint}', which is not a web address: try https://huggingface.co`);
  }
  const token = options.token ?? (await readToken(env));
  if (token !== undefined && !/^[\x21-\x7e]+$/.test(token)) {
    throw new InputError('the Hugging Face token contains invalid characters: check HF_TOKEN');
  }
  const { signal, onMessage = () => {}, retries = 5, retryDelayMs = 1000, idleTimeoutMs = 60_000 } = options;
  return { endpoint, token, signal, onMessage, retries, retryDelayMs, idleTimeoutMs };
}

function selectModels(listing: RepoListing, name: ModelName, onMessage: (line: string) => void): GgufModel[] {
  const all = groupModels([...listing.files.keys()]);
  if (all.length === 0) {
    throw new InputError(`${name.repo} has no GGUF files: look for a repository of this model with GGUF in its name`);
  }
  const selected = chooseModels(all, name);
  if (selected.models.length === 0) {
    const wanted = name.file ?? name.quant;
    const problem = wanted === undefined ? 'has several models' : `has no ${wanted}`;
    const commands = all.map(model => `kvasir pull ${formatModelName(name.repo, model, all)}`);
    throw new InputError(`${name.repo} ${problem}. It has:${bulletList(commands)}`);
  }
  for (const { file, parts, partCount } of selected.models) {
    if (parts.length !== partCount) {
      throw new FormatError(`${name.repo} has ${parts.length} of the ${partCount} parts of ${file}: try another file`);
    }
  }
  if (selected.note) onMessage(selected.note);
  if (selected.models.length > 1) {
    const names = selected.models.map(model => `${name.repo}/${model.file}`);
    onMessage(
      `${name.quant} matches ${names.length} models, downloading all of them; to run one, use its name:${bulletList(names)}`,
    );
  }
  return selected.models;
}

/** Bytes of each blob that are on disk, complete or partial. */
async function countCachedBytes(
  dir: string,
  commit: string,
  downloads: readonly Download[],
): Promise<Map<string, number>> {
  const bytes = new Map<string, number>();
  for (const download of downloads) {
    const { remote } = download;
    const partial = (await fileSize(partialPath(join(dir, 'blobs', remote.hash)))) ?? 0;
    bytes.set(remote.hash, (await isCached(dir, commit, download)) ? remote.size : Math.min(partial, remote.size));
  }
  return bytes;
}

async function isCached(dir: string, commit: string, { file, remote }: Download): Promise<boolean> {
  const blob = await fileSize(join(dir, 'blobs', remote.hash));
  // Without a blob, the snapshot may have the file itself; but not if its name was chosen here.
  const isNamedByRepo = file === remote.file && dir === repoDir(dirname(dir), remote.repo);
  return (blob ?? (isNamedByRepo ? await fileSize(snapshotPath(dir, commit, file)) : undefined)) === remote.size;
}

async function checkDiskSpace(
  dir: string,
  downloads: readonly Download[],
  cachedBytes: Map<string, number>,
): Promise<void> {
  const sizes = new Map(downloads.map(({ remote: { hash, size } }) => [hash, size]));
  let needed = 0;
  for (const [hash, size] of sizes) needed += size - (cachedBytes.get(hash) ?? 0);
  const { bavail, bsize } = await statfs(dir);
  if (needed <= bavail * bsize) return;
  throw new CapacityError(
    `not enough disk space: the download needs ${formatFileSize(needed)}, and ${dir} has ${formatFileSize(bavail * bsize)} free. ` +
      'Free some space, choose a smaller quantization, or set HF_HUB_CACHE to a folder on another disk',
  );
}

/** Downloads the blob unless it is cached; returns whether it was downloaded. */
async function downloadIfMissing(
  hub: Hub,
  dir: string,
  commit: string,
  file: Download,
  report: (bytes: number) => void,
) {
  const { remote } = file;
  if (await isCached(dir, commit, file)) return false;
  const lock = join(dirname(dir), '.locks', basename(dir), `${remote.hash}.kvasir`);
  const onWait = () =>
    hub.onMessage(`${remote.file} is being pulled by another process, waiting (15 s if that process has died)`);
  const downloadLocked = async () => {
    if (await isCached(dir, commit, file)) return false;
    await download(hub, remote, join(dir, 'blobs', remote.hash), report);
    return true;
  };
  return withLock(lock, downloadLocked, { signal: hub.signal, onWait });
}

function asKvasirError(error: unknown, cache: string): unknown {
  const { code, message } = error as NodeJS.ErrnoException;
  if (code === 'ENOSPC' || code === 'EDQUOT') {
    return new CapacityError(
      `the disk of ${cache} is full: free some space, or set HF_HUB_CACHE to a folder on another disk`,
    );
  }
  if (code === 'EACCES' || code === 'EPERM' || code === 'EROFS') {
    return new InputError(`cannot write to the cache: ${message}. Set HF_HUB_CACHE to a writable folder`);
  }
  return error;
}
