/** Downloads one blob: resumes a partial file, verifies the checksum, then renames it into place. */
import { createHash, type Hash } from 'node:crypto';
import { type FileHandle, open, rename, rm } from 'node:fs/promises';
import { FormatError } from '../util/errors.ts';
import { formatFileSize } from '../util/units.ts';
import { type Hub, type HubResponse, request, statusError, TransientError, withRetries } from './http.ts';
import type { RemoteFile } from './remote-files.ts';

export const partialPath = (blob: string): string => `${blob}.incomplete`;

/** Downloads to the path `blob`; `onProgress` gets the bytes on disk so far. The caller holds the lock. */
export async function download(hub: Hub, remote: RemoteFile, blob: string, onProgress: (bytes: number) => void) {
  const path = partialPath(blob);
  // Append only: whenever the process dies, the partial file is a prefix of the whole.
  const file = await open(path, 'a+');
  let intact = false;
  try {
    const partial = await openPartialFile(hub, remote, file);
    onProgress(partial.length);
    await withRetries(hub, hub.retries, async resetRetries => {
      while (partial.length < remote.size) await fetchRemaining(hub, remote, partial, resetRetries, onProgress);
    });
    await file.sync();
    // The hash is of the bytes received here: another process may have written to the file too.
    intact = partial.hash.digest('hex') === remote.hash && (await file.stat()).size === remote.size;
  } finally {
    await file.close();
  }
  if (!intact) {
    await rm(path, { force: true });
    throw new FormatError(
      `${remote.repo}/${remote.file} was damaged in transfer: its checksum is not ${remote.hash}. It was deleted; pull it again`,
    );
  }
  await rename(path, blob);
}

/** A partial download and the running hash of its bytes. */
interface PartialFile {
  file: FileHandle;
  length: number;
  hash: Hash;
  /** The longest it has been: a server that restarts and disconnects every time makes no progress. */
  maxLength: number;
}

async function openPartialFile(hub: Hub, remote: RemoteFile, file: FileHandle): Promise<PartialFile> {
  const { size } = await file.stat();
  const partial: PartialFile = { file, length: 0, hash: createBlobHash(remote), maxLength: 0 };
  if (size > remote.size) await restart(partial, remote);
  else if (size > 0) {
    hub.onMessage(
      `${remote.file}: ${formatFileSize(size)} of ${formatFileSize(remote.size)} already downloaded, verifying`,
    );
    for await (const chunk of file.createReadStream({
      start: 0,
      end: size - 1,
      autoClose: false,
      signal: hub.signal,
    })) {
      partial.hash.update(chunk);
    }
    partial.length = partial.maxLength = size;
  }
  return partial;
}

function createBlobHash({ hash, size }: RemoteFile): Hash {
  return hash.length === 64 ? createHash('sha256') : createHash('sha1').update(`blob ${size}\0`);
}

async function restart(partial: PartialFile, remote: RemoteFile): Promise<void> {
  await partial.file.truncate(0);
  partial.length = 0;
  partial.hash = createBlobHash(remote);
}

async function fetchRemaining(
  hub: Hub,
  remote: RemoteFile,
  partial: PartialFile,
  resetRetries: () => void,
  onProgress: (bytes: number) => void,
): Promise<void> {
  const response = await request(hub, remote.url, { start: partial.length });
  try {
    await alignToResponse(hub, remote, partial, response);
    for (let chunk = await response.read(); chunk; chunk = await response.read()) {
      if (partial.length + chunk.length > remote.size) {
        await restart(partial, remote);
        throw new FormatError(`${remote.repo}/${remote.file} is longer than the hub declared: it was deleted`);
      }
      await partial.file.appendFile(chunk);
      partial.hash.update(chunk);
      partial.length += chunk.length;
      if (partial.length > partial.maxLength) resetRetries();
      partial.maxLength = Math.max(partial.maxLength, partial.length);
      onProgress(partial.length);
    }
  } finally {
    await response.close();
  }
  if (partial.length < remote.size) throw new TransientError(`${remote.file}: the connection closed early`);
}

/** Makes the partial file end where the response starts. */
async function alignToResponse(
  hub: Hub,
  remote: RemoteFile,
  partial: PartialFile,
  response: HubResponse,
): Promise<void> {
  const { status, headers } = response.response;
  if (status === 200) {
    // The first request, or a server without range support: the whole file follows.
    if (partial.length > 0) {
      hub.onMessage(`${remote.file}: the server cannot resume a download, starting over`);
      await restart(partial, remote);
    }
  } else if (status === 206) {
    const range = /^bytes (\d+)-\d+\/(\d+|\*)$/.exec(headers.get('content-range') ?? '');
    if (Number(range?.[1]) !== partial.length)
      throw new TransientError(`${remote.file}: the server sent the wrong range`);
  } else if (status === 416) {
    await restart(partial, remote);
    throw new TransientError(`${remote.file}: the server rejected the range, starting over`);
  } else {
    throw statusError(hub, response, remote.repo, `${remote.repo}/${remote.file}`);
  }
}
