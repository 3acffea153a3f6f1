/** Tests of who frees what, and when: a running pass is cancelled and awaited first, whatever the order of calls. */
import fc from 'fast-check';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { type LoadOptions, loadModel, type Model } from '../../src/api/model.ts';
import type { ChatOptions } from '../../src/chat/conversation-options.ts';
import type { Stream, Token } from '../../src/engine/stream.ts';
import type { ChatMessage } from '../../src/model/template.ts';
import { InputError } from '../../src/util/errors.ts';
import { writeGguf } from './gguf-writer.ts';
import { actions, playActions } from './interleavings.ts';
import { ALL_CASES, LONG_CASES } from './matrix.ts';
import { tinyModel } from './tiny-model.ts';

const tiny = new Blob([writeGguf(tinyModel({ tied: false }))]);
/** Small pages and chunks, so that a few dozen tokens seal pages and take several passes. */
export const load = (device: LoadOptions['device'], options: LoadOptions = {}) =>
  loadModel(tiny, { pageTokens: 16, prefillChunk: 8, context: 1024, device, ...options });
export const user = (content: string): ChatMessage => ({ role: 'user', content });
export const words = 'Odin drank the mead of poetry in three draughts. '.repeat(6);

/** The answer to these messages when nothing else runs. */
const answerAlone = async (model: Model, messages: readonly ChatMessage[], options: ChatOptions) =>
  (await model.chat(messages, options).result()).ids;

async function tokensOf(stream: Stream<Token>): Promise<Token[]> {
  const tokens: Token[] = [];
  for await (const token of stream) tokens.push(token);
  return tokens;
}

export function testLifetimes(device: 'js' | 'wasm' | 'webgpu'): void {
  // The js device is slow, and so is SwiftShader.
  const long = words.slice(0, { js: 90, wasm: words.length, webgpu: 50 }[device]);
  const greedy = { temperature: 0, maxTokens: device === 'webgpu' ? 5 : 24, ignoreEos: true };
  let model: Model;
  let empty: ReturnType<Model['memory']>;
  beforeAll(async () => {
    model = await load(device);
    // A device keeps the scratch memory of its largest pass, and a GPU keeps its memory pools.
    const text = device === 'wasm' ? words.repeat(4).slice(0, 1000) : long;
    await Promise.all(Array.from({ length: device === 'webgpu' ? 6 : 1 }, () => model.complete(text, greedy)));
    empty = model.memory();
  }, 240_000);
  afterAll(() => model.dispose());
  /**
   * Nothing is held but pages that are kept for later prompts, and these can be evicted. A GPU's pools grow by half and
   * never shrink: they may have grown one more time.
   */
  const expectReleased = () => {
    const { total, cached, ...rest } = model.memory();
    expect(rest).toMatchObject({ pages: 0, tails: 0, weights: empty.weights, scratch: empty.scratch });
    expect(model.stats()).toMatchObject({ sharedLeaves: 0, idleSequences: 0, running: 0, waiting: 0 });
    const fixed = empty.total - empty.cached;
    if (device === 'webgpu') expect(total).toBeLessThan(2 * empty.total);
    else if (device === 'js') expect(total).toBe(fixed + cached);
    // The wasm device rounds every block up to 64 bytes.
    else expect(Math.abs(total - fixed - cached)).toBeLessThan(128 * (1 + model.stats().cachedLeaves));
  };
  /** Nothing of its prompts is known. */
  let tenants = 0;
  const newTenant = () => ({ tenant: `${tenants++}` });

  it('disposing a conversation during its answer does not affect the next conversation', async () => {
    const expected = await answerAlone(model, [user('And who are you?')], greedy);
    for (let round = 0; round < (device === 'webgpu' ? 1 : 3); round++) {
      const a = model.conversation();
      const stream = a.send(long, { ...greedy, maxTokens: 60 });
      for (let i = 0; i <= round; i++) await stream.next();
      const reading = stream.result();
      const disposed = a.dispose();
      const b = model.conversation();
      const { ids } = await b.send('And who are you?', greedy).result();
      expect(ids).toEqual(expected);
      await disposed;
      expect((await reading).finish).toBe('cancelled');
      expect([a.length, a.bytes]).toEqual([0, 0]);
      await b.dispose();
      expectReleased();
    }
  });

  it('a conversation can be disposed at any moment of the start of its answer', async () => {
    for (let microtasks = 0; microtasks < 8; microtasks++) {
      const conversation = model.conversation();
      const reading = conversation.send('Who?', { ...greedy, maxTokens: 2 }).next();
      for (let i = 0; i < microtasks; i++) await undefined;
      await Promise.all([conversation.dispose(), reading.catch(error => expect(error).toBeInstanceOf(InputError))]);
      expectReleased();
    }
  });

  // What a conversation keeps is the same on every device, and SwiftShader is slow.
  const itOnCpu = it.skipIf(device === 'webgpu' && !LONG_CASES);

  itOnCpu('disposing twice is harmless, and use after disposal is a typed error', async () => {
    const conversation = model.conversation();
    await conversation.send('a', greedy).result();
    const before = conversation.send('b', greedy);
    await Promise.all([conversation.dispose(), conversation.dispose()]);
    await conversation.dispose();
    await expect(before.next()).rejects.toThrow(/This conversation was disposed/);
    expect(() => conversation.send('c')).toThrow(InputError);
    expect(() => conversation.generate('c')).toThrow(/Open another/);
    await expect(conversation.reset()).rejects.toThrow(InputError);
    expectReleased();
  });

  it('reset during an answer discards the answer', async () => {
    const conversation = model.conversation({ system: 'Be brief.' });
    const stream = conversation.send(long, { ...greedy, maxTokens: 60 });
    await stream.next();
    const reading = stream.result();
    const reset = conversation.reset();
    // Not awaited on purpose: the next message waits for the reset.
    const next = conversation.send('And who are you?', greedy).result();
    await Promise.all([reset, reading, next]);
    expect(conversation.messages.map(({ content }) => content).slice(0, 2)).toEqual(['Be brief.', 'And who are you?']);
    expect((await next).ids).toEqual(await answerAlone(model, conversation.messages.slice(0, 2), greedy));
    await conversation.reset();
    expect([conversation.messages.length, conversation.length, conversation.bytes]).toEqual([1, 0, 0]);
    await conversation.dispose();
    expectReleased();
  });

  it('a stream that is never read, or abandoned, holds no memory', async () => {
    model.chat([user(long)], greedy);
    model.generate(long, greedy);
    for await (const _ of model.chat([user(long)], greedy)) break;
    const stopped = model.generate(long, { ...greedy, ...newTenant() });
    const first = stopped.next();
    await stopped.return();
    // Abandoned during prefill: there was no token.
    expect(await first).toMatchObject({ done: true, value: { finish: 'cancelled' } });
    {
      await using stream = model.generate(long, greedy);
      await stream.next();
    }
    expectReleased();
  });

  it('abandoning a stream stops its prefill between two passes', async () => {
    let done = 0;
    const onPrefill = (progress: { done: number }) => (done = progress.done);
    const stream = model.generate(long, { ...greedy, ...newTenant(), onPrefill });
    const first = stream.next();
    while (done === 0) await new Promise(resolve => setTimeout(resolve));
    await stream.return();
    await first;
    const { usage, timings } = await stream.result();
    expect(usage.prefilledTokens).toBe(done);
    expect(done).toBeLessThan(usage.promptTokens);
    // The rate counts only the tokens that were prefilled.
    expect(timings.prefillRate * timings.prefillMs).toBeCloseTo(1000 * done, 3);
    expectReleased();
  });

  itOnCpu('regenerate and edit keep the whole pages before the change', async () => {
    await using conversation = model.conversation({ messages: [user(long), { role: 'assistant', content: 'Yes.' }] });
    await conversation.send('Who?', { ...greedy, maxTokens: 40 }).result();
    const again = await conversation.regenerate({ ...greedy, maxTokens: 40 }).result();
    expect(again.ids).toEqual(
      await answerAlone(model, conversation.messages.slice(0, 3), { ...greedy, maxTokens: 40 }),
    );
    // The whole prompt is reused, except its last, unsealed page.
    expect(again.usage.promptTokens - again.usage.reusedTokens).toBeLessThanOrEqual(16 + 1);
    const edited = await conversation.edit(2, 'Why?', greedy).result();
    expect(edited.usage.reusedTokens).toBeGreaterThan(long.length);
    expect(edited.ids).toEqual(await answerAlone(model, conversation.messages.slice(0, 3), greedy));
    expect(conversation.messages.map(({ role }) => role)).toEqual(['user', 'assistant', 'user', 'assistant']);
    await expect(conversation.edit(1, 'x').result()).rejects.toThrow(
      /Message 1 is not a user message; user messages are 0, 2/,
    );
    await expect(model.conversation().regenerate().result()).rejects.toThrow(InputError);
  });

  it.each(device === 'wasm' ? ['tq4', 'kivi2g16/tq3+sink0', 'tq2+recent9'] : ['tq4'])(
    'after cropping to whole pages, continues like a new conversation: %s',
    async kv => {
      // Loading would compile the kernels again, which takes SwiftShader a minute.
      const other = kv === 'tq4' ? model : await load(device, { kv });
      await using conversation = other.conversation();
      for (const keep of device === 'wasm' ? [50, 30, 41, 12, 44, 3, 20] : [8, 4, 6, 2]) {
        const text = [...long.split(' ').slice(0, keep), `${keep}`.repeat(9)].join(' ');
        const options = { ...greedy, logprobs: 0 };
        expect(await tokensOf(conversation.generate(text, options))).toEqual(
          await tokensOf(other.generate(text, options)),
        );
      }
      if (other !== model) await other.dispose();
    },
  );

  // The webgpu device rebuilds its list of leaves in every pass.
  if (device !== 'webgpu')
    it('after cropping, seals into new blocks if another request has taken the released ones', async () => {
      await using other = await load(device, { prefillChunk: 256 });
      await using conversation = other.conversation();
      const text = words.slice(0, 100);
      await conversation.generate(text, { ...greedy, maxTokens: 1 }).result();
      const edited = `${text.slice(0, 20)}${'x'.repeat(80)}`;
      const concurrent = other.generate(words.slice(100, 200), greedy).result();
      const { ids } = await conversation.generate(edited, greedy).result();
      await concurrent;
      expect(ids).toEqual((await other.generate(edited, greedy).result()).ids);
    });

  it('random interleavings of conversations corrupt nothing, leak nothing and end', {
    timeout: LONG_CASES ? 3_600_000 : 120_000,
  }, async () => {
    const numRuns = LONG_CASES ? 1000 : { js: 5, wasm: ALL_CASES ? 40 : 20, webgpu: 1 }[device];
    let answers = 0;
    const runs = fc.asyncProperty(actions, async list => {
      answers += await playActions(model, list);
      expectReleased();
    });
    await fc.assert(runs, { numRuns, endOnFailure: true });
    // Most answers are cut short; in a single interleaving it may be all of them, and in few it is a matter of chance.
    if (numRuns > 1) expect(answers).toBeGreaterThan(numRuns < 20 ? 0 : numRuns / 2);
  });
}
