import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { FormatError, InputError } from '../util/errors.ts';
import { type ByteSource, blobSource, bytesSource, fileSource } from './source.ts';

const bytes = Uint8Array.from({ length: 1000 }, (_, i) => (i * 7) & 255);
let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'kvasir-source-'));
  await writeFile(join(folder, 'file'), bytes);
});
afterAll(() => rm(folder, { recursive: true }));

const kinds: [string, () => Promise<ByteSource>][] = [
  ['file', () => fileSource(join(folder, 'file'))],
  ['blob', async () => blobSource(new Blob([bytes]))],
  ['bytes', async () => bytesSource(bytes)],
];

describe.each(kinds)('a %s source', (_, open) => {
  it('reads at any offset, into a new buffer or into part of a given one', async () => {
    const source = await open();
    expect(source.size).toBe(1000);
    expect(await source.read(10, 20)).toEqual(bytes.slice(10, 30));
    expect(await source.read(1000, 0)).toEqual(new Uint8Array(0));
    const memory = new Uint8Array(50);
    await source.readInto(990, memory.subarray(20, 30));
    expect(memory.slice(20, 30)).toEqual(bytes.slice(990));
    expect(memory[19]).toBe(0);
    expect(memory[30]).toBe(0);
    await source.close();
  });

  it('rejects reads out of range before allocating', async () => {
    const source = await open();
    await expect(source.read(990, 11)).rejects.toThrow(FormatError);
    await expect(source.read(0, 2 ** 50)).rejects.toThrow(FormatError);
    await expect(source.read(-1, 1)).rejects.toThrow(FormatError);
    await expect(source.read(Number.NaN, 1)).rejects.toThrow(FormatError);
    await expect(source.readInto(1000, new Uint8Array(1))).rejects.toThrow(FormatError);
    await source.close();
  });
});

it('a missing file and a folder are input errors, not damage', async () => {
  await expect(fileSource(join(folder, 'nothing'))).rejects.toThrow(InputError);
  await expect(fileSource(folder)).rejects.toThrow(/not a file/);
});
