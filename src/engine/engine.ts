/** A model's weights on a device, ready to run. The engine holds no KV cache: sequences with any plan run through it. */
import { createSequence } from '../cache/create-sequence.ts';
import { createKvCache, type KvCache, type KvCacheOptions } from '../cache/kv-cache.ts';
import type { Sequence } from '../cache/sequence.ts';
import type { Device, Tensor } from '../kernel/device.ts';
import { type DeviceName, type DeviceTest, openDevice } from '../kernel/open.ts';
import { readRopeFrequencies } from '../model/config.ts';
import { type ModelInput, type OpenedModel, type OpenOptions, openModel } from '../model/input.ts';
import type { ModelConfig } from '../model/model-config.ts';
import { type ModelDescription, readModel } from '../model/read-model.ts';
import type { RopeFrequencies } from '../model/rope.ts';
import { createScratch, type Scratch } from '../model/scratch.ts';
import type { ChatTemplate } from '../model/template.ts';
import { loadedTensors } from '../model/tensor-shapes.ts';
import type { ChatTokenizer } from '../model/tokenizer.ts';
import { type LoadProgress, loadWeights, type ModelWeights } from '../model/weights.ts';
import type { Plan, PlanShape } from '../plan/plan.ts';
import { platform } from '../platform/node.ts';
import { assert, InputError } from '../util/errors.ts';
import { type BatchSize, createBatchSize, maxBatchRows } from './batch-size.ts';
import { type BudgetRequest, checkBudget } from './budget.ts';
import { modelFingerprint } from './model-fingerprint.ts';
import { createQueue, type Exclusive } from './queue.ts';
import { warmUp } from './warm-up.ts';

export type { ModelInput, ModelPart } from '../model/input.ts';

/** How a model is loaded and run. */
export interface EngineOptions {
  /** Where the model runs. Default: `auto`, the fastest device that supports the model. */
  device?: DeviceName;
  /** Threads of the wasm device. Default: one per CPU core. */
  threads?: number;
  /** Use int16 activations and float attention instead of the faster integer kernels: for measurements. Default: false. */
  precise?: boolean;
  /**
   * On webgpu: an answer has the same bits alone and in any batch. False: many rows decoded together use subgroup matrices,
   * where the GPU has them, which is faster. Default: true.
   */
  batchInvariant?: boolean;
  /** Max tokens per forward pass, 1 to 65536. Default: 256 (wasm), 512 (webgpu), 32 (js). */
  prefillChunk?: number;
  /** Max bytes of weights, one cache and scratch together. Default: the free memory; no limit on webgpu. */
  memoryLimit?: number;
  /** Compile the GPU kernels while loading, not in the first prompt. Default: true, unless the CPU emulates the GPU. */
  warmUp?: boolean;
  /** Aborts loading. */
  signal?: AbortSignal;
  onProgress?: (progress: LoadProgress) => void;
}

export interface Engine {
  readonly device: Device;
  /** Why this device was chosen. */
  readonly why: string;
  /** A faster device is there, but cannot be opened or computes wrong results. */
  readonly notice?: string;
  readonly config: ModelConfig;
  readonly tokenizer: ChatTokenizer;
  readonly template: ChatTemplate;
  readonly rope: RopeFrequencies;
  readonly weights: ModelWeights;
  readonly scratch: Scratch;
  readonly bytes: { readonly weights: number; readonly scratch: number };
  readonly batchSize: BatchSize;
  /** The model's sha256; computed on the first call, if it is not known. */
  fingerprint(): Promise<string>;
  /** Bytes that the budget has for caches. */
  readonly kvMemory: number;
  readonly disposed: boolean;
  /** The clock by which requests are scheduled, in ms. */
  now(): number;
  /** A sequence of its own, without limit and without sharing: for measurements. */
  openSequence(plan: Plan, context: number): Sequence;
  /** A cache that many sequences share. `capacity`: max bytes. */
  openCache(
    plan: Plan,
    options: Pick<KvCacheOptions, 'context' | 'overflow' | 'capacity' | 'policy' | 'tiers'>,
  ): KvCache;
  /**
   * Runs one piece of work at a time, since all share the scratch: between two passes. Rejects with an InputError after
   * disposal.
   */
  readonly exclusive: Exclusive;
  /** Waits for the running work, then frees everything. Can be called twice. */
  dispose(): Promise<void>;
}

/** A model file's metadata, tokenizer and chat template, without its weights. */
export interface ModelFile extends OpenedModel, ModelDescription {
  rope: RopeFrequencies;
}

export interface ModelFileOptions extends OpenOptions {
  /**
   * Max tokens per sequence that the model will be loaded with: some models choose their RoPE by it. Default: what `loadModel`
   * takes.
   */
  context?: number;
}

export const openModelFile = async (input: ModelInput, options?: ModelFileOptions): Promise<ModelFile> =>
  readModelFile(await openModel(input, options), options);

/** Closes the file on errors. */
export async function readModelFile(
  { gguf, paths }: OpenedModel,
  options?: Pick<ModelFileOptions, 'context'>,
): Promise<ModelFile> {
  try {
    const model = readModel(gguf, options);
    return { paths, gguf, ...model, rope: await readRopeFrequencies(gguf, model.config) };
  } catch (error) {
    await gguf.close();
    throw error;
  }
}

/** The model dimensions that a plan needs. */
export const planShape = ({ config, rope }: Pick<ModelFile, 'config' | 'rope'>, pageTokens?: number): PlanShape => ({
  layers: config.layers,
  kvHeads: config.kvHeads,
  headDim: config.headDim,
  pageTokens,
  ropeFrequencies: rope.frequencies,
  attentionWindows: config.attentionWindows,
  localRopeFrequencies: rope.local?.frequencies,
});

/** The cache that must fit in memory next to the weights. */
export type CacheRequest = Pick<BudgetRequest, 'plan' | 'compared' | 'context' | 'extra' | 'guard' | 'kvMemory'>;

/** Loads the weights onto a device. Closes the file, also on errors. */
export async function loadEngine(file: ModelFile, cache: CacheRequest, options: EngineOptions = {}): Promise<Engine> {
  const { gguf, config, tokenizer, template, rope } = file;
  const { threads, precise, batchInvariant, signal, onProgress } = options;
  const { pageTokens } = cache.plan;
  let device: Device | undefined;
  try {
    signal?.throwIfAborted();
    const shape = { ...config, pageTokens };
    const test: DeviceTest = async device => (await import('./self-test.ts')).selfTest(device, file, cache.plan);
    const opened = await openDevice(options.device ?? 'auto', shape, { threads, precise, batchInvariant }, test);
    device = opened.device;
    const rows = maxBatchRows(options.prefillChunk, device);
    // WebGPU cannot report free GPU memory; allocations fail when there is none left.
    const limit = options.memoryLimit ?? (device.name === 'webgpu' ? Number.POSITIVE_INFINITY : platform.memoryLimit());
    const budget = checkBudget({ ...cache, config, tensors: loadedTensors(config, gguf.tensors), device, rows }, limit);
    // Nothing is downloaded but the header until the model is known to run.
    for (const shard of gguf.shards) await shard.complete?.();
    const weights = await loadWeights(gguf, config, device, { signal, onProgress });
    const weightBytes = device.allocatedBytes;
    const { layers, exact } = cache.plan.leaf;
    await device.loadCodecs?.([...layers, ...(exact?.layers ?? [])]);
    const scratch = createScratch(device, config, rows);
    const bytes = { weights: weightBytes, scratch: device.allocatedBytes - weightBytes };
    const batchSize = createBatchSize(rows, device);
    const engine = createEngine({
      ...opened,
      config,
      tokenizer,
      template,
      rope,
      weights,
      scratch,
      bytes,
      batchSize,
      kvMemory: budget.cache,
      fingerprint: () => modelFingerprint(file),
    });
    if (options.warmUp ?? opened.warmUp) await warmUp(engine, cache.plan);
    signal?.throwIfAborted();
    return engine;
  } catch (error) {
    await device?.dispose();
    throw error;
  } finally {
    await gguf.close();
  }
}

/** Throws the InputError that every use of a disposed model gets. */
export function throwIfDisposed(disposed: boolean): void {
  if (disposed) throw new InputError('The model was disposed. Load it again.');
}

type Parts = Omit<Engine, 'disposed' | 'now' | 'openSequence' | 'openCache' | 'exclusive' | 'dispose'>;

function createEngine(parts: Parts): Engine {
  const { device, config } = parts;
  let disposal: Promise<void> | undefined;
  const queue = createQueue();
  const checkOpen = () => throwIfDisposed(disposal !== undefined);
  const cacheShape = ({ pageTokens, window, leaf }: Plan) => {
    const { headDim, kvHeads, attentionWindows } = config;
    assert(
      leaf.layers.every((layer, i) => layer.window === attentionWindows[i]),
      'a plan has the windows of the model',
    );
    return { device, leaf, shape: { headDim, kvHeads, pageTokens, sinks: window.sink }, recent: window.recent };
  };
  const engine: Engine = {
    ...parts,
    get disposed() {
      return disposal !== undefined;
    },
    now: () => performance.now(),
    openSequence(plan, context) {
      checkOpen();
      return createSequence({ ...cacheShape(plan), context });
    },
    openCache(plan, options) {
      checkOpen();
      const spillsPages = plan.mode === 'two-tier';
      const { exclusive } = engine;
      return createKvCache({ ...cacheShape(plan), spillsPages, exclusive, now: () => engine.now(), ...options });
    },
    exclusive: work =>
      queue(async pause => {
        checkOpen();
        return work(pause);
      }),
    dispose() {
      disposal ??= queue(async () => {
        const { rows: _, projections: __, shared, dense, ...tensors } = engine.scratch;
        for (const group of [tensors, { ...shared }, { ...dense }])
          for (const tensor of Object.values<Tensor>(group)) device.free(tensor);
        // A reference to the engine must not keep gigabytes alive.
        Object.assign(engine, { weights: undefined, scratch: undefined, device: undefined });
        await device.dispose();
      });
      return disposal;
    },
  };
  return engine;
}
