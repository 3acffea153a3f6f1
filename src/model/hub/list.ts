/** What the hub says of a repository and its files, none of it believed before it is checked. */
import { FormatError } from '../../errors.ts';
import { isCommit } from './cache.ts';
import { type Hub, type Reply, refusal, request, retrying } from './http.ts';
import { isSafeFile } from './name.ts';
import { printable } from './text.ts';

export interface Listing {
  commit: string;
  /** The GGUF files alone, with what the list knows of them. */
  files: Map<string, { size?: unknown; sha256?: string }>;
}

/** A file that can be fetched and checked. */
export interface RemoteFile {
  repo: string;
  file: string;
  url: string;
  size: number;
  /** sha256, or git's sha1 of 40 digits for a file outside large file storage. Names the blob, proves the bytes. */
  hash: string;
}

const maxListing = 32 * 2 ** 20;
const maxFileSize = 2 ** 42;
const quickRetries = 2; // nobody wants to wait a minute to hear that the network is down

export async function listFiles(hub: Hub, repo: string, revision: string): Promise<Listing> {
  const url = `${hub.endpoint}/api/models/${repo}/revision/${encodeURIComponent(revision)}?blobs=true`;
  const body = await ask(hub, repo, repo, () => request(hub, url), readText);
  const { sha, siblings } = parse(body, repo);
  if (!isCommit(sha)) throw new FormatError(`the hub's answer for ${repo} names no commit: check HF_ENDPOINT`);
  const listing: Listing = { commit: sha, files: new Map() };
  for (const { rfilename, size, lfs } of siblings) {
    if (typeof rfilename !== 'string' || !/\.gguf$/i.test(rfilename)) continue;
    if (!isSafeFile(rfilename)) {
      throw new FormatError(`${repo} holds a file with an unsafe name, '${printable(rfilename)}': nothing was fetched`);
    }
    listing.files.set(rfilename, { size: lfs?.size ?? size, sha256: isSha256(lfs?.sha256) ? lfs.sha256 : undefined });
  }
  return listing;
}

/** Asks for one file's size and hash. The commit, not the branch, so that all parts come from one state. */
export async function statFile(hub: Hub, repo: string, listing: Listing, file: string): Promise<RemoteFile> {
  const { commit } = listing;
  const path = file.split('/').map(encodeURIComponent).join('/');
  const url = `${hub.endpoint}/${repo}/resolve/${commit}/${path}`;
  const what = `${repo}/${file}`;
  const { status, headers } = await ask(
    hub,
    repo,
    what,
    () => request(hub, url, { method: 'HEAD', stay: true }),
    async reply => reply.response,
  );
  const sent = headers.get('x-repo-commit') ?? commit;
  if (sent !== commit) throw new FormatError(`${repo} changed while it was read: run the same command again`);
  // A redirect's own length and tag are not the file's.
  const own = (name: string) => (status === 200 ? headers.get(name) : null);
  const listed = listing.files.get(file);
  const size = Number(headers.get('x-linked-size') ?? own('content-length') ?? listed?.size ?? Number.NaN);
  if (!Number.isSafeInteger(size) || size < 1 || size > maxFileSize) {
    throw new FormatError(`${what} has no believable size (${size} bytes): not fetched`);
  }
  const tag = (headers.get('x-linked-etag') ?? own('etag') ?? '').replace(/^W\/|"/g, '');
  if (listed?.sha256 !== undefined && isSha256(tag) && tag !== listed.sha256) {
    throw new FormatError(`${what} has one checksum in the hub's list and another in its headers: not fetched`);
  }
  const hash = listed?.sha256 ?? tag;
  if (!isSha256(hash) && !isCommit(hash)) {
    throw new FormatError(`${what} comes without a checksum, so it cannot be trusted: check HF_ENDPOINT`);
  }
  return { repo, file, url, size, hash };
}

const isSha256 = (text: unknown): text is string => typeof text === 'string' && /^[0-9a-f]{64}$/.test(text);

function ask<T>(hub: Hub, repo: string, what: string, send: () => Promise<Reply>, use: (reply: Reply) => Promise<T>) {
  return retrying(hub, Math.min(hub.retries, quickRetries), async () => {
    const reply = await send();
    try {
      if (reply.response.status >= 400) throw refusal(hub, reply, repo, what);
      return await use(reply);
    } finally {
      await reply.close();
    }
  });
}

async function readText(reply: Reply): Promise<string> {
  const chunks: Uint8Array[] = [];
  let size = 0;
  for (let chunk = await reply.read(); chunk; chunk = await reply.read()) {
    size += chunk.length;
    if (size > maxListing) throw new FormatError("the hub's list of files is too long: check the repository's name");
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString('utf8');
}

interface Sibling {
  rfilename?: unknown;
  size?: unknown;
  lfs?: { sha256?: unknown; size?: unknown };
}

function parse(body: string, repo: string): { sha?: unknown; siblings: Sibling[] } {
  try {
    const { sha, siblings } = JSON.parse(body);
    if (Array.isArray(siblings)) return { sha, siblings: siblings.filter(item => item && typeof item === 'object') };
  } catch {
    // Not JSON: a login page of some network, or a server that is no hub. Told below.
  }
  throw new FormatError(`the answer for ${repo} is not the hub's: check HF_ENDPOINT, or log in to this network first`);
}
