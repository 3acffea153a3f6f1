/** What a conversation keeps, and for whom: when prompts are refused, tenants are given per answer, and while it is saved. */
import { expect, it } from 'vitest';
import { ContextError, InputError } from '../src/util/errors.ts';
import { load, words } from './support/lifetimes.ts';

const greedy = { temperature: 0, maxTokens: 8, ignoreEos: true };
const text = words.slice(0, 120);
const open = (options = {}) => load('wasm', { context: 512, pageTokens: 16, ...options });

/** A stream that takes its time. */
function slowStream() {
  const chunks: Uint8Array[] = [];
  const stream = new WritableStream<Uint8Array>({
    async write(chunk) {
      chunks.push(chunk.slice());
      await new Promise(resolve => setTimeout(resolve, 5));
    },
  });
  return { stream, read: () => new Blob(chunks as Uint8Array<ArrayBuffer>[]) };
}

it('an answer without a tenant is its conversation’s, also if the option is undefined', async () => {
  await using model = await open();
  const conversation = model.conversation({ tenant: 'alice' });
  await conversation.send(text, { ...greedy, tenant: undefined }).result();
  const reused = async (tenant?: string) =>
    (await model.complete([{ role: 'user', content: text }], { ...greedy, tenant })).usage.reusedTokens;
  expect(await reused()).toBe(0);
  expect(await reused('alice')).toBeGreaterThan(50);
});

it('a prompt that is refused replaces nothing', async () => {
  await using model = await open({ context: 128 });
  const conversation = model.conversation();
  const tooLong = words.repeat(3);
  await expect(conversation.send(tooLong, greedy).result()).rejects.toThrow(ContextError);
  await expect(conversation.save(slowStream().stream)).rejects.toThrow('There is nothing to save yet');
  await conversation.send('Who was Kvasir?', greedy).result();
  await expect(conversation.send(tooLong, greedy).result()).rejects.toThrow(ContextError);
  const saved = slowStream();
  await conversation.save(saved.stream);
  await using restored = await model.restore(saved.read());
  expect(restored.messages).toEqual(conversation.messages);
  expect(restored.messages).toHaveLength(2);
});

it('cropping and decoding wait for a save', async () => {
  await using model = await open();
  const conversation = model.conversation();
  await conversation.send(text, greedy).result();
  const { length } = conversation;
  const saved = slowStream();
  const saving = conversation.save(saved.stream);
  const [{ keys }, left] = await Promise.all([conversation.decode(0), conversation.crop(20)]);
  await saving;
  expect(keys.length).toBeGreaterThan(0);
  expect([left, conversation.length]).toEqual([16, 16]);
  await using restored = await model.restore(saved.read());
  expect(restored.length).toBe(length);
  await conversation.dispose();
  await expect(conversation.crop(0)).rejects.toThrow(InputError);
});

it('what was answered with a salt is found by that salt only, after it is saved and restored too', async () => {
  await using model = await open();
  const conversation = model.conversation({ tenant: 't' });
  const salted = { ...greedy, cacheSalt: 'alice' };
  await conversation.send(text, salted).result();
  const reused = async (cacheSalt?: string) =>
    (await model.complete([{ role: 'user', content: text }], { ...greedy, tenant: 't', cacheSalt })).usage.reusedTokens;
  const saved = slowStream();
  await conversation.save(saved.stream);
  await using restored = await model.restore(saved.read(), { tenant: 't' });
  expect(restored.length).toBe(conversation.length);
  expect(await reused()).toBe(0);
  expect(await reused('alice')).toBeGreaterThan(50);
});

it('a cache that is full is named, not the context', async () => {
  await using model = await open({ context: 4096, kvMemory: 60_000 });
  const { finish, notices } = await model.complete('a'.repeat(40), { temperature: 0, ignoreEos: true });
  expect([finish, notices]).toEqual([
    'length',
    [expect.stringMatching(/^The KV cache of [\d.]+ KiB, which holds \d+ tokens, is full\.$/)],
  ]);
});

it('loading that is aborted after the weights are read frees them', async () => {
  const abort = new AbortController();
  // The last report comes when everything is read.
  const onProgress = ({ done, total }: { done: number; total: number }) =>
    done === total && abort.abort(new Error('no more'));
  await expect(open({ signal: abort.signal, onProgress, tiers: 'host=1MiB' })).rejects.toThrow('no more');
});
