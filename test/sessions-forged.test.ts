/** Sessions whose pages were not computed here: they stay with their own conversation, whatever their checksums say. */
import { mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeEach, expect, it, vi } from 'vitest';
import type { LoadOptions, Model } from '../src/api/model.ts';
import { createHostStore } from '../src/store/host-store.ts';
import { type CacheRecord, encodeRecord, readRecords } from '../src/store/record.ts';
import { load as loadOn, words } from './support/lifetimes.ts';

const folders: string[] = [];
const newFolder = async () => {
  folders.push(await mkdtemp(join(tmpdir(), 'kvasir-forged-')));
  return folders.at(-1)!;
};
let folder: string;
beforeEach(async () => {
  folder = await newFolder();
  vi.stubEnv('KVASIR_CACHE', join(folder, 'cache'));
});
afterAll(async () => {
  vi.unstubAllEnvs();
  for (const one of folders) await rm(one, { recursive: true });
});

const load = (options: LoadOptions = {}) => loadOn('wasm', { kv: 'tq4', ...options });
const prompt = words.slice(0, 100);
const greedy = { temperature: 0, maxTokens: 4, ignoreEos: true, logprobs: 3 };

async function saveSession(model: Model, path: string): Promise<void> {
  await using conversation = model.conversation();
  await conversation.generate(prompt, greedy).result();
  await conversation.save(path);
}

async function recordsOf(path: string): Promise<CacheRecord[]> {
  const chunks = (async function* () {
    yield new Uint8Array(await readFile(path));
  })();
  const records: CacheRecord[] = [];
  for await (const record of readRecords(chunks, { maxBytes: () => 2 ** 30 })) records.push(record);
  return records;
}
/** With valid checksums. */
const bytesOf = (records: readonly CacheRecord[]) =>
  Buffer.concat(records.flatMap(record => [...encodeRecord(record)]));

/** What an unrelated request gets. */
async function ask(model: Model) {
  const { usage, logprobs } = await model.complete(prompt, greedy);
  return { reused: usage.reusedTokens, logprobs };
}

it.each(['tq4', 'tq4+recent9'])(
  '%s: a forged session changes the answers of no other request, here or elsewhere',
  async kv => {
    const path = join(folder, 'a.kvsession');
    await using clean = await load({ kv });
    const expected = await ask(clean);
    await saveSession(clean, path);
    const forged = join(folder, 'forged.kvsession');
    const flip = (bytes: Uint8Array) => bytes.map((byte, i) => (i % 3 === 0 ? byte ^ 0x15 : byte));
    const records = (await recordsOf(path)).map(one =>
      one.kind === 'leaf' ? { ...one, payload: flip(one.payload) } : one,
    );
    await writeFile(forged, bytesOf(records));

    const store = createHostStore({ capacity: 2 ** 20 });
    {
      await using model = await load({ kv, tiers: kv === 'tq4' ? [store] : undefined });
      await using restored = await model.restore(forged);
      expect(await ask(model)).toEqual(expected);
      // Nor what follows from it: its later pages, and what it saves.
      await restored.generate(prompt + words.slice(100, 200), greedy).result();
      const { logprobs } = await clean.complete(prompt + words.slice(100, 250), greedy);
      expect((await model.complete(prompt + words.slice(100, 250), greedy)).logprobs).toEqual(logprobs);
      await restored.save(forged);
    }
    await using other = await load({ kv, tiers: kv === 'tq4' ? [store] : undefined });
    await using again = await other.restore(forged);
    expect(again.length).toBeGreaterThan(100);
    expect((await ask(other)).logprobs).toEqual(expected.logprobs);
  },
);

it('a session of this installation shares its pages with other requests', async () => {
  const path = join(folder, 'a.kvsession');
  {
    await using model = await load();
    await saveSession(model, path);
  }
  await using model = await load();
  await using _ = await model.restore(path);
  expect((await ask(model)).reused).toBeGreaterThanOrEqual(96);
  const key = join(folder, 'cache', 'session-key');
  expect([(await stat(key)).mode & 0o777, (await readFile(key)).length]).toEqual([0o600, 32]);
});

const useCache = (name: string) => vi.stubEnv('KVASIR_CACHE', join(folder, name));

it.each([
  ['of another installation', () => useCache('cache'), () => useCache('other')],
  // A folder in a file cannot be made.
  ['of a process that can store no key', () => useCache('file/cache'), () => useCache('cache')],
  [
    'without a signature',
    () => {},
    async (path: string) => writeFile(path, bytesOf((await recordsOf(path)).filter(({ kind }) => kind !== 'hmac'))),
  ],
])('a session %s goes on, and keeps its pages to itself', async (_, beforeSaving, beforeRestoring) => {
  const path = join(folder, 'a.kvsession');
  await writeFile(join(folder, 'file'), '');
  await using model = await load();
  const expected = await ask(model);
  await beforeSaving();
  await saveSession(model, path);
  await beforeRestoring(path);
  await using other = await load();
  await using restored = await other.restore(path);
  expect(await ask(other)).toEqual(expected);
  const { usage } = await restored.generate(`${prompt} And`, greedy).result();
  expect(usage.reusedTokens).toBeGreaterThanOrEqual(96);
});
