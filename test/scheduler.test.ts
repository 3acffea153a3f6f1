/** The scheduler: requests share passes, nobody waits for a reader, a tenant or a failure that is not its own. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import type { Result, Stream, Token } from '../src/index.ts';
import { CapacityError, DeviceError, InputError } from '../src/util/errors.ts';
import { expectReleased, type Generations, openGenerations } from './support/generations.ts';
import { load, words } from './support/lifetimes.ts';

const greedy = (maxTokens: number) => ({ temperature: 0, ignoreEos: true, maxTokens });
const promptOf = (i: number) => `${String.fromCharCode(65 + i).repeat(3)} ${words.slice(7 * i, 7 * i + 20 + 3 * i)}`;
/** The tokens that a prompt gets with nothing else running, in a tenant of its own. */
const alone = async (on: Generations, prompt: string, maxTokens: number) =>
  (await on.ask(prompt, { ...greedy(maxTokens), tenant: 'alone' }).result()).ids;
const idsOf = async (stream: Stream<Token>) => (await stream.result()).ids;

describe('continuous batching', () => {
  it('eight requests share their passes', async () => {
    const on = await openGenerations();
    const lengths = Array.from({ length: 8 }, (_, i) => 20 + i);
    const expected: number[][] = [];
    for (const [i, length] of lengths.entries()) expected.push(await alone(on, promptOf(i), length));
    const sum = on.passes.splice(0).length;
    const found = await Promise.all(lengths.map((length, i) => idsOf(on.ask(promptOf(i), greedy(length)))));
    expect(found).toEqual(expected);
    expect(sum).toBeGreaterThan(180);
    // 27 tokens, and the prompts: how many rows of them a pass has depends on the time that it takes, 8 at least.
    expect(on.passes.length).toBeLessThan(sum / 2.5);
    expectReleased(on);
  });

  it('a request that arrives later joins the passes of those that run', async () => {
    const on = await openGenerations();
    const first = on.ask(promptOf(0), greedy(40));
    for (let i = 0; i < 10; i++) await first.next();
    const second = idsOf(on.ask(promptOf(1), greedy(10)));
    await Promise.all([first.result(), second]);
    expect(on.passes.length).toBeLessThan(45);
    expect(Math.max(...on.passes.slice(15))).toBeGreaterThan(1);
  });

  it('a request waits while something else holds room, such as a conversation that is saved', async () => {
    const on = await openGenerations({ pages: 4, maxSequences: 1 });
    await on.ask(words.slice(0, 60), greedy(1)).result();
    const ids = on.engine.tokenizer.encode(words.slice(0, 60));
    const held = await on.engine.exclusive(async pause => on.cache.open(pause, ids));
    expect(held.leafBytes).toBeGreaterThan(0);
    const asked = on.ask(words.slice(200, 262), greedy(3)).result();
    await on.standstill();
    expect(on.scheduler.stats.running).toBe(1);
    held.dispose();
    expect((await asked).finish).toBe('length');
    expectReleased(on);
  });

  it('a long prompt does not stop others from getting tokens', async () => {
    const on = await openGenerations({ prefillChunk: 16 });
    const events: string[] = [];
    let isRead = false;
    // On a slow machine the prompt takes many passes: the chats must not end before it.
    const chat = async (name: string) => {
      for await (const _ of on.ask(promptOf(name.charCodeAt(0) % 8), greedy(800))) {
        events.push(name);
        if (isRead) break;
      }
    };
    const chats = ['a', 'b'].map(chat);
    while (events.length < 6) await new Promise(resolve => setTimeout(resolve, 1));
    await on.ask(words.repeat(2).slice(0, 400), { ...greedy(2), onPrefill: () => events.push('chunk') }).result();
    isRead = true;
    const during = events.slice(events.indexOf('chunk'), events.lastIndexOf('chunk'));
    const count = (name: string) => during.filter(event => event === name).length;
    expect(count('chunk')).toBeGreaterThan(20);
    for (const name of ['a', 'b']) expect(count(name)).toBeGreaterThanOrEqual(count('chunk') - 2);
    await Promise.all(chats);
    expectReleased(on);
  });

  it('prefillShare is the part of the time that prompts get beside answers', async () => {
    const mixedPasses = async (prefillShare: number) => {
      // A token takes 41 ms, and each row of a prompt adds 1 ms.
      const on = await openGenerations({ prefillChunk: 64, prefillShare, msPerPass: 40, msPerRow: 1 });
      const chat = on.ask(promptOf(0), greedy(200));
      for (let i = 0; i < 10; i++) await chat.next();
      await on.ask(words.repeat(2).slice(0, 400), greedy(1)).result();
      await chat.return();
      return on.passes.slice(1).filter(rows => rows > 1);
    };
    const [few, more] = [await mixedPasses(0.2), await mixedPasses(0.5)];
    expect(Math.max(...few)).toBeLessThanOrEqual(1 + 41 / 4);
    expect(Math.max(...more)).toBeGreaterThan(30);
    expect(more.length).toBeLessThan(0.7 * few.length);
  });

  it('many that wait for the same document look at it once, not in every pass', async () => {
    const on = await openGenerations({ prefillChunk: 16 });
    const { known, fits } = on.cache;
    let reads = 0;
    let looks = 0;
    const counting = (tokens: readonly number[]) => {
      looks++;
      return new Proxy(tokens, {
        get(target, name) {
          reads++;
          return Reflect.get(target, name);
        },
      });
    };
    on.cache.known = (tokens, ...rest) => known(counting(tokens), ...rest);
    on.cache.fits = (tokens, ...rest) => fits(counting(tokens), ...rest);
    const document = words.repeat(2).slice(0, 560);
    const ask = (i: number) => on.ask(`${document}${i}`, greedy(2)).result();
    const results = await Promise.all(Array.from({ length: 40 }, (_, i) => ask(i)));
    expect(Math.min(...results.slice(1).map(({ usage }) => usage.reusedTokens))).toBeGreaterThan(500);
    expect(looks).toBeGreaterThan(1000);
    // A few pages of 16 tokens. The whole document would be 560.
    expect(reads / looks).toBeLessThan(64);
  });

  it('identical prompts that arrive together are computed once', async () => {
    const on = await openGenerations();
    const prompt = words.slice(0, 150);
    const results = await Promise.all(Array.from({ length: 5 }, () => on.ask(prompt, greedy(6)).result()));
    expect(results.map(({ usage }) => usage.reusedTokens)).toEqual([0, 149, 149, 149, 149]);
    expect(new Set(results.map(({ ids }) => ids.join())).size).toBe(1);
    expectReleased(on);
  });
});

describe('on a device that samples, the next pass is recorded while one runs', () => {
  const [onDevice, onHost] = [greedy(40), { ...greedy(20), logprobs: 1 }];
  /** Asks for both kinds of answers at once, and counts their passes. */
  const run = async (deviceSampled: number, hostSampled: number) => {
    const on = await openGenerations({ samples: true });
    const asked = Array.from({ length: deviceSampled + hostSampled }, (_, i) => ({
      prompt: promptOf(i),
      options: i < deviceSampled ? onDevice : onHost,
    }));
    const expected: number[][] = [];
    for (const { prompt, options } of asked) expected.push(await alone(on, prompt, options.maxTokens));
    const [passes, ahead] = [on.passes.length, on.passesAhead];
    const found = await Promise.all(asked.map(({ prompt, options }) => idsOf(on.ask(prompt, options))));
    expect(found).toEqual(expected);
    expectReleased(on);
    return { passes: on.passes.length - passes, ahead: on.passesAhead - ahead };
  };

  it('without the rows that the host samples: the others do not wait for them', async () => {
    // 40 tokens, and the prompts; the host's row takes part in every second pass.
    const { passes, ahead } = await run(4, 1);
    expect(passes).toBeLessThan(75);
    expect(ahead).toBeGreaterThan(35);
  });

  it('unless the host samples all rows', async () => {
    const { passes, ahead } = await run(0, 3);
    expect(passes).toBeLessThan(40);
    expect(ahead).toBe(0);
  });
});

describe('with a recent window', () => {
  it.each([false, true])(
    'requests share nothing, also if they arrive together (the device samples: %s)',
    async samples => {
      const on = await openGenerations({ kv: 'tq4+recent20', samples, prefillChunk: 16 });
      const prompt = words.slice(0, 90);
      const found = await Promise.all([0, 1].map(() => on.ask(prompt, greedy(20)).result()));
      found.push(await on.ask(prompt, greedy(20)).result());
      expect(found.map(({ usage }) => usage.reusedTokens)).toEqual([0, 0, 0]);
      expect(new Set(found.map(({ ids }) => ids.join())).size).toBe(1);
      expect(on.cache.stats.used).toBe(0);
    },
  );

  it.each([false, true])('a conversation continues its own sequence (the device samples: %s)', async samples => {
    const on = await openGenerations({ kv: 'tq4+recent20', samples });
    await using conversation = on.conversation();
    const prompt = words.slice(0, 70);
    const first = await conversation.generate(prompt, greedy(20)).result();
    const tokens = [...on.engine.tokenizer.encode(prompt), ...first.ids, 1, 2];
    const second = await conversation.generate(tokens, greedy(20)).result();
    expect(second.usage.reusedTokens).toBe(tokens.length - 3);
    await using cold = on.conversation();
    expect((await cold.generate(tokens, greedy(20)).result()).ids).toEqual(second.ids);
  });
});

describe('cancellation frees everything', () => {
  it('of a waiting request', async () => {
    const on = await openGenerations({ maxSequences: 1 });
    const running = on.ask(promptOf(0), greedy(20));
    await running.next();
    const stop = new AbortController();
    const waiting = on.ask(promptOf(1), { ...greedy(20), signal: stop.signal }).result();
    while (on.scheduler.stats.waiting === 0) await new Promise(resolve => setTimeout(resolve, 1));
    stop.abort();
    expect(await waiting).toMatchObject({ finish: 'cancelled', ids: [], usage: { prefilledTokens: 0 } });
    expect((await running.result()).finish).toBe('length');
    expectReleased(on);
  });

  it('of a prompt', async () => {
    const on = await openGenerations({ prefillChunk: 8 });
    const stop = new AbortController();
    const options = { ...greedy(20), signal: stop.signal, onPrefill: () => stop.abort() };
    const { finish, usage } = await on.ask(words, options).result();
    expect([finish, usage.prefilledTokens]).toEqual(['cancelled', 8]);
    expectReleased(on);
  });

  it.each([false, true])('of an answer (the device samples: %s)', async samples => {
    const on = await openGenerations({ samples });
    const stream = on.ask(promptOf(0), greedy(200));
    for (let i = 0; i < 9; i++) await stream.next();
    await stream.return();
    expect((await stream.result()).ids).toEqual((await alone(on, promptOf(0), 9)).slice(0, 9));
    expectReleased(on);
  });

  it.each([false, true])('of a request whose reader has stopped (the device samples: %s)', async samples => {
    const on = await openGenerations({ samples });
    const stream = on.ask(promptOf(0), greedy(500));
    await stream.next();
    await on.standstill();
    await stream.return();
    // The result has what was read.
    expect(await stream.result()).toMatchObject({ finish: 'cancelled', usage: { completionTokens: 1 } });
    expectReleased(on);
  });
});

describe.each([false, true])('a reader that stops reading (the device samples: %s)', samples => {
  it('stops its request only, and gets the same tokens when it goes on', async () => {
    const on = await openGenerations({ samples });
    // More tokens than may wait for a reader.
    const expected = await alone(on, promptOf(0), 90);
    const slow = on.ask(promptOf(0), greedy(90));
    await slow.next();
    expect(await idsOf(on.ask(promptOf(1), greedy(50)))).toEqual(await alone(on, promptOf(1), 50));
    await on.standstill();
    const passes = on.passes.length;
    await new Promise(resolve => setTimeout(resolve, 20));
    expect(on.passes.length).toBe(passes);
    expect(await idsOf(slow)).toEqual(expected);
    expectReleased(on);
  });

  it.each([
    ['sequences', { maxSequences: 2 }],
    ['pages', { maxSequences: 3, pages: 10 }],
  ])('gives way to others if there are no %s left', async (_, limits) => {
    const on = await openGenerations({ ...limits, samples });
    const expected: number[][] = [];
    for (const i of [0, 1, 2]) expected.push(await alone(on, promptOf(i), 90));
    const slow = [0, 1].map(i => on.ask(promptOf(i), greedy(90)));
    for (const stream of slow) await stream.next();
    await on.standstill();
    expect(await idsOf(on.ask(promptOf(2), greedy(90)))).toEqual(expected[2]);
    expect(on.scheduler.stats.preemptions).toBeGreaterThan(0);
    expect(await Promise.all(slow.map(idsOf))).toEqual(expected.slice(0, 2));
    expectReleased(on);
  });

  it('a cache that is too small for all gives everybody the same tokens as alone', async () => {
    const on = await openGenerations({ samples, pages: 12 });
    const lengths = Array.from({ length: 6 }, (_, i) => 60 + i);
    const expected: number[][] = [];
    for (const [i, length] of lengths.entries()) expected.push(await alone(on, promptOf(i), length));
    const { preemptions } = on.scheduler.stats;
    const found = await Promise.all(lengths.map((length, i) => idsOf(on.ask(promptOf(i), greedy(length)))));
    expect(found).toEqual(expected);
    expect(on.scheduler.stats.preemptions).toBeGreaterThan(preemptions);
    expectReleased(on);
  });
});

it('a request that was preempted comes back when it fits, and not before', async () => {
  const on = await openGenerations({ kv: 'f16', maxSequences: 3, pages: 20 });
  const prompts = [0, 1, 2].map(i => promptOf(i) + words.slice(0, 150));
  await Promise.all(prompts.map(prompt => idsOf(on.ask(prompt, greedy(120)))));
  const { preemptions } = on.scheduler.stats;
  expect(preemptions).toBeGreaterThan(0);
  // Each opening asks for the 12 to 20 pages of its prompt.
  expect(on.cache.stats.pageQueries).toBeLessThanOrEqual(20 * (3 + preemptions));
  expectReleased(on);
});

it.each([7, 8, 9])(
  'prompts that take turns in a cache of %i pages: the older one goes on when the younger one made room',
  async pages => {
    // Passes with rows of one prompt only, as on a slow machine.
    const on = await openGenerations({ prefillChunk: 8, maxSequences: 2, pages });
    const prompts = [0, 1].map(i => promptOf(i) + words.slice(0, 70));
    const expected = [await alone(on, prompts[0], 2), await alone(on, prompts[1], 2)];
    expect(await Promise.all(prompts.map(prompt => idsOf(on.ask(prompt, greedy(2)))))).toEqual(expected);
    expect(on.scheduler.stats.preemptions).toBeGreaterThan(0);
    expectReleased(on);
  },
);

it('tenants take turns: one with fifty waiting requests does not delay another', async () => {
  const on = await openGenerations({ maxSequences: 2 });
  const order: string[] = [];
  const ask = async (tenant: string, i: number) => {
    await on.ask(`${i} ${promptOf(i % 8)}`, { ...greedy(3), tenant }).result();
    order.push(tenant);
  };
  const many = Array.from({ length: 50 }, (_, i) => ask('many', i));
  await new Promise(resolve => setTimeout(resolve, 5));
  const before = order.length;
  await Promise.all([...many, ask('one', 0)]);
  // Those that were running, and the one that was admitted with it.
  expect(order.indexOf('one') - before).toBeLessThanOrEqual(4);
});

it('a request that is too large for the cache is told what to do; others are not affected', async () => {
  const on = await openGenerations({ maxSequences: 2, pages: 6 });
  const other = idsOf(on.ask(promptOf(0), greedy(20)));
  const failed = on.ask(words, greedy(20)).result();
  await expect(failed).rejects.toThrow(CapacityError);
  await expect(failed).rejects.toThrow(/Shorten the prompt, raise kvMemory, or use a codec with fewer bits/);
  expect(await other).toEqual(await alone(on, promptOf(0), 20));
  // An answer that would outgrow it ends.
  expect((await on.ask(promptOf(1), greedy(2000)).result()).finish).toBe('length');
  expectReleased(on);
});

describe('a failure', () => {
  it.each([false, true])(
    'of a pass rejects the requests in it, and no others (the device samples: %s)',
    async samples => {
      const on = await openGenerations({ maxSequences: 2, samples });
      const expected = await alone(on, promptOf(2), 20);
      const streams = [0, 1].map(i => on.ask(promptOf(i), greedy(30)));
      for (const stream of streams) for (let i = 0; i < 5; i++) await stream.next();
      const waiting = idsOf(on.ask(promptOf(2), greedy(20)));
      on.failNext(new Error('the device hiccuped'));
      for (const stream of streams) await expect(stream.result()).rejects.toThrow('the device hiccuped');
      expect(await waiting).toEqual(expected);
      expect(await idsOf(on.ask(promptOf(2), greedy(20)))).toEqual(expected);
      expectReleased(on);
    },
  );

  it('to free what a failed pass leaves: its reader gets the error of the pass, and others go on', async () => {
    const on = await openGenerations({ maxSequences: 1 });
    const expected = await alone(on, promptOf(2), 20);
    const { device } = on.engine;
    const { free } = device;
    device.free = () => {
      device.free = free;
      throw new Error('it cannot be freed');
    };
    on.failNext(new Error('the device hiccuped'));
    const failing = on.ask(promptOf(0), greedy(30)).result();
    const waiting = idsOf(on.ask(promptOf(2), greedy(20)));
    await expect(failing).rejects.toThrow('the device hiccuped');
    expect(await waiting).toEqual(expected);
  });

  it("of a caller's callback rejects that request only", async () => {
    const on = await openGenerations();
    const onPrefill = () => {
      throw new Error('a bug of the caller');
    };
    const [failed, fine] = [on.ask(promptOf(0), { ...greedy(9), onPrefill }), on.ask(promptOf(1), greedy(9))];
    const settled = await Promise.allSettled([failed.result(), fine.result()]);
    expect(settled.map(({ status }) => status)).toEqual(['rejected', 'fulfilled']);
    expectReleased(on);
  });
});

it('on a device with less memory than the cache may use, requests give way to each other', async () => {
  const on = await openGenerations({ maxSequences: 8, capacity: () => 2 ** 30 });
  const { device } = on.engine;
  const { createBlock, free } = device;
  let [bytes, most, limit] = [0, 0, Number.POSITIVE_INFINITY];
  device.createBlock = (size, ...parts) => {
    if (bytes + size > limit) throw new CapacityError('The device is full.');
    bytes += size;
    most = Math.max(most, bytes);
    return createBlock.call(device, size, ...parts);
  };
  device.free = handle => {
    if ('bytes' in handle) bytes -= handle.bytes;
    free.call(device, handle);
  };
  const askAll = (tenant: string) =>
    Promise.all([0, 1, 2, 3, 4, 5].map(i => idsOf(on.ask(promptOf(i), { ...greedy(120), tenant }))));
  const expected = await askAll('first');
  limit = most / 2;
  expect(await askAll('second')).toEqual(expected);
  // What the device refused is the capacity from then on.
  expect(on.cache.stats.capacity).toBeLessThanOrEqual(limit);
  expectReleased(on);
});

it('a device that is lost ends all requests of a pass with its error, and nothing else', async () => {
  const on = await openGenerations();
  // Log probabilities are read by the host, a row at a time. What nobody awaits would end the process.
  const asked = [0, 1, 2].map(i => on.ask(promptOf(i), { ...greedy(30), logprobs: 0 }));
  for (const stream of asked) for (let i = 0; i < 3; i++) await stream.next();
  on.engine.device.readRows = async () => {
    throw new DeviceError('The device was lost.');
  };
  for (const { result } of asked) await expect(result()).rejects.toThrow(DeviceError);
  await new Promise(resolve => setTimeout(resolve, 10));
});

it('disposing the model ends everything that runs, waits, saves or restores', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'kvasir-scheduler-'));
  const path = join(folder, 'saved.kvsession');
  for (const ticks of [0, 1, 2, 5, 20]) {
    const model = await load('wasm', { maxSequences: 2 });
    const conversations = Array.from({ length: 5 }, () => model.conversation());
    await conversations[0].send('hello', greedy(20)).result();
    await conversations[0].save(path);
    const work: Promise<unknown>[] = conversations
      .slice(1)
      .map((one, i) => one.send(promptOf(i), greedy(300)).result());
    work.push(conversations[0].save(`${path}.again`), model.restore(path), model.complete(words, greedy(5)));
    const settled = Promise.allSettled(work);
    for (let i = 0; i < ticks; i++) await new Promise(resolve => setImmediate(resolve));
    await model.dispose();
    for (const outcome of await settled) {
      if (outcome.status === 'rejected') expect(outcome.reason).toBeInstanceOf(InputError);
      else if (outcome.value && 'finish' in (outcome.value as object))
        expect((outcome.value as Result).finish).toBe('cancelled');
    }
    expect(model.memory().total).toBe(0);
  }
  await rm(folder, { recursive: true });
});
