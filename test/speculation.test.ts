/** Guessed tokens change nothing but the time: an answer has the same tokens and log probabilities, bit for bit. */
import { describe, expect, it } from 'vitest';
import type { GenerateOptions, Result } from '../src/index.ts';
import { typed } from './support/gguf-writer.ts';
import { type Generations, type GenerationsOptions, openGenerations } from './support/generations.ts';
import { words } from './support/lifetimes.ts';
import { matrix } from './support/matrix.ts';
import { SMALLEST, type TinyOptions } from './support/tiny-model.ts';

/** By this clock a row costs next to nothing: whatever can be guessed is. */
const GUESSES: GenerationsOptions = { speculate: true, msPerPass: 10, msPerRow: 0.001 };
const document = words.slice(0, 120);
const greedy: GenerateOptions = { temperature: 0, ignoreEos: true, logprobs: 1, maxTokens: 60 };
/** One of three letters: what follows three of them is a guess that is often wrong. */
const random: GenerateOptions = {
  ...{ temperature: 1, seed: 7, ignoreEos: true, logprobs: 0, maxTokens: 90 },
  logitBias: { 97: 100, 98: 100, 99: 100 },
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

/** Asks both with and without guesses, compares the answers and what is left in the cache, and returns the counts. */
async function expectSameText(
  options: GenerationsOptions,
  asked: readonly { prompt?: string; options?: GenerateOptions }[],
): Promise<Drafts> {
  const answers = async (more: GenerationsOptions) => {
    const on = await openGenerations({ ...options, ...more });
    const results = await Promise.all(
      asked.map(({ prompt = document, options = greedy }) => on.ask(prompt, options).result()),
    );
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

function expectReleased({ cache, scheduler }: Generations): void {
  expect(scheduler.stats).toMatchObject({ waiting: 0, running: 0 });
  const { sharedLeaves, idleSequences, used, cachedBytes } = cache.stats;
  expect({ sharedLeaves, idleSequences, held: used - cachedBytes }).toEqual({
    sharedLeaves: 0,
    idleSequences: 0,
    held: 0,
  });
}

/** Some guesses are right, and some are wrong. */
const expectBoth = ({ drafted, accepted }: Drafts) => {
  expect(accepted).toBeGreaterThan(10);
  expect(drafted - accepted).toBeGreaterThan(10);
};

const specs = [
  ...['f16', 'q8_0', 'q4_0', 'fp8', 'tq4', 'tq2u', 'tq35', 'kivi2', 'oscar2', 'vec-d2b4', 'tri16', 'tq4>tq2@32'],
  ...['tq4+recent20', 'kivi2+recent32', 'f16+sink40'],
];
const model: TinyOptions = { tied: false, layers: 2, width: 64, heads: 2, kvHeads: 1, headDim: 32, ffn: 64 };

describe('an answer with guessed tokens is the answer without', () => {
  it.each(matrix(specs, { tq4: 'pages', 'tq4+recent20': 'a recent window' }))('%s', async kv => {
    expectBoth(await expectSameText({ model, device: 'wasm', kv }, [{ options: random }]));
    await expectSameText({ model, device: 'wasm', kv }, [{ options: greedy }]);
  });

  it('on js', async () => {
    expectBoth(await expectSameText({}, [{ options: random }]));
  });

  it.each(matrix(['shadow', 'two-tier'] as const, {}))('in %s mode', async kvMode => {
    expectBoth(await expectSameText({ model, device: 'wasm', kvMode }, [{ options: random }]));
  });

  it('with a window, and with experts', async () => {
    const metadata = { 'gemma3.attention.sliding_window': 20, 'gemma3.rope.freq_base': typed('f32', 1e6) };
    const gemma: TinyOptions = { architecture: 'gemma3', layers: 6, headDim: 32, metadata };
    expectBoth(await expectSameText({ model: gemma, device: 'wasm' }, [{ options: random }]));
    const experts: TinyOptions = { ...model, experts: [4, 2] };
    expectBoth(await expectSameText({ model: experts, device: 'wasm' }, [{ options: random }]));
  });

  it('while the oldest tokens are dropped', async () => {
    const options = { ...random, maxTokens: 200 };
    expectBoth(await expectSameText({ device: 'wasm', context: 160, overflow: 'slide' }, [{ options }]));
  });

  it('up to the end of the context, and from the first tokens on', async () => {
    expectBoth(await expectSameText({ context: 100 }, [{ prompt: 'abc', options: { ...random, maxTokens: 500 } }]));
  });

  it('with top-k, top-p, min-p and penalties', async () => {
    const { logprobs: _, ...rest } = random;
    for (const more of [
      { topK: 2 },
      { topP: 0.9 },
      { minP: 0.1 },
      { repetitionPenalty: 1.3, repetitionWindow: 8 },
      { frequencyPenalty: 0.5, presencePenalty: 0.5 },
    ])
      await expectSameText({}, [{ options: { ...random, ...more } }, { options: { ...rest, ...more } }]);
  });

  it('that ends with a stop string or after few tokens', async () => {
    const [plain] = await answersTo(await openGenerations(), [random]);
    const stop = plain.text.slice(40, 47);
    for (let maxTokens = 30; maxTokens < 40; maxTokens++)
      await expectSameText({}, [{ options: { ...random, maxTokens } }]);
    expectBoth(await expectSameText({}, [{ options: { ...random, stop } }]));
  });

  it('beside others, and where room is short', async () => {
    const asked = Array.from({ length: 4 }, (_, i) => ({ options: { ...random, seed: i }, prompt: `${i} ${document}` }));
    expectBoth(await expectSameText({ device: 'wasm' }, asked));
    const on = await openGenerations({ ...GUESSES, pages: 12, maxSequences: 4 });
    const alone = await openGenerations();
    const found = await Promise.all(asked.map(({ prompt, options }) => on.ask(prompt, options).result()));
    for (const [i, { prompt, options }] of asked.entries())
      expect(traceOf(found[i])).toEqual(traceOf(await alone.ask(prompt, options).result()));
    expect(on.scheduler.stats.preemptions).toBeGreaterThan(0);
    expectReleased(on);
  });
});

const answersTo = (on: Generations, options: readonly GenerateOptions[]) =>
  Promise.all(options.map(one => on.ask(document, one).result()));

it('a reader that leaves in the middle leaves nothing that was not read by the model', async () => {
  const on = await openGenerations(GUESSES);
  const [whole] = await answersTo(on, [random]);
  for (let count = 1; count < 60; count += 7) {
    const stream = on.ask(document, { ...random, tenant: `${count}` });
    for (let i = 0; i < count; i++) await stream.next();
    await stream.return();
    expect(stream.partial.ids).toEqual(whole.ids.slice(0, count));
    expectReleased(on);
    // What is kept of it is found again.
    const again = await on.ask(document, { ...random, tenant: `${count}` }).result();
    expect(traceOf(again)).toEqual(traceOf(whole));
  }
});

it('conversations go on where they ended', async () => {
  const turns = async (options: GenerationsOptions) => {
    const on = await openGenerations({ ...options, device: 'wasm', model: SMALLEST });
    const conversation = on.conversation();
    const first = await conversation.generate(on.engine.tokenizer.encode(document), random).result();
    const ids = [...on.engine.tokenizer.encode(document), ...first.ids, 100, 101];
    const second = await conversation.generate(ids, random).result();
    const { outliers: _, ...held } = { outliers: undefined, reused: second.usage.reusedTokens };
    return { traces: [first, second].map(traceOf), held };
  };
  expect(await turns(GUESSES)).toEqual(await turns({}));
});

it('nothing is guessed where a row costs as much as a pass, or the device samples', async () => {
  const costly = await openGenerations({ speculate: true, msPerRow: 10 });
  const { usage } = await costly.ask(document, { ...greedy, maxTokens: 200 }).result();
  expect(usage.draftedTokens).toBeLessThan(12);
  const sampling = await openGenerations({ ...GUESSES, samples: true });
  expect((await sampling.ask(document, { ...greedy, logprobs: undefined }).result()).usage.draftedTokens).toBe(0);
});
