/** The public API with tiny random models of every architecture. */
import { readFile } from 'node:fs/promises';
import { describe, expect, it } from 'vitest';
import { CapacityError, InputError, type LoadOptions, loadModel, type Model, UnsupportedError } from '../src/index.ts';
import type { WeightType } from '../src/kernel/weights/types.ts';
import { writeGguf, writeTempModel } from './support/gguf-writer.ts';
import { ALL_CASES, matrix } from './support/matrix.ts';
import { seeded } from './support/random.ts';
import { type TinyOptions, tinyModel } from './support/tiny-model.ts';

/** Untied output matrix: a tied one repeats the last token again and again. */
const blobOf = (options: TinyOptions = {}) => new Blob([writeGguf(tinyModel({ tied: false, ...options }))]);
const tiny = blobOf();
const devices = ['js', 'wasm'] as const;
/** `npm test`: js, which is slow, only where it differs. */
const quickDevices = matrix(devices, { wasm: 'packed pages' });
/** Pages of 16 tokens, so that a few dozen tokens seal some. */
const loadOn =
  (device: (typeof devices)[number]) =>
  (options: LoadOptions = {}, model: Blob | string = tiny) =>
    loadModel(model, { pageTokens: 16, device, ...options });
const load = loadOn('js');
const prompt = 'The mead of poetry was brewed from honey and the blood of Kvasir, the wisest of all beings.';
const greedy = { temperature: 0, maxTokens: 24, ignoreEos: true };

/** Token ids with their log probabilities, which show any difference in the arithmetic. */
async function trace(model: Model, text: string): Promise<string[]> {
  const tokens: string[] = [];
  for await (const { id, logprob } of model.generate(text, { ...greedy, logprobs: 0 })) tokens.push(`${id} ${logprob}`);
  return tokens;
}

describe.each(['llama', 'qwen2', 'qwen3'] as const)('%s', architecture => {
  it.each<WeightType>(ALL_CASES ? ['F32', 'Q8_0', 'Q4_K'] : ['Q8_0'])(
    '%s: the output does not depend on the prefill chunk',
    async type => {
      const model = blobOf({ architecture, type });
      const traces: string[] = [];
      for (const prefillChunk of [1, 7, 128]) {
        await using loaded = await load({ prefillChunk }, model);
        // Seals four pages.
        traces.push((await trace(loaded, prompt.slice(0, 45))).join());
      }
      expect(new Set(traces).size).toBe(1);
    },
  );
});

describe.each(quickDevices)('the cache on %s', device => {
  const load = loadOn(device);
  it.each(
    matrix(['f16', 'tq4', 'tq2+recent20', 'kivi2g16/tq3+sink0', 'q8_0'], {
      tq4: 'sealed pages',
      'tq2+recent20': 'a window',
    }),
  )('%s: the output does not depend on batch or prefill chunk', async kv => {
    const model = blobOf({ headDim: 32 });
    await using first = await load({ kv, prefillChunk: 7 }, model);
    await using second = await load({ kv, prefillChunk: 64 }, model);
    // Three at once on one model take turns; alone, each gives the same.
    const prompts = [prompt, prompt.slice(0, 33), 'x'];
    const together = await Promise.all(prompts.map(text => trace(first, text)));
    for (const [i, text] of prompts.entries()) expect(await trace(second, text)).toEqual(together[i]);
  });
});

describe.each(devices)('the memory of the cache on %s', device => {
  it('is counted in bytes, and freed', async () => {
    const model = await loadOn(device)();
    const before = model.memory();
    expect(before).toMatchObject({ pages: 0, tails: 0, total: before.weights + before.scratch });
    const conversation = model.conversation();
    await conversation.generate(prompt, greedy).result();
    const during = model.memory();
    // 91 + 23 tokens ran: 7 pages of 16 are sealed.
    expect(during.pages).toBe(7 * model.plan.leaf.bytes);
    // 2 tokens are in the tail, which has blocks of 8; and 16 sinks.
    expect(during.tails).toBe(2 * 2 * 2 * 16 * (8 + 16) * 2);
    expect(conversation.bytes).toBe(during.pages + during.tails);
    if (device === 'js') expect(during.total).toBe(during.weights + during.scratch + conversation.bytes);
    await conversation.dispose();
    // The pages are kept for later prompts.
    const cached = 7 * model.plan.leaf.bytes + 2 * 2 * 2 * 16 * 16 * 2;
    if (device === 'js') expect(model.memory()).toEqual({ ...before, cached, total: before.total + cached });
    await model.complete(prompt, greedy);
    expect(model.memory()).toMatchObject({ pages: 0, tails: 0 });
    const open = model.conversation();
    await open.generate('abc', greedy).result();
    await model.dispose();
    await open.dispose();
    expect(model.memory()).toEqual({ weights: 0, scratch: 0, pages: 0, tails: 0, cached: 0, total: 0 });
  });
});

describe.each(quickDevices)('a conversation on %s', device => {
  const load = loadOn(device);
  it('reuses its cache and gives the same answers as a new one', async () => {
    await using model = await load({ context: 512 });
    const conversation = model.conversation({ system: 'Be brief.' });
    const fresh = () => model.conversation({ system: 'Be brief.' });
    const options = { temperature: 0, maxTokens: 20 };
    const reused: number[] = [];
    for (const text of ['Who was Kvasir?', 'And who killed him?', 'Why?']) {
      const history = [...conversation.messages, { role: 'user', content: text }];
      const { text: answer, usage } = await conversation.send(text, options).result();
      reused.push(usage.reusedTokens);
      expect((await fresh().chat(history, options).result()).text).toBe(answer);
    }
    expect(conversation.messages.map(({ role }) => role)).toEqual(
      'system user assistant user assistant user assistant'.split(' '),
    );
    expect(reused[0]).toBe(0);
    await conversation.reset();
    expect(conversation.messages).toHaveLength(1);
    expect(conversation.length).toBe(0);
  });

  it('reuses any prefix that ends in the tail, and whole pages before it', async () => {
    await using model = await load();
    const conversation = model.conversation();
    const ask = async (text: string) => {
      const { ids, usage } = await conversation.generate(text, { ...greedy, maxTokens: 1 }).result();
      // Another tenant has a cache of its own.
      expect(ids).toEqual((await model.complete(text, { ...greedy, maxTokens: 1, tenant: text })).ids);
      return usage.reusedTokens;
    };
    expect(await ask('a'.repeat(40))).toBe(0);
    expect(await ask(`${'a'.repeat(40)}bc`)).toBe(40);
    expect(await ask(`${'a'.repeat(40)}d`)).toBe(40);
    expect(await ask('a'.repeat(36))).toBe(35);
    expect(await ask(`${'a'.repeat(36)}${'e'.repeat(30)}`)).toBe(36);
    expect(await ask(`${'a'.repeat(36)}x`)).toBe(32);
    expect(await ask(`${'a'.repeat(16)}x`)).toBe(16);
    expect(await ask(`${'a'.repeat(15)}x`)).toBe(0);
  });

  it.each(['tq3', 'tq2+recent9+sink2'])(
    '%s: gives the same tokens as a new cache, wherever prompts differ',
    async kv => {
      await using model = await load({ kv, prefillChunk: 11 });
      const random = seeded(3);
      const conversation = model.conversation();
      const options = { ...greedy, maxTokens: 3, logprobs: 0 };
      const reused = [0, 0, 0];
      let text = '';
      for (let turn = 0; turn < 16; turn++) {
        const keep = Math.floor(text.length * (1 - random.next() ** 4));
        text = text.slice(0, keep) + String.fromCharCode(97 + turn).repeat(1 + random.below(14));
        const tokens: string[][] = [[], [], []];
        const streams = [
          conversation.generate(text, options),
          model.generate(text, { ...options, tenant: 'others' }),
          model.generate(text, { ...options, tenant: `${turn}` }),
        ];
        for (const [i, stream] of streams.entries()) {
          for await (const { id, logprob } of stream) tokens[i].push(`${id} ${logprob}`);
          reused[i] += (await stream.result()).usage.reusedTokens;
        }
        expect(tokens).toEqual([tokens[2], tokens[2], tokens[2]]);
      }
      expect(reused[0]).toBeGreaterThan(100);
      // Requests without a conversation reuse as much, unless sequences are private.
      if (kv.includes('recent')) expect(reused[1]).toBe(0);
      else expect(reused[1]).toBeGreaterThan(100);
      expect(reused[2]).toBe(0);
    },
  );

  it('rejects a second answer while one is running', async () => {
    await using model = await load();
    const conversation = model.conversation();
    const [first, second] = [conversation.send('a', greedy), conversation.send('b', greedy)];
    await first.next();
    await expect(second.next()).rejects.toThrow(/already answering/);
    await first.return();
    expect((await conversation.send('c', { ...greedy, maxTokens: 2 }).result()).finish).toBe('length');
  });
});

describe.each(quickDevices)('the end of the context on %s', device => {
  const load = loadOn(device);
  it('is an error if the prompt fills it, and a notice if the answer does', async () => {
    await using model = await load({ context: 64 });
    await expect(model.complete(prompt)).rejects.toThrow(CapacityError);
    const ask = async (maxTokens?: number) => {
      const { finish, ids, notices } = await model.complete('a'.repeat(60), { ignoreEos: true, maxTokens });
      return [finish, ids.length, ...notices];
    };
    expect(await ask()).toEqual(['length', 4, 'The context of 64 tokens is full.']);
    expect(await ask(3)).toEqual(['length', 3]);
    expect(await ask(4)).toEqual(['length', 4, 'The context of 64 tokens is full.']);
    expect(await ask(500)).toEqual([
      'length',
      4,
      'The context of 64 tokens is full: the answer ended after 4 tokens, and the limit was 500.',
    ]);
  });

  it('slides with a notice, and does not depend on the prefill chunk', async () => {
    const outcomes: string[] = [];
    for (const prefillChunk of [1, 7, 128]) {
      await using model = await load({ context: 56, overflow: 'slide', prefillChunk });
      const stream = model.generate(prompt, { ...greedy, maxTokens: 60 });
      const notices: string[] = [];
      for await (const { notice } of stream) if (notice) notices.push(notice);
      const { ids, notices: last } = await stream.result();
      // 91 tokens of prompt: 3 pages had to go at once, and one for every 16 more.
      expect(notices.map(text => Number(text.match(/oldest (\d+)/)?.[1]))).toEqual([48, 64, 80, 96]);
      expect(last).toEqual(notices.slice(-1));
      outcomes.push(ids.join());
    }
    expect(new Set(outcomes).size).toBe(1);
    await expect(load({ context: 16, overflow: 'slide' })).rejects.toThrow(/needs a context of more than one page/);
  });
});

describe('a stream', () => {
  it('yields every token once, with whole characters, and log probabilities on request', async () => {
    await using model = await load();
    const stream = model.generate(prompt, { ...greedy, logprobs: 2 });
    let text = '';
    const ids: number[] = [];
    for await (const token of stream) {
      text += token.text;
      ids.push(token.id);
      expect(token.logprob).toBeLessThanOrEqual(0);
      expect(token.top).toHaveLength(2);
    }
    const result = await stream.result();
    expect(result).toMatchObject({ text, ids, finish: 'length' });
    expect(result.timings.prefillRate).toBeGreaterThan(0);
    expect(result.timings.decodeRate).toBeGreaterThan(0);
  });

  it.each(['chat', 'complete', 'send'] as const)(
    '%s keeps the log probabilities, as generate reports them',
    async call => {
      await using model = await load();
      const options = { ...greedy, maxTokens: 6, logprobs: 2 };
      const messages = [{ role: 'user', content: 'Who was Kvasir?' }];
      const stream =
        call === 'send' ? model.conversation().send('Who was Kvasir?', options) : model.chat(messages, options);
      const counts: number[] = [];
      if (call !== 'complete') {
        expect(stream.partial.logprobs).toBeUndefined();
        for await (const _ of stream) counts.push(stream.partial.logprobs!.length);
      }
      const result = call === 'complete' ? await model.complete(messages, options) : await stream.result();
      expect(result.logprobs!.map(({ id }) => id)).toEqual(result.ids);
      // The stream has the log probabilities of every token up to the text that it has yielded.
      expect(counts).toEqual([...counts].sort((a, b) => a - b));
      if (call !== 'complete') expect([counts[0] < 6, counts.at(-1)]).toEqual([true, 6]);

      const prompt = model.tokenizer.encode('<|im_start|>user\nWho was Kvasir?<|im_end|>\n<|im_start|>assistant\n');
      const tokens = [];
      for await (const { id, logprob, top } of model.generate(prompt, options)) tokens.push({ id, logprob, top });
      expect(result.logprobs).toEqual(tokens);
      expect((await model.complete(messages, { ...greedy, maxTokens: 1 })).logprobs).toBeUndefined();
    },
  );

  it('ends before a stop string', async () => {
    await using model = await load();
    const { text } = await model.complete(prompt, { ...greedy, maxTokens: 60 });
    const at = text.split('').findLastIndex((char, i) => text.indexOf(char) === i);
    const stop = text.slice(at, at + 1);
    const result = await model.complete(prompt, { ...greedy, maxTokens: 60, stop: [stop, 'never here'] });
    expect(result).toMatchObject({ finish: 'stop', stop, text: text.slice(0, at) });
  });

  it('gives several answers to one prompt, each as if it were the only one', async () => {
    await using model = await load();
    const options = { maxTokens: 12, temperature: 2, seed: 7 };
    const results = await model.samples(prompt, 3, options);
    for (const [i, { ids, seed }] of results.entries()) {
      expect(seed).toBe(7 + i);
      expect((await model.complete(prompt, { ...options, seed, tenant: 'alone' })).ids).toEqual(ids);
    }
    const shared = results[0].usage.promptTokens - 1;
    expect(results.map(({ usage }) => usage.reusedTokens)).toEqual([0, shared, shared]);
    await expect(model.samples(prompt, 0)).rejects.toThrow(/samples needs a number of answers/);
  });

  it('gives the same tokens for the same seed', async () => {
    await using model = await load();
    const ask = (seed?: number) => model.complete(prompt, { maxTokens: 12, temperature: 2, seed });
    const first = await ask();
    expect((await ask(first.seed)).ids).toEqual(first.ids);
  });

  it('a signal cancels it during prefill and during decoding', async () => {
    await using model = await load({ prefillChunk: 8 });
    const early = new AbortController();
    const { finish, ids, usage } = await model.complete(prompt, {
      signal: early.signal,
      onPrefill: ({ done }) => done >= 16 && early.abort(),
    });
    expect([finish, ids, usage.promptTokens]).toEqual(['cancelled', [], 91]);
    const late = new AbortController();
    const conversation = model.conversation();
    const stream = conversation.send('hello', { signal: late.signal, ignoreEos: true });
    setTimeout(() => late.abort(), 30);
    expect((await stream.result()).finish).toBe('cancelled');
    // What was said so far stays, and the cache is sound.
    const again = await conversation.chat(conversation.messages, greedy).result();
    expect(again.text).toBe((await model.chat(conversation.messages, greedy).result()).text);
  });

  it('can be left early', async () => {
    await using model = await load();
    const stream = model.generate(prompt, greedy);
    for await (const _ of stream) break;
    expect(await stream.result()).toMatchObject({ finish: 'cancelled', usage: { completionTokens: 1 } });
    expect(model.memory().pages).toBe(0);
  });
});

describe('loading', () => {
  it('takes a path to one or several files, and reports progress', async () => {
    const path = await writeTempModel(tinyModel({ tied: false }), { shards: 3 });
    const steps: number[] = [];
    await using split = await load({ onProgress: ({ done, total }) => steps.push(done / total) }, path);
    expect(steps.at(-1)).toBe(1);
    const whole = await writeTempModel(tinyModel({ tied: false }));
    await using model = await load({}, new Blob([await readFile(whole)]));
    expect((await split.complete(prompt, greedy)).ids).toEqual((await model.complete(prompt, greedy)).ids);
    expect(model.device).toEqual({ name: 'js', threads: 1, why: 'js (plain loops, slow), as requested' });
    expect(model.notices).toEqual([
      expect.stringMatching(/^The model file has no chat template; ChatML is used\. .*--raw\.$/),
    ]);
  });

  it('says what would fit if memory is short', async () => {
    const { weights, scratch } = await load().then(model => model.memory());
    const limit = weights + scratch + 200_000;
    await expect(load({ context: 100_000, memoryLimit: limit })).rejects.toThrow(
      /This needs .*weights .*cache .*scratch .*With this model, a context of [\d,]+ fits/,
    );
    const { message } = await load({ context: 100_000, memoryLimit: limit }).catch(error => error);
    const fits = Number(message.match(/context of ([\d,]+) fits/)[1].replaceAll(',', ''));
    await using _ = await load({ context: fits, memoryLimit: limit });
    await expect(load({ context: fits + 32, memoryLimit: limit })).rejects.toThrow(CapacityError);
    await expect(load({ memoryLimit: 1000 })).rejects.toThrow(/smaller model/);
  });

  it('takes a chat template that cannot be used: text can be continued', async () => {
    const broken = blobOf({ metadata: { 'tokenizer.chat_template': '{% raw %}{{ x }}{% endraw %}' } });
    await using model = await load({}, broken);
    expect(model.notices).toEqual([expect.stringMatching(/^The chat template cannot be used: .* run --raw\.$/)]);
    expect((await model.complete(prompt, greedy)).ids).toHaveLength(24);
    await expect(model.conversation().send('Hi').result()).rejects.toThrow(/^The chat template cannot be used/);
  });

  it('rejects invalid arguments', async () => {
    await expect(load({ context: 0 })).rejects.toThrow(InputError);
    await expect(load({ kv: 'tq9' })).rejects.toThrow(/not a codec/);
    await expect(load({ device: 'gpu' as never })).rejects.toThrow(UnsupportedError);
    await expect(load({ prefillChunk: 0 })).rejects.toThrow(InputError);
    await expect(load({ signal: AbortSignal.abort() })).rejects.toThrow(/aborted/);
    await expect(load({}, '/nowhere/model.gguf')).rejects.toThrow(InputError);
    await using model = await load();
    await expect(model.complete([])).rejects.toThrow(/empty/);
    await expect(model.complete([1, 999])).rejects.toThrow(/outside the vocabulary/);
    await expect(model.complete('a', { maxTokens: 0 })).rejects.toThrow(InputError);
  });
});
