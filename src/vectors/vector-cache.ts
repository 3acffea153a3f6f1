/**
 * A KV cache for one's own vectors: sequences of keys and values on any device, without a model. A vector store appends
 * vectors and queries them; a runtime that computes queries, keys and values itself gets its attention from `step`.
 *
 * Calls of one cache run one after the other, in the order in which they were made.
 */

import type { ModelDevice } from '../api/model.ts';
import { createSequence } from '../cache/create-sequence.ts';
import { decodeVectors, type Vectors } from '../cache/decode-vectors.ts';
import type { Pause } from '../cache/pause.ts';
import { createPool, type Pool } from '../cache/pool.ts';
import type { Sequence } from '../cache/sequence.ts';
import { checkShape, createCodec, type KvLearned, type KvShape } from '../codec/kv.ts';
import { formatSpec, type KvSpec, parseSpec, windowOf } from '../codec/spec.ts';
import { createQueue, type Exclusive } from '../engine/queue.ts';
import type { Device } from '../kernel/device.ts';
import { type DeviceName, openDevice } from '../kernel/open.ts';
import { codecsByLayer, createPlan, createPlanFromCodecs, type Plan, type PlanShape } from '../plan/plan.ts';
import { checkProfile } from '../plan/profile.ts';
import { openProfile, type ProfileInput } from '../plan/profile-input.ts';
import type { SessionSource, SessionTarget } from '../session/session-io.ts';
import type { AsyncDisposableLike } from '../util/disposable.ts';
import { InputError, ShapeError } from '../util/errors.ts';
import { applyRules, checkLayer, checkOptions, checkTokens } from '../util/rules.ts';
import { cacheRules, cacheShapeRules, countQueries, countStep, countTokens } from './vector-input.ts';
import { restoreVectors, saveVectors } from './vector-session.ts';
import { createStepRunner, type State } from './vector-steps.ts';

export interface CacheShape extends KvShape {
  /** Default: 1. */
  layers?: number;
  /** Query heads, a multiple of kvHeads: equal groups of them share a KV head. Default: kvHeads. */
  heads?: number;
}

/** Options of `createCache`. */
export interface CacheOptions {
  /** Default: `auto`, the fastest device that supports the shape. */
  device?: DeviceName;
  /** Threads of the wasm device. Default: one per CPU core. */
  threads?: number;
  /** Float arithmetic instead of int8: slower. Default: false. */
  precise?: boolean;
  /** Max bytes of pages, tails and sinks of all sequences. Default: no limit. */
  kvMemory?: number;
  /** Factor on every score. Default: 1 / sqrt(headDim). */
  scale?: number;
  /** For calibrated codecs: the profile of the model that the vectors come from. */
  profile?: ProfileInput;
  /** For calibrated codecs, instead of a profile: the result of `learn` (`kvasir/codec`), one per layer. */
  learned?: readonly KvLearned[];
}

/** Rows of one sequence in one layer of a step: as many queries as new keys and values. */
export interface StepRows {
  sequence: VectorSequence;
  /** [token][head][dim] */
  queries: Float32Array;
  /** [token][kv head][dim] */
  keys: Float32Array;
  values: Float32Array;
}

/** Arrays are read until the call resolves: do not change them before. */
export interface VectorCache extends AsyncDisposableLike {
  /** The codec of every layer, and code bits per value. */
  readonly plan: Plan;
  readonly device: ModelDevice;
  /** Bytes of pages, tails and sinks of all sequences; what forks share counts once. */
  readonly bytes: number;
  /** Opens an empty sequence. Dispose it, or open it with `await using`. */
  sequence(): VectorSequence;
  /** `step` of several sequences at once. Returns the outputs in the same order. */
  step(layer: number, rows: readonly StepRows[]): Promise<Float32Array[]>;
  /** Opens a sequence that was saved by a cache of the same shape and codecs, on any device. */
  restore(source: SessionSource): Promise<VectorSequence>;
  /** Waits for running calls, then frees everything. Can be called twice. */
  dispose(): Promise<void>;
}

export interface VectorSequence extends AsyncDisposableLike {
  /** Tokens in all layers. */
  readonly length: number;
  /** Bytes of its pages, tail and sinks. Forks may hold the same pages and sinks. */
  readonly bytes: number;
  /** Adds tokens to all layers: one array [token][kv head][dim] per layer, or the array itself if there is one layer. */
  append(keys: Float32Array | readonly Float32Array[], values: Float32Array | readonly Float32Array[]): Promise<void>;
  /** Attention of each query, [query][head][dim], over all tokens. */
  attend(layer: number, queries: Float32Array): Promise<Float32Array>;
  /**
   * One layer of a model's forward pass: adds a key and a value per row, and returns the attention of each row's query over
   * the tokens up to its own. Call it for every layer, in order; after the last one the sequence has grown.
   */
  step(layer: number, queries: Float32Array, keys: Float32Array, values: Float32Array): Promise<Float32Array>;
  /** Keys and values of the tokens from `from` to before `to` as attention sees them. Default: all. */
  decode(layer: number, from?: number, to?: number): Promise<Vectors>;
  /** A second sequence with the same tokens. It shares the pages, and copies the tail. */
  fork(): Promise<VectorSequence>;
  /**
   * Removes tokens until at most `length` are left, and returns the new length. Sealed pages cannot be unpacked into exact
   * vectors, so a crop into them goes back to a page boundary, or to 0 with a recent window.
   */
  crop(length: number): Promise<number>;
  /** Writes a session file, for `restore` of a cache. */
  save(target: SessionTarget): Promise<void>;
  dispose(): Promise<void>;
}

/** Creates a cache for vectors of this shape. Dispose it, or create it with `await using`. */
export async function createCache(shape: CacheShape, spec: string, options: CacheOptions = {}): Promise<VectorCache> {
  checkOptions('createCache', options, cacheRules);
  applyRules(shape, cacheShapeRules);
  const { headDim, kvHeads, pageTokens } = checkShape(shape);
  const { heads = kvHeads, layers = 1 } = shape;
  if (heads % kvHeads !== 0)
    throw new ShapeError(`heads must be a multiple of kvHeads; got ${heads} heads and ${kvHeads} KV heads.`);
  const plan = await planFor(parseSpec(spec), { ...shape, kvHeads, layers }, options);
  const { threads, precise, kvMemory: capacity, scale = 1 / Math.sqrt(headDim) } = options;
  const opened = await openDevice(
    options.device ?? 'auto',
    { headDim, heads, kvHeads, pageTokens },
    { threads, precise },
  );
  const { device, why } = opened;
  try {
    await device.loadCodecs?.(plan.leaf.layers);
    return createFromParts({ device, why, plan, heads, scale, pool: createPool(device, { capacity }) });
  } catch (error) {
    await device.dispose();
    throw error;
  }
}

async function planFor(spec: KvSpec, shape: PlanShape, { learned, profile }: CacheOptions): Promise<Plan> {
  if (!learned) {
    const opened = profile === undefined ? undefined : await openProfile(profile);
    const { layers, kvHeads, headDim, ropeFrequencies = [] } = shape;
    if (opened) checkProfile(opened, { layers, kvHeads, headDim, ropeFrequencies: [...ropeFrequencies] });
    return createPlan(spec, shape, opened);
  }
  if (profile !== undefined) throw new InputError('learned and profile exclude each other. Give one of them.');
  if (learned.length !== shape.layers)
    throw new ShapeError(`learned must have one entry per layer, ${shape.layers}; got ${learned.length}.`);
  const window = windowOf(spec);
  const codecs = codecsByLayer(shape, window.edge, layer => createCodec(spec, shape, learned[layer]));
  return createPlanFromCodecs(formatSpec(spec), window, codecs);
}

interface Parts {
  device: Device;
  why: string;
  pool: Pool;
  plan: Plan;
  heads: number;
  scale: number;
}

function createFromParts({ device, why, pool, plan, heads, scale }: Parts): VectorCache {
  const { pageTokens, window, leaf, codecs } = plan;
  const { headDim, kvHeads } = codecs[0].shape;
  const layers = codecs.length;
  const dims = { layers, heads, kvHeads, headDim };
  const sequenceOptions = {
    ...{ device, pool, leaf, shape: { headDim, kvHeads, pageTokens, sinks: window.sink } },
    ...{ recent: window.recent, context: Number.POSITIVE_INFINITY },
  };
  const runner = createStepRunner(device, pool, plan, heads, scale);
  const states = new Map<VectorSequence, State>();
  const queue = createQueue();
  let disposal: Promise<void> | undefined;
  const checkOpen = () => {
    if (disposal) throw new InputError('The cache was disposed. Create it again.');
  };
  /** Calls that were made before it was disposed are finished. */
  const exclusive: Exclusive = async work => {
    checkOpen();
    return queue(work);
  };

  const stateOf = (sequence: VectorSequence): State => {
    const state = states.get(sequence);
    if (!state)
      throw new InputError('The sequence was disposed, or belongs to another cache. Open one with sequence().');
    return state;
  };
  const idleStateOf = (sequence: VectorSequence): State => {
    const state = stateOf(sequence);
    if (state.step)
      throw new InputError(
        `A step of this sequence has reached layer ${state.step.nextLayer} of ${layers}. Call step for the layers from ` +
          'there on, or dispose the sequence.',
      );
    return state;
  };

  const step = async (layer: number, parts: readonly StepRows[]): Promise<Float32Array[]> => {
    checkLayer(layer, layers);
    if (parts.length === 0) throw new InputError('A step needs the rows of at least one sequence.');
    const counts = parts.map(part => countStep(part, dims));
    return exclusive(async () =>
      runner.runLayer(
        layer,
        parts.map((part, i) => ({ ...part, state: stateOf(part.sequence), count: counts[i] })),
      ),
    );
  };

  const open = (sequence: Sequence): VectorSequence => {
    /** Runs work on the sequence, unless a step of it has begun. */
    const whenIdle = <T>(work: (state: State, pause: Pause) => Promise<T>): Promise<T> =>
      exclusive(async pause => work(idleStateOf(self), pause));
    const dispose = async () => {
      if (disposal) return disposal;
      return exclusive(async () => {
        states.delete(self);
        sequence.dispose();
      });
    };
    const self: VectorSequence = {
      get length() {
        return sequence.length;
      },
      get bytes() {
        return sequence.bytes;
      },
      async append(keys, values) {
        const [k, v] = [keys, values].map(side => (side instanceof Float32Array ? [side] : side));
        const count = countTokens(k, v, dims);
        return whenIdle(async state => {
          for (let layer = 0; layer < layers; layer++)
            await runner.runLayer(layer, [{ state, keys: k[layer], values: v[layer], count }]);
        });
      },
      async attend(layer, queries) {
        checkLayer(layer, layers);
        countQueries(queries, dims);
        return whenIdle(() => runner.attendAll(sequence, layer, queries));
      },
      async step(layer, queries, keys, values) {
        const [output] = await step(layer, [{ sequence: self, queries, keys, values }]);
        return output;
      },
      async decode(layer, from, to) {
        checkLayer(layer, layers);
        const [vectors] = await whenIdle(() => decodeVectors(device, sequence, [layer], from, to));
        return vectors;
      },
      fork: () => whenIdle(async () => open(sequence.fork())),
      async crop(length) {
        checkTokens('length', length, 0, Number.MAX_SAFE_INTEGER);
        return whenIdle(async () => sequence.crop(length));
      },
      save: target =>
        whenIdle((_, pause) => saveVectors({ device, exclusive: work => work(pause) }, plan, sequence, target)),
      dispose,
      [Symbol.asyncDispose]: dispose,
    };
    states.set(self, { sequence });
    return self;
  };

  const dispose = () => {
    disposal ??= queue(async () => {
      for (const { sequence } of states.values()) sequence.dispose();
      states.clear();
      await device.dispose();
    });
    return disposal;
  };

  return {
    plan,
    device: { name: device.name, threads: device.threads, why },
    get bytes() {
      return disposal ? 0 : pool.used;
    },
    sequence() {
      checkOpen();
      return open(createSequence(sequenceOptions));
    },
    async restore(source) {
      let restored: VectorSequence | undefined;
      await restoreVectors(exclusive, plan, sequenceOptions, source, sequence => {
        restored = open(sequence);
      });
      return restored!;
    },
    step,
    dispose,
    [Symbol.asyncDispose]: dispose,
  };
}
