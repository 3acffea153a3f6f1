/** One blob: fetched, continued where an earlier attempt stopped, checked, and only then given its name. */
import { createHash, type Hash } from 'node:crypto';
import { type FileHandle, open, rename, rm } from 'node:fs/promises';
import { FormatError } from '../../errors.ts';
import { formatFileSize } from '../../units.ts';
import { type Hub, type Reply, refusal, request, retrying, Transient } from './http.ts';
import type { RemoteFile } from './list.ts';

export const partialPath = (blob: string): string => `${blob}.incomplete`;

/** Fills `blob`; `report` hears how many of its bytes are in place. The caller holds the lock. */
export async function download(hub: Hub, remote: RemoteFile, blob: string, report: (have: number) => void) {
  const partial = partialPath(blob);
  // Append only: what is on disk is always a prefix of the file, whenever the process dies.
  const file = await open(partial, 'a+');
  let intact = false;
  try {
    const sink = await openSink(hub, remote, file);
    report(sink.have);
    await retrying(hub, hub.retries, async progressed => {
      while (sink.have < remote.size) await fetchRest(hub, remote, sink, progressed, report);
    });
    intact = sink.sum.digest('hex') === remote.hash;
    await file.sync();
  } finally {
    await file.close();
  }
  if (!intact) {
    await rm(partial, { force: true });
    throw new FormatError(
      `${remote.repo}/${remote.file} arrived damaged: its checksum is not ${remote.hash}. It was removed; pull it again`,
    );
  }
  await rename(partial, blob);
}

/** The partial file, how much of it there is, and the running hash of exactly that much. */
interface Sink {
  file: FileHandle;
  have: number;
  sum: Hash;
  /** The most there ever was: a server that starts over and breaks off every time makes no progress. */
  most: number;
}

async function openSink(hub: Hub, remote: RemoteFile, file: FileHandle): Promise<Sink> {
  const { size } = await file.stat();
  const sink: Sink = { file, have: 0, sum: newSum(remote), most: 0 };
  if (size > remote.size) await restart(sink, remote);
  else if (size > 0) {
    hub.note(
      `${remote.file}: ${formatFileSize(size)} of ${formatFileSize(remote.size)} are here already, checking them`,
    );
    for await (const chunk of file.createReadStream({
      start: 0,
      end: size - 1,
      autoClose: false,
      signal: hub.signal,
    })) {
      sink.sum.update(chunk);
    }
    sink.have = sink.most = size;
  }
  return sink;
}

function newSum({ hash, size }: RemoteFile): Hash {
  return hash.length === 64 ? createHash('sha256') : createHash('sha1').update(`blob ${size}\0`);
}

async function restart(sink: Sink, remote: RemoteFile): Promise<void> {
  await sink.file.truncate(0);
  sink.have = 0;
  sink.sum = newSum(remote);
}

async function fetchRest(
  hub: Hub,
  remote: RemoteFile,
  sink: Sink,
  progressed: () => void,
  report: (have: number) => void,
): Promise<void> {
  const reply = await request(hub, remote.url, { from: sink.have });
  try {
    await position(hub, remote, sink, reply);
    for (let chunk = await reply.read(); chunk; chunk = await reply.read()) {
      if (sink.have + chunk.length > remote.size) {
        await restart(sink, remote);
        throw new FormatError(`${remote.repo}/${remote.file} is longer than the hub said: it was removed`);
      }
      await sink.file.appendFile(chunk);
      sink.sum.update(chunk);
      sink.have += chunk.length;
      if (sink.have > sink.most) progressed();
      sink.most = Math.max(sink.most, sink.have);
      report(sink.have);
    }
  } finally {
    await reply.close();
  }
  if (sink.have < remote.size) throw new Transient(`${remote.file}: the connection ended early`);
}

/** Makes the partial file end where the coming bytes begin. */
async function position(hub: Hub, remote: RemoteFile, sink: Sink, reply: Reply): Promise<void> {
  const { status, headers } = reply.response;
  if (status === 200) {
    // The server does not do ranges, or it is a first request: all the bytes come.
    if (sink.have > 0) {
      hub.note(`${remote.file}: the server cannot continue a download, starting over`);
      await restart(sink, remote);
    }
  } else if (status === 206) {
    const range = /^bytes (\d+)-\d+\/(\d+|\*)$/.exec(headers.get('content-range') ?? '');
    if (Number(range?.[1]) !== sink.have) throw new Transient(`${remote.file}: the server sent another range`);
  } else if (status === 416) {
    await restart(sink, remote);
    throw new Transient(`${remote.file}: the server does not know that range, starting over`);
  } else {
    throw refusal(hub, reply, remote.repo, `${remote.repo}/${remote.file}`);
  }
}
