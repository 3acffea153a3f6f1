/** Reads a repository's files, sizes and hashes from the hub. The hub's answers are untrusted. */
import { FormatError } from '../util/errors.ts';
import { isCommit } from './cache.ts';
import { toPrintable } from './format.ts';
import { type Hub, type HubResponse, request, statusError, TransientError, withRetries } from './http.ts';
import { isSafePath } from './name.ts';

export interface RepoListing {
  commit: string;
  /** The GGUF files and profiles, with the size and hash that the listing gives. */
  files: Map<string, { size?: unknown; sha256?: string }>;
}

/** A file to download, with what is needed to verify it. */
export interface RemoteFile {
  repo: string;
  file: string;
  url: string;
  size: number;
  /** sha256, or the git sha1 (40 digits) for a file outside LFS. Names the blob and verifies the bytes. */
  hash: string;
}

const maxListingBytes = 32 * 2 ** 20;
const maxFileBytes = 2 ** 42;
const metadataRetries = 2; // fail fast when the network is down

export async function listRepoFiles(hub: Hub, repo: string, revision: string): Promise<RepoListing> {
  const url = `${hub.endpoint}/api/models/${repo}/revision/${encodeURIComponent(revision)}?blobs=true`;
  const body = await requestWithRetries(hub, repo, repo, () => request(hub, url), readText);
  const { sha, siblings } = parseListing(body, repo);
  if (!isCommit(sha)) throw new FormatError(`the hub's answer for ${repo} has no commit: check HF_ENDPOINT`);
  const listing: RepoListing = { commit: sha, files: new Map() };
  for (const { rfilename, size, lfs } of siblings) {
    if (typeof rfilename !== 'string' || !/\.(gguf|kvprofile)$/i.test(rfilename)) continue;
    if (!isSafePath(rfilename)) {
      throw new FormatError(
        `${repo} contains a file with an unsafe name, '${toPrintable(rfilename)}': nothing was downloaded`,
      );
    }
    listing.files.set(rfilename, { size: lfs?.size ?? size, sha256: isSha256(lfs?.sha256) ? lfs.sha256 : undefined });
  }
  return listing;
}

/** Requests one file's size and hash, at the listing's commit, so that all parts are of the same revision. */
export async function fetchFileInfo(hub: Hub, repo: string, listing: RepoListing, file: string): Promise<RemoteFile> {
  const { commit } = listing;
  const path = file.split('/').map(encodeURIComponent).join('/');
  const url = `${hub.endpoint}/${repo}/resolve/${commit}/${path}`;
  const what = `${repo}/${file}`;
  const { status, headers } = await requestWithRetries(
    hub,
    repo,
    what,
    () => request(hub, url, { method: 'HEAD', sameOrigin: true }),
    async ({ response }) => response,
  );
  const sent = headers.get('x-repo-commit') ?? commit;
  if (sent !== commit) throw new FormatError(`${repo} changed during the download: run the same command again`);
  // The content-length and etag of a redirect are not the file's.
  const fileHeader = (name: string) => (status === 200 ? headers.get(name) : null);
  const listed = listing.files.get(file);
  const size = Number(headers.get('x-linked-size') ?? fileHeader('content-length') ?? listed?.size ?? Number.NaN);
  if (!Number.isSafeInteger(size) || size < 1 || size > maxFileBytes) {
    throw new FormatError(`${what} has an invalid size (${size} bytes): not downloaded`);
  }
  const tag = (headers.get('x-linked-etag') ?? fileHeader('etag') ?? '').replace(/^W\/|"/g, '');
  if (listed?.sha256 !== undefined && isSha256(tag) && tag !== listed.sha256) {
    throw new FormatError(`${what} has different checksums in the hub's listing and in its headers: not downloaded`);
  }
  const hash = listed?.sha256 ?? tag;
  if (!isSha256(hash) && !isCommit(hash)) {
    throw new FormatError(`${what} has no checksum, so it cannot be verified: check HF_ENDPOINT`);
  }
  return { repo, file, url, size, hash };
}

/** Fills `into` with the bytes of a file from `offset` on. They are not verified: only a whole file has a checksum. */
export async function readRange(hub: Hub, remote: RemoteFile, offset: number, into: Uint8Array): Promise<void> {
  const { repo, file, url } = remote;
  const end = offset + into.length;
  const send = () => request(hub, url, { start: offset, end });
  await requestWithRetries(hub, repo, `${repo}/${file}`, send, async ({ response, read }) => {
    // A server without ranges sends the whole file.
    let at = response.status === 206 ? offset : 0;
    while (at < end) {
      const chunk = await read();
      if (!chunk) throw new TransientError(`${file}: the connection closed early`);
      const skipped = Math.max(0, offset - at);
      into.set(chunk.subarray(skipped, end - at), at + skipped - offset);
      at += chunk.length;
    }
  });
}

const isSha256 = (text: unknown): text is string => typeof text === 'string' && /^[0-9a-f]{64}$/.test(text);

function requestWithRetries<T>(
  hub: Hub,
  repo: string,
  what: string,
  send: () => Promise<HubResponse>,
  use: (reply: HubResponse) => Promise<T>,
) {
  return withRetries(hub, Math.min(hub.retries, metadataRetries), async () => {
    const reply = await send();
    try {
      if (reply.response.status >= 400) throw statusError(hub, reply, repo, what);
      return await use(reply);
    } finally {
      await reply.close();
    }
  });
}

async function readText(reply: HubResponse): Promise<string> {
  const chunks: Uint8Array[] = [];
  let size = 0;
  for (let chunk = await reply.read(); chunk; chunk = await reply.read()) {
    size += chunk.length;
    if (size > maxListingBytes) throw new FormatError("the hub's list of files is too long: check the repository name");
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString('utf8');
}

interface Sibling {
  rfilename?: unknown;
  size?: unknown;
  lfs?: { sha256?: unknown; size?: unknown };
}

function parseListing(body: string, repo: string): { sha?: unknown; siblings: Sibling[] } {
  try {
    const { sha, siblings } = JSON.parse(body);
    if (Array.isArray(siblings)) return { sha, siblings: siblings.filter(item => item && typeof item === 'object') };
  } catch {
    // Not JSON: a network's login page, or a server that is not a hub.
  }
  throw new FormatError(
    `the response for ${repo} is not from a hub: check HF_ENDPOINT, or log in to this network first`,
  );
}
