/**
 * What the disk store needs of a file system: an interface, for Node (node-file-system.ts), browsers
 * (opfs-file-system.ts) and tests that record, delay and break every operation. Errors have the codes of Node.
 */

export interface OpenFile {
  /** Reads at a position; returns the number of bytes read, which may be fewer than asked for. */
  read(into: Uint8Array, position: number): Promise<number>;
  /** Writes at a position; returns the number of bytes written, which may be fewer than given. */
  write(chunks: readonly Uint8Array[], position: number): Promise<number>;
  /** Makes what was written durable. */
  sync(): Promise<void>;
  size(): Promise<number>;
  close(): Promise<void>;
}

export interface Lock {
  release(): Promise<void>;
}

export interface FileSystem {
  /** What the store is called. */
  readonly name: 'disk' | 'opfs';
  /** Takes a folder for one store alone. Throws an InputError if another one has it. */
  lock(folder: string): Promise<Lock>;
  open(path: string): Promise<OpenFile>;
  /** Creates a file that only its owner can read. It must not exist. */
  create(path: string): Promise<OpenFile>;
  /** Creates a folder that only its owner can read, and those above it. */
  makeFolder(path: string): Promise<void>;
  /** Names in a folder; none if there is no such folder. */
  list(path: string): Promise<string[]>;
  rename(from: string, to: string): Promise<void>;
  remove(path: string): Promise<void>;
  /** Makes creations, renames and removals in a folder durable, where the system can. */
  syncFolder(path: string): Promise<void>;
}

/** Fills `into` from a position; returns whether there were enough bytes. */
export async function readFully(file: OpenFile, into: Uint8Array, position: number): Promise<boolean> {
  for (let done = 0; done < into.length; ) {
    const count = await file.read(into.subarray(done), position + done);
    if (count === 0) return false;
    done += count;
  }
  return true;
}

/** Writes all chunks. Systems limit the number of chunks per call. */
export async function writeFully(file: OpenFile, chunks: readonly Uint8Array[], position: number): Promise<void> {
  const MAX_CHUNKS = 512;
  let at = position;
  for (let rest = chunks.filter(({ length }) => length > 0); rest.length > 0; ) {
    let count = await file.write(rest.slice(0, MAX_CHUNKS), at);
    if (count === 0) throw Object.assign(new Error('nothing was written'), { code: 'EIO' });
    at += count;
    while (count > 0 && rest[0].length <= count) count -= rest.shift()!.length;
    if (count > 0) rest = [rest[0].subarray(count), ...rest.slice(1)];
  }
}
