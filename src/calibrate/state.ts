/**
 * What a calibration has done so far, on disk: one file a finished piece of work, written whole or not at all. Memory
 * stays small however long the text is, and the same command goes on after an interruption from what it finds.
 */
import { mkdir, open, readFile, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { writeWhole } from '../plan/store.ts';

export interface State {
  readonly dir: string;
  has(name: string): Promise<boolean>;
  write(name: string, bytes: Uint8Array): Promise<void>;
  read(name: string): Promise<Uint8Array<ArrayBuffer>>;
  readPart(name: string, offset: number, length: number): Promise<Uint8Array<ArrayBuffer>>;
  remove(): Promise<void>;
}

export async function openState(dir: string): Promise<State> {
  await mkdir(dir, { recursive: true });
  const path = (name: string) => join(dir, name);
  return {
    dir,
    has: name =>
      stat(path(name)).then(
        () => true,
        () => false,
      ),
    write: (name, bytes) => writeWhole(path(name), bytes),
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
