/** Conversations that are saved and restored, in the same process and in another one. */
import { mkdtemp, readdir, readFile, rm, stat, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { loadModel, type Model } from '../src/api/model.ts';
import { FormatError, InputError, KvasirError, UnsupportedError } from '../src/util/errors.ts';
import { writeGguf } from './support/gguf-writer.ts';
import { load, words } from './support/lifetimes.ts';
import { matrix } from './support/matrix.ts';
import { tinyModel } from './support/tiny-model.ts';

const greedy = { temperature: 0, maxTokens: 24, ignoreEos: true };
const long = words.slice(0, 90);
let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'kvasir-sessions-'));
});
afterAll(() => rm(folder, { recursive: true }));

const WINDOW = { 'tq2+recent9': 'codes, a window, and the tail' };

describe.each(matrix(['js', 'wasm'] as const, { wasm: 'js is slow' }))('on %s', device => {
  const codecs = ['tq4', 'f16', 'tq2+recent9', 'kivi2g16+sink20'];
  const representatives = { ...WINDOW, 'kivi2g16+sink20': 'sinks that end within a page' };
  describe.each(matrix(codecs, representatives))('%s: a session', kv => {
    let model: Model;
    let path: string;
    beforeAll(async () => {
      model = await load(device, { kv });
      path = join(folder, `${device}-${kv.replace('/', '-')}.kvsession`);
    });
    afterAll(() => model.dispose());

    it('goes on exactly where it was saved, also in another model', async () => {
      await using conversation = model.conversation({ system: 'Be brief.' });
      await conversation.send(long, greedy).result();
      await conversation.save(path);
      expect((await stat(path)).mode & 0o777).toBe(0o600);
      const expected = await conversation.send('And then?', greedy).result();
      await using other = await load(device, { kv });
      for (const into of [model, other]) {
        await using restored = await into.restore(path);
        const { ids } = await restored.send('And then?', greedy).result();
        expect(ids).toEqual(expected.ids);
        expect(restored.messages).toEqual(conversation.messages);
      }
    });

    it('can be saved again, after its cache was evicted too', async () => {
      await using conversation = await model.restore(path);
      const copy = `${path}.copy`;
      await conversation.save(copy);
      expect(await readFile(copy)).toEqual(await readFile(path));
      await conversation.crop(0);
      await conversation.save(copy).catch(() => {});
      expect(await readdir(folder)).not.toContain(expect.stringMatching(/\.part$/));
    });

    it('is read from bytes, Blobs and streams', async () => {
      const bytes = new Uint8Array(await readFile(path));
      const blob = new Blob([bytes]);
      for (const source of [bytes, bytes.buffer, blob, blob.stream()]) {
        await using restored = await model.restore(source);
        expect(restored.messages).toHaveLength(3);
        expect(restored.length).toBeGreaterThan(90);
      }
    });
  });
});

it.each(['tq4', 'tq4+recent32'])('%s: a restored session needs no prefill but that of the new message', async kv => {
  const path = join(folder, 'mimir.kvsession');
  const open = () => loadModel('models/mimir.gguf', { device: 'wasm', context: 2048, kv });
  await using model = await open();
  await using conversation = model.conversation();
  await conversation.send(words.repeat(4), { temperature: 0, maxTokens: 30 }).result();
  await conversation.save(path);
  const expected = await conversation.send('Who drank it?', { temperature: 0, maxTokens: 30 }).result();
  await using other = await open();
  await using restored = await other.restore(path);
  const { ids, usage } = await restored.send('Who drank it?', { temperature: 0, maxTokens: 30 }).result();
  expect(ids).toEqual(expected.ids);
  expect(usage.reusedTokens).toBeGreaterThan(200);
  expect(usage.prefilledTokens).toBeLessThan(40);
});

describe.each(matrix(['tq4', 'tq2+recent9', 'kivi2g16+sink20'], { ...WINDOW, tq4: 'whole pages' }))('%s: undo', kv => {
  let model: Model;
  beforeAll(async () => {
    model = await load('wasm', { kv });
  });
  afterAll(() => model.dispose());

  it('removes the last exchange: what follows is as if it had never been', async () => {
    await using conversation = model.conversation({ system: 'Be brief.' });
    await conversation.send(long, greedy).result();
    await using expected = conversation.fork();
    await conversation.send('Who drank it?', greedy).result();
    await conversation.regenerate(greedy).result();
    const removed = await conversation.undo();
    expect(removed.map(({ role }) => role)).toEqual(['user', 'assistant']);
    expect(conversation.messages).toEqual(expected.messages);
    const path = join(folder, 'undone.kvsession');
    await conversation.save(path);
    await using restored = await model.restore(path);
    expect(restored.messages).toEqual(expected.messages);
    const { ids } = await expected.send('And then?', greedy).result();
    for (const one of [conversation, restored]) expect((await one.send('And then?', greedy).result()).ids).toEqual(ids);
  });

  it('removes one exchange after another, and then there is nothing to remove or save', async () => {
    await using conversation = model.conversation({ system: 'Be brief.' });
    for (const text of [long, 'Who?', 'Why?']) await conversation.send(text, greedy).result();
    for (const left of [5, 3, 1]) {
      await conversation.undo();
      expect(conversation.messages).toHaveLength(left);
    }
    expect([conversation.length, conversation.bytes]).toEqual([0, 0]);
    await expect(conversation.undo()).rejects.toThrow(/no user message to remove/);
    await expect(conversation.save(join(folder, 'none'))).rejects.toThrow(/nothing to save/);
    await conversation.send(long, greedy).result();
    expect(conversation.messages).toHaveLength(3);
  });

  it('waits for a save, and not for an answer', async () => {
    await using conversation = model.conversation();
    await conversation.send(long, greedy).result();
    const path = join(folder, 'whole.kvsession');
    const saving = conversation.save(path);
    await conversation.undo();
    await saving;
    await using restored = await model.restore(path);
    expect(restored.messages).toHaveLength(2);
    const stream = restored.send('Who?', greedy);
    await stream.next();
    await expect(restored.undo()).rejects.toThrow(/already answering/);
    await stream.return();
  });
});

it('nothing of what was removed is in the file', async () => {
  await using model = await load('wasm', { pageTokens: 256 });
  await using conversation = model.conversation();
  await conversation.send('Hi', { ...greedy, maxTokens: 4 }).result();
  await conversation.send('The code is 4927.', greedy).result();
  await conversation.undo();
  const path = join(folder, 'removed.kvsession');
  await conversation.save(path);
  const { layers, kvHeads, headDim } = model.config;
  const signature = 48 + 32;
  const tail = (await readFile(path)).subarray(-4 * layers * kvHeads * headDim * 256 - signature, -signature);
  const isUsed = (slot: number) => tail.subarray(2 * headDim * slot, 2 * headDim * (slot + 1)).some(byte => byte !== 0);
  const used = Array.from({ length: 256 }, (_, slot) => slot).filter(isUsed);
  expect(used).toEqual(Array.from({ length: conversation.length }, (_, slot) => slot));
});

it('a conversation can be saved after a prompt that was cancelled', async () => {
  await using model = await load('wasm');
  await using conversation = model.conversation();
  await conversation.send(long, greedy).result();
  const stop = new AbortController();
  const onPrefill = () => stop.abort();
  const { finish } = await conversation.send(words, { ...greedy, signal: stop.signal, onPrefill }).result();
  expect(finish).toBe('cancelled');
  const path = join(folder, 'cancelled.kvsession');
  await conversation.save(path);
  await using restored = await model.restore(path);
  const expected = await conversation.send('And then?', greedy).result();
  expect((await restored.send('And then?', greedy).result()).ids).toEqual(expected.ids);
});

it('a session is restored for a tenant, and shares nothing with others', async () => {
  const path = join(folder, 'tenant.kvsession');
  await using model = await load('wasm');
  await using conversation = model.conversation({ tenant: 'a' });
  await conversation.send(long, greedy).result();
  await conversation.save(path);
  await using other = await load('wasm');
  const reused = async (tenant: string) => {
    const { usage } = await other.chat([{ role: 'user', content: long }], { ...greedy, tenant }).result();
    return usage.reusedTokens;
  };
  await using restored = await other.restore(path, { tenant: 'a' });
  expect(await reused('b')).toBe(0);
  expect(await reused('a')).toBeGreaterThan(60);
  expect((await restored.send('And then?', greedy).result()).usage.reusedTokens).toBeGreaterThan(60);
});

describe('a session that does not fit', () => {
  let model: Model;
  let path: string;
  beforeAll(async () => {
    model = await load('wasm');
    path = join(folder, 'hostile.kvsession');
    await using conversation = model.conversation();
    await conversation.send(long, greedy).result();
    await conversation.save(path);
  });
  afterAll(() => model.dispose());

  it('is refused with the difference: another codec', async () => {
    await using other = await load('wasm', { kv: 'tq3' });
    await expect(other.restore(path)).rejects.toThrow(UnsupportedError);
    await expect(other.restore(path)).rejects.toThrow(/another plan/);
    expect(other.stats()).toMatchObject({ idleSequences: 0, sharedLeaves: 0, cachedLeaves: 0 });
  });

  it('is refused with the difference: the RoPE of longer contexts', async () => {
    const metadata = { 'phi3.rope.scaling.original_context_length': 256 };
    const phi = new Blob([writeGguf(tinyModel({ architecture: 'phi3', kvHeads: 4, longRope: true, metadata }))]);
    const loadPhi = (context: number) => loadModel(phi, { device: 'wasm', pageTokens: 16, context });
    await using short = await loadPhi(256);
    await using shorter = await loadPhi(200);
    await using longer = await loadPhi(257);
    const file = join(folder, 'phi.kvsession');
    await using conversation = short.conversation();
    await conversation.send(long, greedy).result();
    await conversation.save(file);
    await using _ = await shorter.restore(file);
    await expect(longer.restore(file)).rejects.toThrow(
      /another RoPE .*load the model with the context it was saved with/,
    );
  });

  it('is refused if it is truncated or damaged, and nothing of it is kept', async () => {
    const bytes = new Uint8Array(await readFile(path));
    const before = model.stats();
    const damaged = join(folder, 'damaged.kvsession');
    for (const length of [0, 1, 47, 48, 200, bytes.length >> 1, bytes.length - 1]) {
      await writeFile(damaged, bytes);
      await truncate(damaged, length);
      await expect(model.restore(damaged)).rejects.toThrow(FormatError);
    }
    for (let i = 0; i < 200; i++) {
      const flipped = Uint8Array.from(bytes);
      flipped[(i * 7919) % bytes.length] ^= 1 << (i % 8);
      await expect(model.restore(flipped)).rejects.toThrow(KvasirError);
    }
    expect(model.stats()).toEqual(before);
  });

  it('is refused if there is none', async () => {
    await expect(model.restore(join(folder, 'missing'))).rejects.toThrow(KvasirError);
    await expect(model.conversation().save(join(folder, 'empty'))).rejects.toThrow(InputError);
  });
});
