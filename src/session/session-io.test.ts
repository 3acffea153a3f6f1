import { mkdtemp, readdir, readFile, rm, stat, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import {
  chunksOf,
  decodeSession,
  encodeSession,
  expected,
  noReader,
  smallSession,
} from '../../test/support/small-session.ts';
import { CapacityError, InputError } from '../util/errors.ts';
import { readSession, writeSession } from './session-file.ts';
import { readFrom, type SessionSource, writeTo } from './session-io.ts';

const bytes = await encodeSession(smallSession);
let folder: string;
let path: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'kvasir-session-'));
  path = join(folder, 'chat.kvsession');
});
afterEach(() => rm(folder, { recursive: true }));

async function collect(source: SessionSource): Promise<Uint8Array> {
  const chunks: Uint8Array[] = [];
  for await (const chunk of readFrom(source)) chunks.push(chunk);
  return new Uint8Array(Buffer.concat(chunks));
}

async function* failing() {
  yield* chunksOf(bytes.subarray(0, 100));
  throw new CapacityError('the device was lost');
}

describe('a file', () => {
  it('is written, readable by its owner only, and read back', async () => {
    await writeTo(path, writeSession(smallSession));
    expect(await readdir(folder)).toEqual(['chat.kvsession']);
    if (process.platform !== 'win32') expect((await stat(path)).mode & 0o777).toBe(0o600);
    expect(await collect(path)).toEqual(bytes);
    await readSession(readFrom(path), expected, noReader);
  });

  it('is replaced, with its permissions; a link to it stays', async () => {
    await writeFile(path, 'old', { mode: 0o644 });
    const link = join(folder, 'link');
    await symlink(path, link);
    await writeTo(link, chunksOf(bytes));
    expect(new Uint8Array(await readFile(path))).toEqual(bytes);
    if (process.platform !== 'win32') expect((await stat(path)).mode & 0o777).toBe(0o600);
    expect((await readdir(folder)).sort()).toEqual(['chat.kvsession', 'link']);
  });

  it('stays as it was if writing fails, and no part is left', async () => {
    await writeFile(path, 'old');
    await expect(writeTo(path, failing())).rejects.toThrow('the device was lost');
    expect(await readFile(path, 'utf8')).toBe('old');
    expect(await readdir(folder)).toEqual(['chat.kvsession']);
    await rm(path);
    await expect(writeTo(path, failing())).rejects.toThrow(CapacityError);
    expect(await readdir(folder)).toEqual([]);
  });

  it('can be written by two at the same time: one of them wins', async () => {
    await Promise.all(Array.from({ length: 8 }, () => writeTo(path, chunksOf(bytes))));
    expect(await collect(path)).toEqual(bytes);
    expect(await readdir(folder)).toEqual(['chat.kvsession']);
  });

  it('that cannot be opened is an input error', async () => {
    await expect(collect(join(folder, 'none'))).rejects.toThrow(/none cannot be read \(ENOENT\). Check the path/);
    await expect(collect(folder)).rejects.toThrow(InputError);
    await expect(writeTo(folder, chunksOf(bytes))).rejects.toThrow(/is not a file/);
    await expect(writeTo(join(folder, 'no', 'folder'), chunksOf(bytes))).rejects.toThrow(
      /cannot be written \(ENOENT\)/,
    );
  });
});

describe('a stream', () => {
  it('is written and read', async () => {
    const { readable, writable } = new TransformStream<Uint8Array, Uint8Array>();
    const [read] = await Promise.all([collect(readable), writeTo(writable, chunksOf(bytes))]);
    expect(read).toEqual(bytes);
  });

  it('is aborted if writing fails, and its own error is passed on', async () => {
    let aborted: unknown;
    const target = new WritableStream({
      abort: reason => {
        aborted = reason;
      },
    });
    await expect(writeTo(target, failing())).rejects.toThrow('the device was lost');
    expect(aborted).toBeInstanceOf(CapacityError);
    const full = new WritableStream({
      write: () => {
        throw new Error('quota');
      },
    });
    await expect(writeTo(full, chunksOf(bytes))).rejects.toThrow('quota');
  });

  it('is cancelled if the reader stops', async () => {
    let cancelled = false;
    const source = new ReadableStream<Uint8Array>({
      pull: controller => controller.enqueue(bytes),
      cancel: () => {
        cancelled = true;
      },
    });
    await expect(readSession(readFrom(source), expected, noReader)).rejects.toThrow(/claims|follow/);
    expect(cancelled).toBe(true);
  });

  it('must be free and consist of bytes', async () => {
    const text = new ReadableStream({ start: controller => controller.enqueue('kvrc') });
    await expect(collect(text)).rejects.toThrow('must consist of Uint8Arrays; got the string "kvrc"');
    const locked = new ReadableStream<Uint8Array>();
    locked.getReader();
    await expect(collect(locked)).rejects.toThrow(/another reader/);
    const target = new WritableStream<Uint8Array>();
    target.getWriter();
    await expect(writeTo(target, chunksOf(bytes))).rejects.toThrow(/another writer/);
  });
});

it.each<[string, SessionSource]>([
  ['a Blob', new Blob([bytes])],
  ['a File', new File([bytes], 'chat.kvsession')],
  ['bytes', bytes],
  ['a Buffer', Buffer.from(bytes)],
  ['an ArrayBuffer', bytes.slice().buffer],
])('%s is read', async (_, source) => {
  expect(await collect(source)).toEqual(bytes);
  expect(await decodeSession(await collect(source))).toEqual(smallSession);
});

it('other values are input errors', async () => {
  for (const value of [undefined, null, 5, {}, []]) {
    expect(() => readFrom(value as never)).toThrow(InputError);
    await expect(writeTo(value as never, chunksOf(bytes))).rejects.toThrow(InputError);
  }
});
