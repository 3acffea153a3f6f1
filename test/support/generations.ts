/** A model and its scheduler, with a device that counts passes, can fail, and can sample as a GPU does. */

import { expect } from 'vitest';
import type { KvCache } from '../../src/cache/kv-cache.ts';
import { type Conversation, createConversation } from '../../src/chat/conversation.ts';
import { parseSpec } from '../../src/codec/spec.ts';
import { type Engine, loadEngine, openModelFile, planShape } from '../../src/engine/engine.ts';
import { type GenerateOptions, generate } from '../../src/engine/generate.ts';
import { createConstraints } from '../../src/engine/grammar/constraint.ts';
import type { Cancellation } from '../../src/engine/request.ts';
import { createScheduler, type Scheduler } from '../../src/engine/scheduler.ts';
import { createStream, type Result, type Stream, type Token } from '../../src/engine/stream.ts';
import type { Tensor } from '../../src/kernel/device.ts';
import { createPlan, fixedBytes, type KvMode, type Plan, withMode } from '../../src/plan/plan.ts';
import { writeGguf } from './gguf-writer.ts';
import { SMALLEST, type TinyOptions, tinyModel } from './tiny-model.ts';

export interface GenerationsOptions {
  model?: TinyOptions;
  device?: 'js' | 'wasm';
  kvMode?: KvMode;
  kv?: string;
  maxSequences?: number;
  /** Pages that fit beside `maxSequences` tails. Default: no limit. */
  pages?: number;
  /** Max bytes of the cache, instead of `pages`. */
  capacity?: (plan: Plan) => number;
  /** A clock of its own, by which a pass takes this long, and nothing else takes any time. Default: the real one. */
  msPerRow?: number;
  msPerPass?: number;
  /** Default: 1024. */
  context?: number;
  /** Default: error. */
  overflow?: 'error' | 'slide';
  prefillChunk?: number;
  /** Samples on the device, so that the scheduler runs one pass ahead. Needs `device: 'js'`. */
  samples?: boolean;
  prefillShare?: number;
  /** Default: false. */
  speculate?: boolean;
}

export interface Generations {
  engine: Engine;
  plan: Plan;
  cache: KvCache;
  scheduler: Scheduler;
  /** Rows of each pass so far. */
  passes: number[];
  /** If the device samples: passes with a token that the host did not know when they were recorded. */
  readonly passesAhead: number;
  /** The next pass fails with this error. */
  failNext(error: Error): void;
  /** If the device samples: the next pass fails with this error after it is recorded. */
  failNextDelivery(error: Error): void;
  conversation(): Conversation;
  ask(prompt: string, options?: GenerateOptions): Stream<Token>;
  /** Waits until no pass runs any more: all readers have fallen behind. */
  standstill(): Promise<void>;
}

export async function openGenerations(options: GenerationsOptions = {}): Promise<Generations> {
  const { device = 'js', kv = 'tq4', maxSequences = 8, pages, prefillChunk = 32, samples } = options;
  const { context = 1024, overflow = 'error', msPerRow = 0, msPerPass = 0 } = options;
  const file = await openModelFile(new Blob([writeGguf(tinyModel(options.model ?? SMALLEST))]));
  const plan = withMode(createPlan(parseSpec(kv), planShape(file, 16)), options.kvMode ?? 'packed');
  const engine = await loadEngine(file, { plan, context }, { device, prefillChunk });
  const capacity =
    pages === undefined ? options.capacity?.(plan) : maxSequences * fixedBytes(plan) + pages * plan.leaf.bytes;
  let clock = 0;
  // Then a slow machine has no smaller passes either.
  if (msPerRow + msPerPass > 0)
    Object.assign(engine, { now: () => clock, batchSize: { rows: prefillChunk, adapt() {} } });
  const cache = engine.openCache(plan, { context, overflow, capacity });
  const { prefillShare, speculate } = options;
  const scheduler = createScheduler(engine, cache, plan, { maxSequences, prefillShare, speculate });
  const passes: number[] = [];
  let failure: Error | undefined;
  const { embed, rmsNorm } = engine.device;
  const sampling = samples ? sampleOnDevice(engine) : undefined;
  const { embed: embedTokens } = engine.device;
  engine.device.embed = (table, ids, out) => {
    passes.push(ids.length);
    clock += msPerPass + ids.length * msPerRow;
    (samples ? embedTokens : embed).call(engine.device, table, ids, out);
  };
  engine.device.rmsNorm = (...args) => {
    const error = failure;
    failure = undefined;
    if (error) throw error;
    rmsNorm.apply(engine.device, args);
  };
  const generation = { engine, cache, scheduler, plan, context, overflow };
  return {
    ...{ engine, plan, cache, scheduler, passes },
    conversation() {
      const constraints = createConstraints(engine.tokenizer);
      return createConversation({ ...generation, constraints, answering: new Set() }, { messages: [] });
    },
    get passesAhead() {
      return sampling?.passesAhead ?? 0;
    },
    failNext(error) {
      failure = error;
    },
    failNextDelivery(error) {
      sampling!.failure = error;
    },
    ask(prompt, options = {}) {
      const ids = engine.tokenizer.encode(prompt);
      const body = (cancellation: Cancellation, result: Result) =>
        generate(generation, ids, options, result, cancellation);
      return createStream(body, options.signal);
    },
    async standstill() {
      for (let idle = 0, seen = -1; idle < 20; idle++) {
        if (passes.length !== seen) idle = 0;
        seen = passes.length;
        await new Promise(resolve => setTimeout(resolve, 1));
      }
    },
  };
}

/** Greedy sampling with handles that are known to the host only later, as on a GPU. */
function sampleOnDevice({ device }: Engine): { passesAhead: number; failure?: Error } {
  const slots: number[] = [];
  const state: ReturnType<typeof sampleOnDevice> = { passesAhead: 0 };
  const isHandle = (id: number) => id >= 2 ** 31;
  const { embed } = device;
  device.sampleTokens = (logits, requests) => {
    const first = slots.length;
    const { data, cols } = logits as Tensor & { data: Float32Array };
    for (const { row } of requests) {
      const values = data.subarray(row * cols, (row + 1) * cols);
      slots.push(values.indexOf(values.reduce((a, b) => Math.max(a, b))));
    }
    const ids = slots.slice(first);
    const { failure } = state;
    state.failure = undefined;
    const deliver = async () => {
      await new Promise(resolve => setTimeout(resolve, 1));
      if (failure) throw failure;
      return ids;
    };
    return { ids: deliver(), handles: ids.map((_, i) => -1 - first - i) };
  };
  device.embed = (table, ids, out) => {
    if (Array.from(ids).some(isHandle)) state.passesAhead++;
    const known = Array.from(ids, id => (isHandle(id) ? slots[2 ** 32 - 1 - id] : id));
    embed.call(device, table, known, out);
  };
  return state;
}

/** Nothing is held but pages that are kept for later prompts. */
export function expectReleased({ cache, scheduler, engine }: Generations): void {
  expect(scheduler.stats).toMatchObject({ waiting: 0, running: 0 });
  const { sharedLeaves, idleSequences, used, cachedBytes } = cache.stats;
  expect({ sharedLeaves, idleSequences, held: used - cachedBytes }).toEqual({
    sharedLeaves: 0,
    idleSequences: 0,
    held: 0,
  });
  const { weights, scratch } = engine.bytes;
  if (engine.device.name === 'js') expect(engine.device.allocatedBytes).toBe(weights + scratch + cachedBytes);
}
