/** File systems for tests: one in memory that records all operations and can lose power, and one that fails. */
import { acquireLock } from '../../src/store/disk-lock.ts';
import type { FileSystem, OpenFile } from '../../src/store/file-system.ts';

type Random = () => number;

/** What changes the disk, in order. Files are numbered. */
type Operation =
  | { type: 'write'; file: number; position: number; bytes: Uint8Array }
  | { type: 'sync'; file: number }
  | { type: 'link'; path: string; file: number }
  | { type: 'unlink'; path: string }
  | { type: 'syncFolder' };

export interface MemoryFileSystem extends FileSystem {
  readonly log: Operation[];
}

const failure = (code: string) => Object.assign(new Error(code), { code });

export function createMemoryFileSystem(
  files: Map<number, Uint8Array> = new Map(),
  names: Map<string, number> = new Map(),
): MemoryFileSystem {
  const log: Operation[] = [];
  const openFile = (file: number): OpenFile => ({
    async read(into, position) {
      const bytes = files.get(file)!.subarray(position, position + into.length);
      into.set(bytes);
      return bytes.length;
    },
    async write(chunks, position) {
      const bytes = new Uint8Array(Buffer.concat(chunks));
      files.set(file, patched(files.get(file)!, position, bytes));
      log.push({ type: 'write', file, position, bytes });
      return bytes.length;
    },
    async sync() {
      log.push({ type: 'sync', file });
    },
    size: async () => files.get(file)!.length,
    close: async () => {},
  });
  const link = (path: string, file: number) => {
    names.set(path, file);
    log.push({ type: 'link', path, file });
  };
  const unlink = (path: string) => {
    if (!names.delete(path)) throw failure('ENOENT');
    log.push({ type: 'unlink', path });
  };
  const find = (path: string): number => {
    const file = names.get(path);
    if (file === undefined) throw failure('ENOENT');
    return file;
  };
  const fs: MemoryFileSystem = {
    name: 'disk',
    lock: folder => acquireLock(fs, folder),
    log,
    open: async path => openFile(find(path)),
    async create(path) {
      if (names.has(path)) throw failure('EEXIST');
      const file = files.size;
      files.set(file, new Uint8Array(0));
      link(path, file);
      return openFile(file);
    },
    makeFolder: async () => {},
    list: async path =>
      [...names.keys()].filter(name => name.startsWith(`${path}/`)).map(name => name.slice(path.length + 1)),
    async rename(from, to) {
      link(to, find(from));
      unlink(from);
    },
    remove: async path => unlink(path),
    async syncFolder() {
      log.push({ type: 'syncFolder' });
    },
  };
  return fs;
}

function patched(content: Uint8Array, position: number, bytes: Uint8Array): Uint8Array {
  const next = new Uint8Array(Math.max(content.length, position + bytes.length));
  next.set(content);
  next.set(bytes, position);
  return next;
}

const SECTOR = 512;

/**
 * What a disk may hold after a loss of power: all that was synced, and of all later operations any part in any order. A
 * write may be torn at every sector, a name may be missing or still be there.
 */
export function losePower(log: readonly Operation[], random: Random): MemoryFileSystem {
  const files = new Map<number, Uint8Array>();
  const names = new Map<string, number>();
  let writes: Extract<Operation, { type: 'write' }>[] = [];
  let links: Extract<Operation, { type: 'link' | 'unlink' }>[] = [];
  const write = ({ file, position, bytes }: (typeof writes)[number]) =>
    files.set(file, patched(files.get(file) ?? new Uint8Array(0), position, bytes));
  const changeName = (link: (typeof links)[number]) => {
    if (link.type === 'link') names.set(link.path, link.file);
    else names.delete(link.path);
  };
  for (const operation of log) {
    if (operation.type === 'write') writes.push(operation);
    else if (operation.type === 'link' || operation.type === 'unlink') links.push(operation);
    else if (operation.type === 'sync') {
      writes.filter(({ file }) => file === operation.file).forEach(write);
      writes = writes.filter(({ file }) => file !== operation.file);
    } else {
      links.forEach(changeName);
      links = [];
    }
  }
  const share = random();
  const isKept = () => random() < share;
  links.filter(isKept).forEach(changeName);
  const sectors = writes.flatMap(({ file, position, bytes }) =>
    Array.from({ length: Math.ceil(bytes.length / SECTOR) }, (_, i) => ({
      ...{ type: 'write' as const, file, position: position + i * SECTOR },
      bytes: bytes.subarray(i * SECTOR, (i + 1) * SECTOR),
      order: random(),
    })),
  );
  sectors
    .filter(isKept)
    .sort((a, b) => a.order - b.order)
    .forEach(write);
  for (const file of names.values()) if (!files.has(file)) files.set(file, new Uint8Array(0));
  // The process that held the lock is gone.
  for (const path of names.keys()) if (/\/lock/.test(path)) names.delete(path);
  // Files without a name keep their numbers.
  for (let file = 0; file < Math.max(0, ...files.keys()); file++)
    if (!files.has(file)) files.set(file, new Uint8Array(0));
  return createMemoryFileSystem(files, names);
}

export type Fault = 'EIO' | 'ENOSPC' | 'short read' | 'short write' | 'flip on read' | 'flip on write' | 'slow';

/** Every n-th operation fails, as long as `isOn` returns true. */
export function createFaultyFileSystem(
  fs: FileSystem,
  { fault, every, random, isOn }: { fault: Fault; every: number; random: Random; isOn: () => boolean },
): FileSystem {
  let count = 0;
  const isDue = () => isOn() && ++count % every === 0;
  const flip = (bytes: Uint8Array) => {
    if (bytes.length > 0) bytes[Math.floor(random() * bytes.length)] ^= 1 << Math.floor(random() * 8);
  };
  const call = async <T>(run: () => Promise<T>, isWrite: boolean): Promise<T> => {
    if (isDue()) {
      if (fault === 'EIO') throw failure('EIO');
      if (fault === 'ENOSPC' && isWrite) throw failure('ENOSPC');
      if (fault === 'slow') await new Promise(resolve => setTimeout(resolve, 2));
    }
    return run();
  };
  const wrap = (file: OpenFile): OpenFile => ({
    async read(into, position) {
      const isFaulty = isDue();
      if (isFaulty && fault === 'EIO') throw failure('EIO');
      const isShort = isFaulty && fault === 'short read' && into.length > 1;
      const length = isShort ? 1 + Math.floor(random() * (into.length - 1)) : into.length;
      const bytes = await file.read(into.subarray(0, length), position);
      if (isFaulty && fault === 'flip on read') flip(into.subarray(0, bytes));
      return bytes;
    },
    async write(chunks, position) {
      const isFaulty = isDue();
      if (isFaulty && fault === 'EIO') throw failure('EIO');
      const bytes = new Uint8Array(Buffer.concat(chunks));
      if (isFaulty && fault === 'flip on write') flip(bytes);
      const isShort = isFaulty && (fault === 'short write' || fault === 'ENOSPC') && bytes.length > 1;
      const length = isShort ? 1 + Math.floor(random() * (bytes.length - 1)) : bytes.length;
      const written = await file.write([bytes.subarray(0, length)], position);
      if (isShort && fault === 'ENOSPC') throw failure('ENOSPC');
      return written;
    },
    sync: () => call(() => file.sync(), true),
    size: () => call(() => file.size(), false),
    close: () => file.close(),
  });
  const faulty: FileSystem = {
    name: fs.name,
    lock: folder => acquireLock(faulty, folder),
    open: path => call(async () => wrap(await fs.open(path)), false),
    create: path => call(async () => wrap(await fs.create(path)), true),
    makeFolder: path => call(() => fs.makeFolder(path), true),
    list: path => call(() => fs.list(path), false),
    rename: (from, to) => call(() => fs.rename(from, to), true),
    remove: path => call(() => fs.remove(path), true),
    syncFolder: path => call(() => fs.syncFolder(path), true),
  };
  return faulty;
}
