/**
 * A lock file against a second process: who holds it (host, process id, start of the process) and a heartbeat. A lock is
 * stale if its process is gone. Where that cannot be told, it is stale if its heartbeat has stopped: on another host
 * (containers share folders, but not process ids), and where the system does not say when a process was started, so that
 * the id may be another's by now.
 *
 * Should two processes take over the same stale lock at the same moment, and both pass the check, nothing is damaged:
 * segments have unique names and never change, so each would only miss what the other removes.
 */

import { platform } from '../platform/node.ts';
import { InputError } from '../util/errors.ts';
import { MAX_READS } from './disk-segment.ts';
import { type FileSystem, type Lock, type OpenFile, writeFully } from './file-system.ts';

const HEARTBEAT_MS = 5_000;
const STALE_MS = 30_000;
const MAX_BYTES = 512;

interface Holder {
  pid: number;
  /** Tells a process from a later one with the same id; empty where the system does not say. */
  started: string;
  host: string;
  /** Of this lock. */
  id: string;
  /** Last heartbeat, in ms since 1970. */
  beat: number;
}

export async function acquireLock(fs: FileSystem, folder: string): Promise<Lock> {
  const { hostname } = platform.node.os;
  const path = `${folder}/lock`;
  const holder = { pid: process.pid, started: await startOf(process.pid), host: hostname(), id: crypto.randomUUID() };
  const content = () => new TextEncoder().encode(JSON.stringify({ ...holder, beat: Date.now() }).padEnd(MAX_BYTES));
  const file = await fs.create(path).catch(async error => {
    if (error.code !== 'EEXIST') throw error;
    const other = await readHolder(fs, path);
    if (other && (await isAlive(other, holder.host)))
      throw new InputError(
        `${folder} is in use by process ${other.pid} on ${other.host}. Stop it, or use another folder for this process.`,
      );
    const own = `${path}.${holder.id}`;
    const file = await fs.create(own);
    await orClose(file, () => fs.rename(own, path));
    return file;
  });
  await orClose(file, async () => {
    await writeFully(file, [content()], 0);
    if ((await readHolder(fs, path))?.id !== holder.id)
      throw new InputError(
        `${folder} was taken by another process at the same moment. Use another folder, or try again.`,
      );
  });
  const timer = setInterval(() => writeFully(file, [content()], 0).catch(() => {}), HEARTBEAT_MS);
  timer.unref?.();
  return {
    async release() {
      clearInterval(timer);
      await file.close().catch(() => {});
      const current = await readHolder(fs, path);
      if (current?.id === holder.id) await fs.remove(path).catch(() => {});
    },
  };
}

async function orClose(file: OpenFile, work: () => Promise<void>): Promise<void> {
  try {
    await work();
  } catch (error) {
    await file.close().catch(() => {});
    throw error;
  }
}

/** Undefined if the file cannot be understood: its process died before it was written. */
async function readHolder(fs: FileSystem, path: string): Promise<Holder | undefined> {
  const file = await fs.open(path).catch(() => undefined);
  const bytes = new Uint8Array(MAX_BYTES);
  const read = async () => new TextDecoder().decode(bytes.subarray(0, await file?.read(bytes, 0)));
  try {
    // Until two reads agree: a lock must not be lost to a bit flipped on the way.
    let text = await read();
    for (let tries = 0; tries < MAX_READS; tries++) {
      const again = await read();
      if (again === text) break;
      text = again;
    }
    const { pid, started, host, id, beat } = JSON.parse(text);
    return { pid: Number(pid), started: String(started), host: String(host), id: String(id), beat: Number(beat) };
  } catch {
    return undefined;
  } finally {
    await file?.close();
  }
}

async function isAlive({ pid, started, host, beat }: Holder, ownHost: string): Promise<boolean> {
  if (host !== ownHost) return isBeating(beat);
  try {
    process.kill(pid, 0);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ESRCH') return false;
  }
  const runningSince = await startOf(pid);
  return started && runningSince ? started === runningSince : isBeating(beat);
}

const isBeating = (beat: number): boolean => Math.abs(Date.now() - beat) < STALE_MS;

/** When a process was started, on Linux; elsewhere empty. */
async function startOf(pid: number): Promise<string> {
  const { readFile } = platform.node.fs.promises;
  const stat = await readFile(`/proc/${pid}/stat`, 'latin1').catch(() => '');
  // The name, in parentheses, may contain spaces.
  return stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19] ?? '';
}
