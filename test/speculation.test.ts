/** Guessed tokens change nothing but the time: an answer has the same tokens and log probabilities, bit for bit. */
import { describe, expect, it } from 'vitest';
import type { GenerateOptions, Result } from '../src/index.ts';
import { expectReleased, type Generations, type GenerationsOptions, openGenerations } from './support/generations.ts';
import { typed } from './support/gguf-writer.ts';
import { words } from './support/lifetimes.ts';
import { matrix } from './support/matrix.ts';
import type { TinyOptions } from './support/tiny-model.ts';

/** By this clock a row costs next to nothing: whatever can be guessed is. */
const GUESSES: GenerationsOptions = { speculate: true, msPerPass: 10, msPerRow: 0.001 };
const document = words.slice(0, 120);
const greedy: GenerateOptions = { temperature: 0, ignoreEos: true, logprobs: 1, maxTokens: 60 };
/** One of two letters: what follows four of them is a guess that is often wrong. */
const random: GenerateOptions = {
  ...{ temperature: 1, seed: 7, ignoreEos: true, logprobs: 0, maxTokens: 90 },
  logitBias: { 97: 100, 98: 100 },
};
const traceOf = ({ logprobs, text, finish }: Result) => ({
  trace: logprobs?.map(({ id, logprob }) => `${id} ${logprob}`),
  text,
  finish,
});

interface Drafts {
  drafted: number;
  accepted: number;
}

/** Asks with and without guesses, one by one, compares answers and what is left in the cache, and returns the counts. */
async function expectSameText(options: GenerationsOptions, asked: readonly GenerateOptions[]): Promise<Drafts> {
  const answers = async (more: GenerationsOptions) => {
    const on = await openGenerations({ device: 'wasm', ...options, ...more });
    const results: Result[] = [];
    for (const [i, one] of asked.entries())
      results.push(await on.ask(document, { ...one, tenant: String(i) }).result());
    expectReleased(on);
    const { draftedTokens: drafted, acceptedTokens: accepted } = on.scheduler.stats;
    expect({ drafted, accepted }).toEqual({
      drafted: results.reduce((sum, { usage }) => sum + usage.draftedTokens, 0),
      accepted: results.reduce((sum, { usage }) => sum + usage.acceptedTokens, 0),
    });
    const { cachedLeaves, cachedBytes } = on.cache.stats;
    await on.engine.dispose();
    return { found: { answers: results.map(traceOf), cachedLeaves, cachedBytes }, drafted, accepted };
  };
  const plain = await answers({});
  const guessed = await answers(GUESSES);
  expect(plain.drafted).toBe(0);
  expect(guessed.found).toEqual(plain.found);
  return guessed;
}

/** Some guesses are right, and some are wrong. */
const expectBoth = ({ drafted, accepted }: Drafts) => {
  expect(accepted).toBeGreaterThan(8);
  expect(drafted - accepted).toBeGreaterThan(8);
};

const specs = [
  ...['f16', 'q8_0', 'q4_0', 'fp8', 'tq4', 'tq2u', 'tq35', 'kivi2g16', 'oscar2g16', 'tri16i8/tq4', 'tq4/tq2'],
  ...['tq4+recent20', 'kivi2g16+recent32', 'f16+sink40'],
];
const model: TinyOptions = { tied: false, layers: 2, width: 64, heads: 2, kvHeads: 1, headDim: 32, ffn: 64 };

describe('an answer with guessed tokens is the answer without', () => {
  it.each(matrix(specs, { tq4: 'pages', 'tq4+recent20': 'a recent window' }))('%s', async kv => {
    expectBoth(await expectSameText({ model, kv }, [random, greedy]));
  });

  it('on js', async () => {
    expectBoth(await expectSameText({ device: 'js' }, [random]));
  });

  it.each(matrix(['shadow', 'two-tier'] as const, {}))('in %s mode', async kvMode => {
    expectBoth(await expectSameText({ model, kvMode }, [random]));
  });

  it('with experts', async () => {
    expectBoth(await expectSameText({ model: { ...model, experts: [4, 2] } }, [random]));
  });

  it('with a window', async () => {
    const metadata = { 'gemma3.attention.sliding_window': 20, 'gemma3.rope.freq_base': typed('f32', 1e6) };
    const gemma: TinyOptions = { architecture: 'gemma3', layers: 6, headDim: 32, metadata };
    expectBoth(await expectSameText({ model: gemma }, [{ ...random, temperature: 8 }]));
  });

  it('while the oldest tokens are dropped', async () => {
    expectBoth(await expectSameText({ context: 160, overflow: 'slide' }, [{ ...random, maxTokens: 200 }]));
  });

  it('up to the end of the context', async () => {
    expectBoth(await expectSameText({ context: 260 }, [{ ...random, maxTokens: undefined }]));
  });

  it('with top-k, top-p, min-p and penalties', async () => {
    const settings: GenerateOptions[] = [
      { topK: 2 },
      { topP: 0.9 },
      { minP: 0.1 },
      { repetitionPenalty: 1.3, repetitionWindow: 8 },
      { frequencyPenalty: 0.5, presencePenalty: 0.5 },
      { logprobs: undefined },
    ];
    expectBoth(
      await expectSameText(
        {},
        settings.map(one => ({ ...random, ...one })),
      ),
    );
  });

  it('that ends with a stop string, or after few tokens', async () => {
    const on = await openGenerations({ device: 'wasm' });
    const { text } = await on.ask(document, random).result();
    const lengths = Array.from({ length: 10 }, (_, i) => ({ ...random, maxTokens: 50 + i }));
    const stops = [60, 63, 66, 70].map(end => ({ ...random, stop: text.slice(end - 7, end) }));
    expectBoth(await expectSameText({}, [...lengths, ...stops]));
  });

  it('beside others, where room is short', async () => {
    const on = await openGenerations({ ...GUESSES, device: 'wasm', pages: 12, maxSequences: 4 });
    const plain = await openGenerations({ device: 'wasm' });
    // Alone, it learns what a row costs.
    await on.ask(document, random).result();
    const { draftedTokens } = on.scheduler.stats;
    const ask = ({ ask }: Generations, seed: number) => ask(`${seed} ${document}`, { ...random, seed }).result();
    const found = await Promise.all([0, 1, 2, 3].map(seed => ask(on, seed)));
    for (const [seed, one] of found.entries()) expect(traceOf(one)).toEqual(traceOf(await ask(plain, seed)));
    expect(on.scheduler.stats.draftedTokens - draftedTokens).toBeGreaterThan(20);
    expect(on.scheduler.stats.preemptions).toBeGreaterThan(0);
    expectReleased(on);
  });
});

it('a reader that leaves in the middle leaves nothing behind that was only guessed', async () => {
  const on = await openGenerations({ ...GUESSES, device: 'wasm' });
  const whole = await on.ask(document, random).result();
  for (let count = 1; count < 60; count += 7) {
    const options = { ...random, tenant: String(count) };
    const stream = on.ask(document, options);
    for (let i = 0; i < count; i++) await stream.next();
    await stream.return();
    expect(stream.partial.ids).toEqual(whole.ids.slice(0, count));
    expectReleased(on);
    // What is kept of it is found again.
    expect(traceOf(await on.ask(document, options).result())).toEqual(traceOf(whole));
  }
});

it('a grammar sees only tokens that were sampled', async () => {
  const schema = { type: 'array', items: { enum: ['abcd', 'abce'] }, minItems: 16, maxItems: 16 };
  const answer = async (options: GenerationsOptions) => {
    const on = await openGenerations({ ...options, device: 'wasm' });
    const conversation = on.conversation();
    const result = await conversation.generate(on.engine.tokenizer.encode(document), { seed: 3, schema }).result();
    return { ...traceOf(result), drafts: result.usage };
  };
  const [plain, guessed] = [await answer({}), await answer(GUESSES)];
  expect(JSON.parse(guessed.text)).toHaveLength(16);
  expect(guessed.text).toBe(plain.text);
  expectBoth({ drafted: guessed.drafts.draftedTokens, accepted: guessed.drafts.acceptedTokens });
});

it('a conversation goes on where it ended', async () => {
  const turns = async (options: GenerationsOptions) => {
    const on = await openGenerations({ ...options, device: 'wasm' });
    const conversation = on.conversation();
    const prompt = on.engine.tokenizer.encode(document);
    const first = await conversation.generate(prompt, random).result();
    const second = await conversation.generate([...prompt, ...first.ids, 100, 101], random).result();
    return { traces: [first, second].map(traceOf), reused: second.usage.reusedTokens };
  };
  expect(await turns(GUESSES)).toEqual(await turns({}));
});

it('little is guessed where a row costs as much as a pass, and nothing where the device samples', async () => {
  const costly = await openGenerations({ speculate: true, msPerRow: 10 });
  const { usage } = await costly.ask(document, { ...greedy, maxTokens: 100 }).result();
  expect(usage.draftedTokens).toBeLessThan(15);
  const sampling = await openGenerations({ ...GUESSES, samples: true });
  expect((await sampling.ask(document, { ...greedy, logprobs: undefined }).result()).usage.draftedTokens).toBe(0);
});
