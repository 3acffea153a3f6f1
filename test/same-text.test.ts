/**
 * The same text: a greedy answer has the same tokens and the same log probabilities, bit for bit, whether its prompt was
 * computed, found in the cache, forked, edited, preempted or restored, and whatever else runs.
 */
import { execFile } from 'node:child_process';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type LoadOptions, loadModel, type Model, type Result } from '../src/index.ts';
import { planBytes } from '../src/plan/plan.ts';
import { writeGguf, writeTempModel } from './support/gguf-writer.ts';
import { ALL_CASES, LONG_CASES, matrix } from './support/matrix.ts';
import { mimir } from './support/mimir.ts';
import { describeWithFile, smolModel } from './support/shared.ts';
import { tinyModel } from './support/tiny-model.ts';
import { traceOf } from './support/trace-of.ts';

const tinySpec = tinyModel({ tied: false, headDim: 32 });
const tiny = new Blob([writeGguf(tinySpec)]);

let folder: string;
let [sessions, tenants] = [0, 0];
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'kvasir-same-text-'));
});
afterAll(() => rm(folder, { recursive: true }));

/** Tenants share nothing: the prompts of a new one are computed from the start. */
const newTenant = () => `${tenants++}`;
const greedy = (maxTokens: number) => ({ temperature: 0, ignoreEos: true, logprobs: 0, maxTokens });

/** Token ids that look random, and differ with `seed` from the first one on. */
const tokensOf = (length: number, vocab: number, seed = 0) =>
  Array.from({ length }, (_, i) => (i * i * 31 + i * 17 + seed * 101 + 7) % Math.min(vocab, 256));

/** A model with the answer that it gives to each prompt alone, with nothing in the cache. */
interface Case {
  model: Model;
  prompt: readonly number[];
  maxTokens: number;
}

/** Ways to get an answer; each returns it, and how many tokens of its prompt must have been reused at least. */
const ways: Record<string, (one: Case) => Promise<{ answer: Result; reused: number }>> = {
  async 'a prefix hit'({ model, prompt, maxTokens }) {
    const options = { ...greedy(maxTokens), tenant: newTenant() };
    await model.complete([...prompt.slice(0, -3), 1, 2, 3, 4], options);
    return { answer: await model.complete(prompt, options), reused: wholePages(model, prompt.length - 4) };
  },
  async 'the same prompt again'({ model, prompt, maxTokens }) {
    const options = { ...greedy(maxTokens), tenant: newTenant() };
    await model.complete(prompt, options);
    return { answer: await model.complete(prompt, options), reused: wholePages(model, prompt.length - 1) };
  },
  async forked({ model, prompt, maxTokens }) {
    const options = { ...greedy(maxTokens), tenant: newTenant() };
    await using conversation = model.conversation();
    const { ids } = await conversation.generate(prompt.slice(0, prompt.length >> 1), options).result();
    await using fork = conversation.fork();
    // The original goes on elsewhere.
    await conversation.generate([...prompt.slice(0, prompt.length >> 1), ...ids, 1, 2], options).result();
    return { answer: await fork.generate(prompt, options).result(), reused: wholePages(model, prompt.length >> 1) };
  },
  async 'edited back'({ model, prompt, maxTokens }) {
    const options = { ...greedy(maxTokens), tenant: newTenant() };
    await using conversation = model.conversation();
    await conversation.generate(prompt, options).result();
    const kept = Math.floor(0.7 * prompt.length);
    await conversation.generate([...prompt.slice(0, kept), ...prompt.slice(0, 9)], options).result();
    return { answer: await conversation.generate(prompt, options).result(), reused: wholePages(model, kept) };
  },
  async 'saved and restored'({ model, prompt, maxTokens }) {
    const path = join(folder, `${sessions++}.kvsession`);
    const cut = prompt.length - 5;
    {
      await using conversation = model.conversation();
      await conversation.generate(prompt.slice(0, cut), greedy(1)).result();
      await conversation.save(path);
    }
    await using restored = await model.restore(path);
    return { answer: await restored.generate(prompt, greedy(maxTokens)).result(), reused: cut };
  },
};

/** With a recent window, sequences are private. Pages before the one in which the sinks end are not reused by themselves. */
const wholePages = ({ plan: { pageTokens, window } }: Model, tokens: number) => {
  const whole = tokens - (tokens % pageTokens);
  return window.recent > 0 || whole < window.sink ? 0 : whole;
};

const coldAnswer = async ({ model, prompt, maxTokens }: Case) => {
  const cold = await model.complete(prompt, { ...greedy(maxTokens), tenant: newTenant() });
  expect(cold.usage).toMatchObject({ reusedTokens: 0, completionTokens: maxTokens });
  return traceOf(cold);
};

async function expectSameText(one: Case): Promise<void> {
  const cold = await coldAnswer(one);
  for (const [name, ask] of Object.entries(ways)) {
    const { answer, reused } = await ask(one);
    expect(traceOf(answer), `${name}, ${one.prompt.length} tokens`).toEqual(cold);
    expect(answer.usage.reusedTokens, `${name}, ${one.prompt.length} tokens`).toBeGreaterThanOrEqual(reused);
  }
}

/** Runs the prompt beside an older one that needs its room. Returns the number of preemptions. */
async function expectSameTextAfterPreemption({ model, prompt, maxTokens }: Case, older: number): Promise<number> {
  const cold = await coldAnswer({ model, prompt, maxTokens });
  const before = model.stats().preemptions;
  const other = tokensOf(older, model.config.vocab, 5);
  const [, answer] = await Promise.all([
    model.complete(other, { ...greedy(2), tenant: newTenant() }),
    model.complete(prompt, { ...greedy(maxTokens), tenant: newTenant() }),
  ]);
  expect(traceOf(answer), `${prompt.length} tokens beside ${older}`).toEqual(cold);
  return model.stats().preemptions - before;
}

/** `lengths`: of the prompts; the recent window is added, so that the same pages are sealed with every codec. */
function testSameText(load: (options: LoadOptions) => Promise<Model>, lengths: readonly number[], maxTokens: number) {
  let model: Model;
  let prompts: number[][];
  beforeAll(async () => {
    model = await load({});
    prompts = lengths.map(length => tokensOf(length + model.plan.window.recent, model.config.vocab));
  });
  afterAll(() => model?.dispose());

  it('in every way to get there', async () => {
    for (const prompt of prompts) await expectSameText({ model, prompt, maxTokens });
  });

  // SmolLM2 is slow.
  it.skipIf(maxTokens < 10)('preempted and resumed', async () => {
    const { plan } = model;
    const { pageTokens, window } = plan;
    // Room for the older request and the start of the younger one, which is admitted while the older one has no pages.
    const pages = Math.ceil(prompts[prompts.length - 1].length / pageTokens) + 1;
    const kvMemory = planBytes(plan, (pages + 1) * pageTokens + window.recent) + planBytes(plan, 1);
    await using small = await load({ kvMemory, maxSequences: 2 });
    let preempted = 0;
    for (const [i, prompt] of prompts.entries()) {
      const older = pages * pageTokens + window.recent + 1 + ((5 * i) % (pageTokens - 2));
      if ((await expectSameTextAfterPreemption({ model: small, prompt, maxTokens }, older)) > 0) preempted++;
    }
    expect(preempted).toBeGreaterThanOrEqual(prompts.length / 2);
  });
}

const from = (first: number, count: number) => Array.from({ length: count }, (_, i) => first + i);

describe('a tiny model on wasm', () => {
  describe.each(
    matrix(
      [
        ['f16', 16],
        ['tq4', 16],
        ['oscar2g32', 32],
        ['tq4+recent32', 16],
        ['kivi2g16/tq3+sink20', 16],
      ] as const,
      { tq4: 'codes per token', oscar2g32: 'codes per channel', 'tq4+recent32': 'a window' },
      ([kv]) => kv,
    ),
  )('%s, pages of %i', (kv, pageTokens) => {
    const load = (options: LoadOptions) =>
      loadModel(tiny, { device: 'wasm', pageTokens, context: 512, kv, ...options });
    // `npm test`: the lengths around a page boundary, and with one codec some within a page.
    const boundary = from(3 * pageTokens - 1, 3);
    const lengths = LONG_CASES
      ? from(2.5 * pageTokens, pageTokens)
      : ALL_CASES
        ? [...boundary, ...from(2.5 * pageTokens, pageTokens).filter(length => length % 4 === 1)]
        : kv === 'tq4'
          ? [...boundary, 2.5 * pageTokens]
          : boundary;
    testSameText(load, lengths, 20);
  });
});

describe('a tiny model on js, pages of 16', () => {
  describe.each(matrix(['f16', 'tq4', ...(LONG_CASES ? ['tq4+recent32'] : [])], { tq4: 'codes' }))('%s', kv => {
    const load = (options: LoadOptions) =>
      loadModel(tiny, { device: 'js', pageTokens: 16, context: 512, kv, ...options });
    testSameText(load, ALL_CASES ? [32, 33, 47] : [33, 47], 18);
  });
});

describe('a tiny model with windows, on wasm, pages of 16', () => {
  const windowed = new Blob([
    writeGguf(
      tinyModel({
        architecture: 'gemma3',
        layers: 7,
        headDim: 32,
        metadata: { 'gemma3.attention.sliding_window': 39 },
      }),
    ),
  ]);
  const load = (options: LoadOptions) =>
    loadModel(windowed, { device: 'wasm', pageTokens: 16, context: 512, kv: 'tq4', ...options });
  testSameText(load, [47, 48, 130], 18);
});

describe('Mimir on wasm, mead2, pages of 16', () => {
  const load = (options: LoadOptions) =>
    loadModel(mimir, { device: 'wasm', threads: 2, pageTokens: 16, context: 512, kv: 'mead2', ...options });
  testSameText(load, LONG_CASES ? from(40, 16) : ALL_CASES ? [40, 45, 47, 48, 49, 55] : [47, 48], 18);
});

describeWithFile(smolModel, 'SmolLM2 on wasm, pages of 128', path => {
  // `npm test` has Mimir.
  describe.skipIf(!ALL_CASES).each(LONG_CASES ? ['f16', 'tq4', 'oscar2g32', 'tq4+recent128'] : ['tq4'])(
    '%s',
    { timeout: 600_000 },
    kv => {
      const load = (options: LoadOptions) => loadModel(path, { device: 'wasm', context: 1024, kv, ...options });
      // The tiny models go through every length modulo a page.
      testSameText(load, LONG_CASES ? [129, 255, 256, 257] : [129], LONG_CASES ? 24 : 6);
    },
  );
});

describe('chats with the same system message', () => {
  const system = { role: 'system', content: `Answer in one word. ${'The tower is north of the river. '.repeat(6)}` };
  const [first, second] = ['Where is the tower?', 'Is the river wide?'];
  const chatOf = (question: string) => [system, { role: 'user', content: question }];
  const tools = [{ type: 'function' as const, function: { name: 'look', parameters: { type: 'object' } } }];

  it.each(matrix(['tq4', 'mead2'], { tq4: 'shared pages' }))('%s: it is read once, also with tools', async kv => {
    const file = kv.startsWith('mead2') ? mimir : tiny;
    await using model = await loadModel(file, { device: 'wasm', pageTokens: 16, kv, context: 1024 });
    for (const prompted of [{}, { tools }]) {
      const tenant = newTenant();
      const options = { ...greedy(20), ignoreEos: false, ...prompted };
      const prompt = model.encodeChat(chatOf(second), prompted);
      const shared = model.encodeChat(chatOf(first), prompted).findIndex((id, i) => id !== prompt[i]);
      await model.complete(chatOf(first), { ...options, tenant });
      const cold = await model.complete(chatOf(second), { ...options, tenant: newTenant() });
      const warm = await model.complete(chatOf(second), { ...options, tenant });
      expect(traceOf(warm)).toEqual(traceOf(cold));
      // All that the chats have in common, unless the first answer has sealed the page in which that ends.
      expect([shared, wholePages(model, shared)]).toContain(warm.usage.reusedTokens);
    }
  });
});

describe('conversations that keep the cache full', () => {
  const facts = ['red', 'blue', 'green', 'white', 'black', ...(ALL_CASES ? ['brown', 'pink', 'grey'] : [])];
  const turns = facts.map((color, i) => [
    `The ${color} door of house ${i} opens with the number ${7919 * (i + 3)}. ${'It rains. '.repeat(i + 2)}`,
    `Which door does the number ${7919 * (i + 3)} open?`,
    'And which house is it?',
  ]);
  const options = (i: number) => ({ ...greedy(12 + 3 * i), tenant: i % 2 === 0 ? '' : 'other' });

  /** All answers of one conversation, and how many tokens it has at the end. */
  const talk = async (model: Model, i: number) => {
    await using conversation = model.conversation({ system: 'Answer from the text.' });
    const answers: string[] = [];
    let length = 0;
    for (const turn of turns[i]) {
      const result = await conversation.send(turn, options(i)).result();
      answers.push(...traceOf(result));
      length = result.usage.promptTokens + result.usage.completionTokens;
    }
    return { answers, length };
  };

  it.each(
    matrix(['f16', 'tq4', 'mead2', 'oscar2g32', 'tq4+recent32'], {
      tq4: 'shared pages',
      'tq4+recent32': 'private sequences',
    }),
  )('%s: each gets the answers that it gets alone', async kv => {
    const load = (options: LoadOptions) =>
      kv === 'mead2'
        ? loadModel(mimir, { device: 'wasm', pageTokens: 16, kv, context: 1024, ...options })
        : loadModel(tiny, { device: 'wasm', pageTokens: 32, kv, context: 1024, ...options });
    await using roomy = await load({});
    const alone: Awaited<ReturnType<typeof talk>>[] = [];
    for (const i of facts.keys()) alone.push(await talk(roomy, i));
    // The longest conversation fits, and about two more.
    const longest = Math.max(...alone.map(({ length }) => length));
    const kvMemory = planBytes(roomy.plan, longest) + 2 * planBytes(roomy.plan, longest / 2);
    await using model = await load({ kvMemory, maxSequences: 8 });
    expect(await Promise.all(facts.map((_, i) => talk(model, i)))).toEqual(alone);
    const { preemptions, evictions, used, capacity } = model.stats();
    const sharesPages = roomy.plan.window.recent === 0;
    expect([preemptions > 0, evictions > 0, used <= capacity]).toEqual([true, sharesPages, true]);
  });
});

it('a session goes on in a new process', async () => {
  const path = join(folder, 'process.kvsession');
  const file = await writeTempModel(tinySpec);
  const load = { device: 'wasm', pageTokens: 16, context: 512, kv: 'tq4' } as const;
  await using model = await loadModel(file, load);
  await using conversation = model.conversation();
  const prompt = tokensOf(70, model.config.vocab);
  await conversation.generate(prompt.slice(0, 61), greedy(4)).result();
  await conversation.save(path);
  const cold = await coldAnswer({ model, prompt, maxTokens: 20 });
  const script = join(folder, 'restore.mjs');
  await writeFile(
    script,
    `import { loadModel } from ${JSON.stringify(new URL('../dist/index.js', import.meta.url).href)};
    const [file, load, path, prompt, options] = JSON.parse(process.argv[2]);
    const model = await loadModel(file, load);
    const restored = await model.restore(path);
    console.log(JSON.stringify(await restored.generate(prompt, options).result()));
    await model.dispose();`,
  );
  const args = JSON.stringify([file, load, path, prompt, greedy(20)]);
  const { stdout: printed } = await promisify(execFile)(process.execPath, [script, args]);
  const result: Result = JSON.parse(printed);
  expect(traceOf(result)).toEqual(cold);
  expect(result.usage.reusedTokens).toBe(61);
});
