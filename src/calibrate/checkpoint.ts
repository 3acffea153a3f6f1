/**
 * The progress of a calibration on disk: one file per finished piece of work, written atomically. Memory use does not depend
 * on the length of the text, and the same command continues after an interruption.
 */
import { mkdir, open, readFile, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { writeFileAtomic } from '../plan/profile-store.ts';
import { fileError } from '../util/file-error.ts';

export interface Checkpoint {
  readonly dir: string;
  has(name: string): Promise<boolean>;
  write(name: string, bytes: Uint8Array): Promise<void>;
  read(name: string): Promise<Uint8Array<ArrayBuffer>>;
  readPart(name: string, offset: number, length: number): Promise<Uint8Array<ArrayBuffer>>;
  remove(): Promise<void>;
}

export async function openCheckpoint(dir: string): Promise<Checkpoint> {
  await mkdir(dir, { recursive: true }).catch(error => {
    throw fileError(dir, 'written', error, 'Set KVASIR_CACHE to a folder that can be written.');
  });
  const path = (name: string) => join(dir, name);
  return {
    dir,
    has: name =>
      stat(path(name)).then(
        () => true,
        () => false,
      ),
    write: (name, bytes) => writeFileAtomic(path(name), bytes),
    read: async name => new Uint8Array(await readFile(path(name))),
    async readPart(name, offset, length) {
      const file = await open(path(name));
      try {
        const bytes = new Uint8Array(length);
        await file.read(bytes, 0, length, offset);
        return bytes;
      } finally {
        await file.close();
      }
    },
    remove: () => rm(dir, { recursive: true, force: true }),
  };
}
