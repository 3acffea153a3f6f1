/** A model as a service: in this process, and through the message protocol. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type AnswerDelta, loadModel, type Model, type Token } from '../src/index.ts';
import { decodeError, encodeError } from '../src/util/error-message.ts';
import * as errors from '../src/util/errors.ts';
import { connectService, type RemoteService } from '../src/worker/connect.ts';
import { createService } from '../src/worker/create-service.ts';
import { hostService } from '../src/worker/host.ts';
import { messagePort } from '../src/worker/port.ts';
import type { Port } from '../src/worker/protocol.ts';
import type { ModelService } from '../src/worker/service.ts';
import { writeGguf } from './support/gguf-writer.ts';
import { ALL_CASES } from './support/matrix.ts';
import { tinyModel } from './support/tiny-model.ts';

const bytes = writeGguf(tinyModel({ context: 512, layers: 1 }));
const loadOptions = { device: 'wasm', threads: 1, pageTokens: 16, maxSequences: 4 } as const;
const load = () => loadModel(bytes, loadOptions);
const directory = mkdtempSync(join(tmpdir(), 'kvasir-worker-'));
afterAll(() => rmSync(directory, { recursive: true }));

const messages = [{ role: 'user', content: 'Who was Kvasir?' }];

describe('createService', () => {
  let model: Model;
  let service: ModelService;
  beforeAll(async () => {
    model = await load();
    service = createService(model);
  });
  afterAll(() => service.close());

  it('describes the model', () => {
    expect(service.info).toMatchObject({
      modelName: 'tiny llama',
      architecture: 'llama',
      kv: 'tq4',
      context: 512,
      trainedContext: 512,
      vocab: 257,
      maxSequences: 4,
      device: { name: 'wasm' },
    });
    const { kvMemory, tokensThatFit, sequencesAtFullContext } = service.info;
    expect(kvMemory).toBe(model.stats().capacity);
    expect(tokensThatFit).toBeGreaterThanOrEqual(512 * sequencesAtFullContext);
    expect(sequencesAtFullContext).toBeGreaterThanOrEqual(4);
  });

  it('a slot keeps its cache, is saved, restored and erased, and belongs to its tenant', async () => {
    const ask = (slot: number, tenant?: string) =>
      service.answer(messages, { slot, tenant, maxTokens: 40, ignoreEos: true, temperature: 0 }).result();
    const first = await ask(3);
    expect((await ask(3)).usage.reusedTokens).toBe(first.usage.promptTokens - 1);
    const [state] = await service.slots();
    expect(state).toMatchObject({ slot: 3, busy: false });
    expect(await service.slots('other')).toEqual([]);

    const path = join(directory, 'slot.kvsession');
    expect(await service.saveSlot(3, path)).toEqual(state);
    await service.eraseSlot(3);
    expect(await service.slots()).toEqual([]);
    expect(await service.restoreSlot(5, path)).toEqual({ ...state, slot: 5 });
    expect((await ask(5)).text).toBe(first.text);
    await service.eraseSlot(5);
  });

  it('a slot gives one answer at a time', async () => {
    const stream = service.generate('Kvasir', { slot: 0, maxTokens: 20, ignoreEos: true });
    await stream.next();
    expect((await service.slots())[0]).toMatchObject({ slot: 0, busy: true });
    expect(() => service.generate('Odin', { slot: 0 })).toThrow('Slot 0 is busy. Wait until its request has ended');
    await expect(service.eraseSlot(0)).rejects.toThrow('Slot 0 is busy');
    await stream.return();
    await service.eraseSlot(0);
    expect(() => service.generate('Odin', { slot: -1 })).toThrow(
      'A slot must be an integer from 0 to 1023; got the number -1.',
    );
  });
});

/** Two ends of a channel. `sent` counts the messages of the second. */
function createPorts() {
  const { port1, port2 } = new MessageChannel();
  const counted = { sent: 0 };
  const host = messagePort(port2 as never);
  return {
    user: messagePort(port1 as never),
    host: {
      ...host,
      post(message: unknown) {
        counted.sent++;
        host.post(message);
      },
    } satisfies Port,
    counted,
  };
}

async function readAll<T>(stream: AsyncIterable<T>): Promise<T[]> {
  const values: T[] = [];
  for await (const value of stream) values.push(value);
  return values;
}

/** Stays behind, so that the stream does not end. */
async function readSlowly(stream: AsyncIterable<unknown>): Promise<void> {
  for await (const _ of stream) await turn(20);
}

const turn = (ms = 0) => new Promise(resolve => setTimeout(resolve, ms));

/** Waits until something holds. */
async function until(holds: () => boolean | Promise<boolean>): Promise<void> {
  while (!(await holds())) await turn(5);
}

describe('the message protocol', () => {
  let model: Model;
  let service: RemoteService;
  let counted: { sent: number };
  const progress: unknown[] = [];
  beforeAll(async () => {
    const { user, host, counted: count } = createPorts();
    counted = count;
    hostService(host, async (source, { onProgress, signal }) => {
      expect(source).toEqual({ context: 512 });
      model = await loadModel(bytes, { ...loadOptions, onProgress, signal });
      return createService(model);
    });
    service = await connectService(user, { source: { context: 512 }, onProgress: step => progress.push(step) });
  });
  afterAll(() => service.close());

  const options = { maxTokens: 24, ignoreEos: true, temperature: 0.8, seed: 7, logprobs: 2 };
  const withoutTimes = (result: object) => ({ ...result, timings: undefined });

  it('loading reports its progress, and the service describes its model', () => {
    expect(progress.at(-1)).toMatchObject({ phase: 'load' });
    expect(service.info).toEqual(createService(model).info);
  });

  it('gives the deltas and results of the model itself', async () => {
    for (const [theirs, ours] of [
      [model.answer(messages, options), service.answer(messages, options)],
      [model.generate('Kvasir', options), service.generate('Kvasir', options)],
    ] as const) {
      const expected = await readAll<AnswerDelta | Token>(theirs);
      expect(await readAll<AnswerDelta | Token>(ours)).toEqual(expected);
      const { usage, ...result } = await theirs.result();
      // The first one leaves its pages to the second.
      const { reusedTokens: _, prefilledTokens: __, ...counts } = usage;
      expect(ours.partial).toMatchObject({ ...withoutTimes(result), usage: counts, timings: expect.any(Object) });
      expect(ours.partial.timings.decodeRate).toBeGreaterThan(0);
    }
  });

  it('the result grows with every value that is read', async () => {
    const theirs = model.generate('Odin', options);
    const ours = service.generate('Odin', options);
    for (let i = 0; i < 5; i++) {
      await theirs.next();
      await ours.next();
      const { text, ids, logprobs, finish, seed, usage } = theirs.partial;
      expect(ours.partial).toMatchObject({ text, ids, logprobs, finish, seed });
      expect(ours.partial.usage.completionTokens).toBe(usage.completionTokens);
    }
    await Promise.all([theirs.return(), ours.return()]);
    expect(ours.partial).toMatchObject({ text: theirs.partial.text, ids: theirs.partial.ids, finish: 'cancelled' });
  });

  it('calls', async () => {
    const ids = await service.tokenize('Kvasir<|end|>', { parseSpecialTokens: true });
    expect(ids).toEqual(model.tokenizer.encode('Kvasir<|end|>', { parseSpecialTokens: true }));
    expect(await service.detokenize(ids)).toBe('Kvasir<|end|>');
    expect(await service.tokenizeChat(messages)).toEqual(model.encodeChat(messages));
    expect(await service.stats()).toMatchObject({ ...model.stats(), memory: model.memory() });
    const path = join(directory, 'remote.kvsession');
    await service.generate('Kvasir', { ...options, slot: 1, tenant: 'a' }).result();
    const saved = await service.saveSlot(1, path, 'a');
    expect(await service.slots('a')).toEqual([saved]);
    expect(await service.restoreSlot(2, path, 'a')).toEqual({ ...saved, slot: 2 });
    await service.eraseSlot(1, 'a');
    await service.eraseSlot(2, 'a');
    expect(await service.slots('a')).toEqual([]);
  });

  it('reports prefill, and an error of the listener fails its stream', async () => {
    const steps: unknown[] = [];
    await service.generate('abc', { ...options, onPrefill: step => steps.push(step) }).result();
    expect(steps.at(-1)).toEqual({ done: 3, total: 3 });
    const onPrefill = () => {
      throw new Error('not today');
    };
    await expect(service.generate('abd', { ...options, onPrefill }).result()).rejects.toThrow('not today');
    expect(model.stats()).toMatchObject({ running: 0, waiting: 0 });
  });

  it('errors keep their class', async () => {
    await expect(service.answer([{ role: 'user' } as never]).result()).rejects.toThrow(errors.InputError);
    await expect(service.answer([{ role: 'user' } as never]).result()).rejects.toThrow('messages[0].content must be');
    await expect(service.generate('a'.repeat(600)).result()).rejects.toThrow(errors.CapacityError);
    await expect(service.detokenize([-1])).rejects.toThrow(errors.InputError);
    await expect(service.generate('a', { slot: -1 }).result()).rejects.toThrow('A slot must be an integer');
    await expect(service.generate('a', { stop: (() => {}) as never }).result()).rejects.toThrow(
      'A request must be plain data',
    );
    await expect(service.tokenize('a', { bos: (() => {}) as never })).rejects.toThrow(errors.InputError);
    const { assert: _, optionError, ...classes } = errors;
    for (const one of Object.values(classes)) {
      const copy = decodeError(structuredClone(encodeError(Object.assign(new one('why'), { code: 'x' }))));
      expect(copy).toBeInstanceOf(one);
      expect(copy).toMatchObject({ name: one.name, message: 'why', code: 'x' });
    }
    const bug = new TypeError('x is not a function');
    const copyOf = (error: Error) => decodeError(structuredClone(encodeError(error))) as errors.KvasirError;
    const named = copyOf(optionError('tools[0]', 'is wrong.'));
    expect(named).toMatchObject({ name: 'InputError', option: 'tools[0]', message: 'tools[0] is wrong.' });
    expect(named.describe(option => `--${option}`)).toBe('--tools[0] is wrong.');
    const advice = copyOf(
      new errors.ContextError(option => `Use ${option('kv', 'tq4')}, or raise ${option('context')}.`),
    );
    expect(advice.message).toBe("Use kv: 'tq4', or raise context.");
    expect(advice.describe((option, value) => `--${option}=${value}`)).toBe(
      'Use --kv=tq4, or raise --context=undefined.',
    );
    expect(decodeError(encodeError(bug))).toMatchObject({ name: 'Error', message: bug.message, stack: bug.stack });
  });

  it.each([
    ['the signal', (abort: AbortController) => abort.abort()],
    ['leaving', (_: AbortController, stream: { return(): unknown }) => stream.return()],
  ])('%s cancels at once, also while a read waits', async (_, cancel) => {
    const abort = new AbortController();
    const stream = service.generate('Kvasir', { ...options, maxTokens: 400, signal: abort.signal });
    await stream.next();
    const waiting = readAll(stream);
    cancel(abort, stream);
    await waiting;
    expect(stream.partial.finish).toBe('cancelled');
    expect(stream.partial.ids.length).toBeLessThan(100);
    expect(model.stats()).toMatchObject({ running: 0, waiting: 0 });
  });

  it('a reader that stops reading parks its request, and others go on', async () => {
    const slow = service.generate('slow', { ...options, maxTokens: 400 });
    await slow.next();
    const before = (await service.generate('quick', options).result()).text;
    // Its deltas fill both queues: 64 on the way, 64 in the engine.
    let used = 0;
    await until(async () => {
      await turn(50);
      const last = used;
      used = model.stats().used;
      return last === used;
    });
    expect(model.stats()).toMatchObject({ running: 1, waiting: 0 });
    expect((await service.generate('quick', options).result()).text).toBe(before);
    const { ids } = await slow.result();
    expect(ids).toEqual((await model.generate('slow', { ...options, maxTokens: 400 }).result()).ids);
  });

  const STREAMS = ALL_CASES ? 200 : 60;
  it(`${STREAMS} streams at the same time, with few messages`, async () => {
    const few = { ...options, maxTokens: 12, logprobs: undefined };
    const expected = new Map<number, number[]>();
    for (const seed of [0, 1, 2, 3]) expected.set(seed, (await model.generate('many', { ...few, seed }).result()).ids);
    const { sent } = counted;
    const results = await Promise.all(
      Array.from({ length: STREAMS }, (_, i) => service.generate('many', { ...few, seed: i % 4 }).result()),
    );
    for (const [i, { ids }] of results.entries()) expect(ids).toEqual(expected.get(i % 4));
    // Four sequences per pass; with a message per delta it would be 12 for each stream and more.
    expect(counted.sent - sent).toBeLessThan(6 * STREAMS);
  });

  it('drains, and closes', async () => {
    const { user, host } = createPorts();
    hostService(host, async () => createService(await load()));
    const other = await connectService(user);
    const running = other.generate('Kvasir', options);
    await running.next();
    const drained = other.drain();
    await expect(other.generate('Odin', options).result()).rejects.toThrow('takes no new requests');
    expect((await running.result()).ids).toHaveLength(24);
    await drained;
    await other.close();
    expect(await other.ended).toMatchObject({ name: 'InputError', message: 'The service was closed.' });
    await expect(other.stats()).rejects.toThrow('The service was closed.');
  });

  it('everything that waits fails when the other end is gone, and the host then closes its service', async () => {
    const { user, host } = createPorts();
    let local: ModelService | undefined;
    hostService(host, async () => {
      local = createService(await load());
      return local;
    });
    const other = await connectService(user);
    const stream = other.generate('Kvasir', { ...options, maxTokens: 400 });
    await stream.next();
    const reading = stream.result();
    const call = other.stats();
    user.close();
    await expect(reading).rejects.toThrow('The engine process ended. Send the request again');
    await expect(call).rejects.toThrow(errors.DeviceError);
    expect(await other.ended).toBeInstanceOf(errors.DeviceError);
    expect(await local!.ended).toMatchObject({ message: 'The service was closed.' });
  });

  it('the loss of the device fails what waits, with its error', async () => {
    const { user, host } = createPorts();
    let lose: (error: errors.DeviceError) => void = () => {};
    const lost = new Promise<errors.DeviceError>(resolve => {
      lose = resolve;
    });
    hostService(host, async () => createService({ ...(await load()), lost }));
    const other = await connectService(user);
    const stream = other.generate('Kvasir', { ...options, maxTokens: 400 });
    await stream.next();
    const reading = stream.result();
    lose(new errors.DeviceError('The GPU was lost.'));
    await expect(reading).rejects.toThrow('The GPU was lost.');
    expect(await other.ended).toBeInstanceOf(errors.DeviceError);
    await expect(other.stats()).rejects.toThrow('The GPU was lost.');
    user.close();
  });

  it('a device that hangs fails what waits, although other calls are answered', async () => {
    const { user, host } = createPorts();
    hostService(host, async () => createService({ ...(await load()), ping: () => new Promise(() => {}) }));
    const other = await connectService(user, { maxPassMs: 80 });
    // Nothing waits, so nobody asks.
    await turn(200);
    expect((await other.stats()).running).toBe(0);
    const failed = expect(readSlowly(other.generate('Kvasir', { ...options, maxTokens: 400 }))).rejects.toThrow(
      'The engine has not answered for 0.08 s: the device hangs.',
    );
    await turn(40);
    await other.stats();
    await failed;
    expect(await other.ended).toBeInstanceOf(errors.DeviceError);
    user.close();
  });

  it('a load that fails, and another version of the protocol, are typed errors', async () => {
    const { user, host } = createPorts();
    hostService(host, async () => {
      throw new errors.FormatError('not a model');
    });
    await expect(connectService(user)).rejects.toThrow(errors.FormatError);
    user.close();
    const second = createPorts();
    hostService(second.host, async () => createService(await load()));
    const post = second.user.post;
    const user2 = { ...second.user, post: (message: object) => post({ ...message, version: 2 }) } as Port;
    await expect(connectService(user2)).rejects.toThrow('speaks version 2 of the message protocol');
    user2.close();
  });
});

describe('a host', () => {
  it('refuses malformed messages, and goes on', async () => {
    const { user, host } = createPorts();
    hostService(host, async () => createService(await load()));
    const replies: { type: string; id?: number; error?: { name: string } }[] = [];
    user.onMessage(events => replies.push(...(events as typeof replies)));
    user.post({ type: 'load', version: 1 });
    await until(() => replies.some(({ type }) => type === 'ready'));
    const field = fc.oneof(fc.anything({ maxDepth: 1 }), fc.integer({ min: -1, max: 3 }));
    const message = fc.oneof(
      fc.anything(),
      fc.record(
        {
          type: fc.constantFrom('load', 'call', 'open', 'credits', 'cancel', 'end', '__proto__', 1),
          id: field,
          method: fc.oneof(fc.constantFrom('answer', 'generate', 'tokenize', 'slots', 'close', 'constructor'), field),
          input: field,
          args: fc.oneof(fc.array(field), field),
          options: fc.oneof(fc.record({ maxTokens: field, slot: field, signal: field }), field),
          credits: field,
          count: field,
          version: field,
        },
        { requiredKeys: ['type'] },
      ),
    );
    for (const sample of fc.sample(message, { numRuns: 2000, seed: 5 })) {
      try {
        user.post(sample);
      } catch {
        // It cannot be cloned.
      }
    }
    user.post({ type: 'call', id: 123456, method: 'tokenize', args: ['Hi'] });
    await until(() => replies.some(({ type, id }) => type === 'value' && id === 123456));
    const refused = replies.filter(({ type }) => type === 'error');
    expect(refused.length).toBeGreaterThan(1000);
    expect([...new Set(refused.map(({ error }) => error?.name))].sort()).toEqual(['FormatError', 'InputError']);
    user.close();
  });
});
