/** Files as documents: archives, and what is said of those that cannot be read. PDF and Word are read in test/browsers. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { readDocument } from '../../web/src/documents/read-document.ts';
import { readZipFile } from '../../web/src/documents/zip.ts';
import { makeZip } from '../support/documents.ts';

const MAX = 1_000_000;
const text = async (bytes: Uint8Array | Promise<Uint8Array | undefined>) => new TextDecoder().decode(await bytes);

describe('zip archives', () => {
  const archive = new Uint8Array(makeZip({ 'a.txt': 'first', 'folder/ᚬ.txt': 'second '.repeat(1000), empty: '' }));

  it('contain files by name', async () => {
    expect(await text(readZipFile(archive, 'a.txt', MAX))).toBe('first');
    expect(await text(readZipFile(archive, 'folder/ᚬ.txt', MAX))).toBe('second '.repeat(1000));
    expect(await text(readZipFile(archive, 'empty', MAX))).toBe('');
    expect(await readZipFile(archive, 'b.txt', MAX)).toBeUndefined();
  });

  it('do not unpack to more than is allowed', async () => {
    await expect(readZipFile(archive, 'folder/ᚬ.txt', 6999)).rejects.toThrow('too large');
    expect((await readZipFile(archive, 'folder/ᚬ.txt', 7000))?.length).toBe(7000);
  });

  it('that are damaged throw, or have the file', async () => {
    await expect(readZipFile(new Uint8Array(), 'a.txt', MAX)).rejects.toThrow('Not a zip archive');
    await fc.assert(
      fc.asyncProperty(fc.nat(archive.length - 1), fc.nat(255), fc.boolean(), async (at, value, cut) => {
        const damaged = cut ? archive.slice(0, at) : archive.with(at, value);
        const found = await readZipFile(new Uint8Array(damaged), 'folder/ᚬ.txt', MAX).catch(() => undefined);
        if (found) expect(found.length).toBeLessThanOrEqual(MAX);
      }),
    );
  });
});

describe('a document that cannot be read', () => {
  const read = (name: string, content: BlobPart) => readDocument(new File([content], name), () => {});

  it('says why', async () => {
    expect(await read('a.txt', 'ᚬ')).toBe('ᚬ');
    await expect(read('a.txt', ' \n')).rejects.toThrow('a.txt is empty.');
    await expect(read('a.bin', 'a\0b')).rejects.toThrow('a.bin is not a text file');
    await expect(read('a.gguf', 'GGUF')).rejects.toThrow('a.gguf is a model');
    await expect(read('a.docx', 'PK')).rejects.toThrow('a.docx is damaged, or no Word document.');
    await expect(read('a.docx', new Uint8Array([0xd0, 0xcf, 0x11, 0xe0]))).rejects.toThrow('a.docx is encrypted');
    await expect(read('a.txt', new Uint8Array(20_000_001))).rejects.toThrow('too large (20.0 MB); at most 20.0 MB');
  });
});
