/** Who frees what, and when: the pass under way is cancelled and awaited first, whatever the order of calls. */
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { ChatOptions } from '../src/engine/conversation.ts';
import { type LoadOptions, loadModel, type Model } from '../src/engine/model.ts';
import type { Stream, Token } from '../src/engine/stream.ts';
import { InputError } from '../src/errors.ts';
import type { ChatMessage } from '../src/model/template.ts';
import { writeGguf } from './gguf-writer.ts';
import { actions, play } from './interleavings.ts';
import { tinyModel } from './tiny-model.ts';
import { describeGpu } from './webgpu.ts';

const LONG = process.env.KVASIR_LONG === '1';
const tiny = new Blob([writeGguf(tinyModel({ tied: false }))]);
/** Small pages and chunks, so that a few dozen tokens seal pages and take several passes. */
const load = (device: LoadOptions['device'], options: LoadOptions = {}) =>
  loadModel(tiny, { pageTokens: 16, prefillChunk: 8, context: 1024, device, ...options });
const user = (content: string): ChatMessage => ({ role: 'user', content });
const words = 'Odin drank the mead of poetry in three draughts. '.repeat(6);

/** What a conversation with these messages answers when nothing else runs. */
const alone = async (model: Model, messages: readonly ChatMessage[], options: ChatOptions) =>
  (await model.chat(messages, options).result()).ids;

async function tokensOf(stream: Stream<Token>): Promise<Token[]> {
  const tokens: Token[] = [];
  for await (const token of stream) tokens.push(token);
  return tokens;
}

describe('on js', () => suite('js'));
describe('on wasm', () => suite('wasm'));
describeGpu('on webgpu', () => suite('webgpu'));

function suite(device: 'js' | 'wasm' | 'webgpu'): void {
  // Plain loops are slow, and so is a GPU that a CPU emulates.
  const long = words.slice(0, { js: 90, wasm: words.length, webgpu: 50 }[device]);
  const greedy = { temperature: 0, maxTokens: device === 'webgpu' ? 5 : 24, ignoreEnd: true };
  let model: Model;
  let empty: ReturnType<Model['memory']>;
  beforeAll(async () => {
    model = await load(device);
    // A device keeps the working memory of its largest pass, and a GPU the pools that its conversations needed.
    const text = device === 'wasm' ? words.repeat(4).slice(0, 1000) : long;
    await Promise.all(Array.from({ length: device === 'webgpu' ? 6 : 1 }, () => model.complete(text, greedy)));
    empty = model.memory();
  }, 240_000);
  afterAll(() => model.dispose());
  /** Everything was given back. Pools of a GPU grow by halves and stay: they may have grown once more. */
  const given = () => {
    const { total, ...rest } = model.memory();
    expect({ ...empty, ...rest }).toEqual(empty);
    if (device === 'webgpu') expect(total).toBeLessThan(2 * empty.total);
    else expect(total).toBe(empty.total);
  };

  it('a conversation disposed in the middle of its answer leaves the next one alone', async () => {
    const wanted = await alone(model, [user('And who are you?')], greedy);
    for (let round = 0; round < (device === 'webgpu' ? 1 : 3); round++) {
      const a = model.conversation();
      const stream = a.send(long, { ...greedy, maxTokens: 60 });
      for (let i = 0; i <= round; i++) await stream.next();
      const reading = stream.result();
      const disposed = a.dispose();
      const b = model.conversation();
      const { ids } = await b.send('And who are you?', greedy).result();
      expect(ids).toEqual(wanted);
      await disposed;
      expect((await reading).finish).toBe('cancelled');
      expect([a.length, a.bytes]).toEqual([0, 0]);
      await b.dispose();
      given();
    }
  });

  it('disposing twice is harmless, and use after it is a typed error', async () => {
    const talk = model.conversation();
    await talk.send('a', greedy).result();
    const before = talk.send('b', greedy);
    await Promise.all([talk.dispose(), talk.dispose()]);
    await talk.dispose();
    await expect(before.next()).rejects.toThrow(/This conversation was disposed/);
    expect(() => talk.send('c')).toThrow(InputError);
    expect(() => talk.generate('c')).toThrow(/Open another/);
    await expect(talk.reset()).rejects.toThrow(InputError);
    given();
  });

  it('reset during an answer forgets it for good', async () => {
    const talk = model.conversation({ system: 'Be brief.' });
    const stream = talk.send(long, { ...greedy, maxTokens: 60 });
    await stream.next();
    const reading = stream.result();
    const reset = talk.reset();
    // Not awaited on purpose: what is said next waits for the reset by itself.
    const next = talk.send('And who are you?', greedy).result();
    await Promise.all([reset, reading, next]);
    expect(talk.messages.map(({ content }) => content).slice(0, 2)).toEqual(['Be brief.', 'And who are you?']);
    expect((await next).ids).toEqual(await alone(model, talk.messages.slice(0, 2), greedy));
    await talk.reset();
    expect([talk.messages.length, talk.length, talk.bytes]).toEqual([1, 0, 0]);
    await talk.dispose();
    given();
  });

  it('a stream that nobody reads, or that is left, holds nothing', async () => {
    model.chat([user(long)], greedy);
    model.generate(long, greedy);
    for await (const _ of model.chat([user(long)], greedy)) break;
    const stopped = model.generate(long, greedy);
    const first = stopped.next();
    await stopped.return();
    // Left while its prompt was read: no token came.
    expect(await first).toMatchObject({ done: true, value: { finish: 'cancelled' } });
    {
      await using stream = model.generate(long, greedy);
      await stream.next();
    }
    given();
  });

  it('leaving a stream stops its prompt between two passes', async () => {
    let done = 0;
    const stream = model.generate(long, { ...greedy, onPrefill: progress => (done = progress.done) });
    const first = stream.next();
    while (done === 0) await new Promise(resolve => setTimeout(resolve));
    await stream.return();
    await first;
    const { usage, timings } = await stream.result();
    expect(usage.prefilledTokens).toBe(done);
    expect(done).toBeLessThan(usage.promptTokens);
    // The rate is that of the tokens which were read.
    expect(timings.prefillRate * timings.prefillMs).toBeCloseTo(1000 * done, 3);
    given();
  });

  it('answers again, and what was said can be changed: whole pages in front of it stay', async () => {
    await using talk = model.conversation({ messages: [user(long), { role: 'assistant', content: 'Yes.' }] });
    await talk.send('Who?', { ...greedy, maxTokens: 40 }).result();
    const again = await talk.regenerate({ ...greedy, maxTokens: 40 }).result();
    expect(again.ids).toEqual(await alone(model, talk.messages.slice(0, 3), { ...greedy, maxTokens: 40 }));
    // Of the prompt all but the unfinished page.
    expect(again.usage.promptTokens - again.usage.reusedTokens).toBeLessThanOrEqual(16 + 1);
    const edited = await talk.edit(2, 'Why?', greedy).result();
    expect(edited.usage.reusedTokens).toBeGreaterThan(long.length);
    expect(edited.ids).toEqual(await alone(model, talk.messages.slice(0, 3), greedy));
    expect(talk.messages.map(({ role }) => role)).toEqual(['user', 'assistant', 'user', 'assistant']);
    await expect(talk.edit(1, 'x').result()).rejects.toThrow(/Message 1 is not a user's; those are 0, 2/);
    await expect(model.conversation().regenerate().result()).rejects.toThrow(InputError);
  });

  it.each(device === 'wasm' ? ['tq4', 'kivi2g16/tq3+sink0', 'tq2+recent9'] : ['tq4'])(
    'cropped to whole pages it goes on as a fresh one does: %s',
    async kv => {
      // Loading compiles a GPU's kernels anew, which takes a minute on a CPU.
      const other = kv === 'tq4' ? model : await load(device, { kv });
      await using talk = other.conversation();
      for (const keep of device === 'wasm' ? [50, 30, 41, 12, 44, 3, 20] : [8, 4, 6, 2]) {
        const text = [...long.split(' ').slice(0, keep), `${keep}`.repeat(9)].join(' ');
        const options = { ...greedy, logprobs: 0 };
        expect(await tokensOf(talk.generate(text, options))).toEqual(await tokensOf(other.generate(text, options)));
      }
      if (other !== model) await other.dispose();
    },
  );

  // A GPU's list of leaves is made anew for every pass.
  if (device !== 'webgpu')
    it('cropped, it seals into other blocks where somebody else took those that it gave back', async () => {
      await using other = await load(device, { prefillChunk: 256 });
      await using talk = other.conversation();
      const text = words.slice(0, 100);
      await talk.generate(text, { ...greedy, maxTokens: 1 }).result();
      const edited = `${text.slice(0, 20)}${'x'.repeat(80)}`;
      const thief = other.generate(words.slice(100, 200), greedy).result();
      const { ids } = await talk.generate(edited, greedy).result();
      await thief;
      expect(ids).toEqual((await other.generate(edited, greedy).result()).ids);
    });

  it('random interleavings corrupt nothing, leak nothing and end', {
    timeout: LONG ? 3_600_000 : 120_000,
  }, async () => {
    const numRuns = LONG ? 1000 : { js: 5, wasm: 40, webgpu: 1 }[device];
    let answers = 0;
    const runs = fc.asyncProperty(actions, async list => {
      answers += await play(model, list);
      given();
    });
    await fc.assert(runs, { numRuns, endOnFailure: true });
    // Most answers are cut short: of one interleaving it may be all.
    if (numRuns > 1) expect(answers).toBeGreaterThan(numRuns / 2);
  });
}

describe('a model', () => {
  it('cancels and awaits what runs before it goes away', async () => {
    const model = await load('wasm');
    const talk = model.conversation();
    const [stream, other] = [
      talk.send(words, { temperature: 0, maxTokens: 24 }),
      model.generate(words, { temperature: 0, maxTokens: 24 }),
    ];
    await Promise.all([stream.next(), other.next()]);
    const results = Promise.all([stream.result(), other.result()]);
    await Promise.all([model.dispose(), model.dispose()]);
    expect((await results).map(({ finish }) => finish)).toEqual(['cancelled', 'cancelled']);
    expect(model.memory().total).toBe(0);
    await talk.dispose();
    expect(() => talk.send('a')).toThrow(InputError);
    expect(() => model.chat([user('a')])).toThrow(/disposed/);
    expect(() => model.conversation()).toThrow(/disposed/);
  });

  it('lets the event loop have its turn while it reads a prompt', async () => {
    await using model = await loadModel('models/mimir.gguf', { device: 'wasm', context: 2048 });
    const prompt = words.repeat(10);
    const ask = () => model.complete(prompt, { maxTokens: 1, temperature: 0 });
    /** The wordsest that a timer of 1 ms had to wait. */
    const wordsestWait = async () => {
      let [wordsest, last] = [0, performance.now()];
      const timer = setInterval(() => {
        wordsest = Math.max(wordsest, performance.now() - last);
        last = performance.now();
      }, 1);
      expect((await ask()).usage.prefilledTokens).toBeGreaterThan(600);
      clearInterval(timer);
      return wordsest;
    };
    // The first compiles what it needs. Of the others the best counts: other programs may hold the machine.
    const waits: number[] = [];
    for (let round = 0; round < 5; round++) waits.push(await wordsestWait());
    expect(Math.min(...waits.slice(1))).toBeLessThan(50);
  });
});
