/** A model's weights on a device, ready to run. It holds no cache: sequences of any plan run through it. */
import { createSequence, type Sequence } from '../cache/sequence.ts';
import { InputError } from '../errors.ts';
import type { Device, Tensor } from '../kernel/device.ts';
import { type DeviceName, openDevice } from '../kernel/open.ts';
import { configOf, type ModelConfig, readRope } from '../model/config.ts';
import { createScratch, type Scratch } from '../model/forward.ts';
import { type Gguf, openGguf } from '../model/gguf.ts';
import type { RopeFrequencies } from '../model/rope.ts';
import { type ChatTemplate, createChatTemplate } from '../model/template.ts';
import { getString } from '../model/tokenizer/metadata.ts';
import { createTokenizer, type Tokenizer } from '../model/tokenizer.ts';
import { type LoadProgress, loadWeights, type ModelWeights } from '../model/weights.ts';
import type { Plan, PlanShape } from '../plan/plan.ts';
import { type BudgetRequest, checkBudget, memoryLimit } from './budget.ts';
import { warmUp } from './warm-up.ts';

/** A path, a name on the hub (`org/repo:Q4_K_M`), or the model's files as Blobs. */
export type ModelInput = string | Blob | readonly Blob[];

export interface EngineOptions {
  device?: DeviceName;
  threads?: number;
  /** int16 activations and pages read as floats, where the device has a faster way: for measurements. */
  precise?: boolean;
  /** Tokens that go through the layers together. */
  prefillChunk?: number;
  /** Bytes that weights, cache and scratch may take together; what this machine has free unless given. */
  memoryLimit?: number;
  /** Compile the GPU's kernels while loading, not in the first prompt: true, unless the GPU is emulated on the CPU. */
  warmUp?: boolean;
  signal?: AbortSignal;
  onProgress?: (progress: LoadProgress) => void;
}

export interface Engine {
  readonly device: Device;
  /** Why it is this device. */
  readonly why: string;
  readonly config: ModelConfig;
  readonly tokenizer: Tokenizer;
  readonly template: ChatTemplate;
  readonly rope: RopeFrequencies;
  readonly weights: ModelWeights;
  readonly scratch: Scratch;
  readonly bytes: { readonly weights: number; readonly scratch: number };
  readonly disposed: boolean;
  openSequence(plan: Plan, context: number, overflow?: 'error' | 'slide'): Sequence;
  dispose(): Promise<void>;
}

/** What a model file says of itself, read without its weights. */
export interface ModelFile {
  /** Its files, in order; none if it came as Blobs. */
  paths: readonly string[];
  gguf: Gguf;
  config: ModelConfig;
  tokenizer: Tokenizer;
  template: ChatTemplate;
  rope: RopeFrequencies;
}

export async function openModelFile(input: ModelInput): Promise<ModelFile> {
  const gguf = await openGguf(typeof input === 'string' ? await resolvePath(input) : input);
  try {
    const config = configOf(gguf);
    const tokenizer = createTokenizer(gguf.metadata);
    const nameOf = (id: number | undefined) => (id === undefined ? undefined : tokenizer.tokenText(id));
    const template = createChatTemplate({
      source: getString(gguf.metadata, 'tokenizer.chat_template'),
      bosToken: nameOf(tokenizer.bos),
      eosToken: nameOf(tokenizer.eos),
    });
    const paths = typeof input === 'string' ? gguf.shards.map(({ name }) => name) : [];
    return { paths, gguf, config, tokenizer, template, rope: await readRope(gguf, config) };
  } catch (error) {
    await gguf.close();
    throw error;
  }
}

/** What a plan must know of a model. */
export const planShape = ({ config, rope }: Pick<ModelFile, 'config' | 'rope'>, pageTokens?: number): PlanShape => ({
  layers: config.layers,
  kvHeads: config.kvHeads,
  headDim: config.headDim,
  pageTokens,
  turn: rope.frequencies,
});

/** The hub's code is for Node alone: the import waits until a name needs it. */
async function resolvePath(name: string): Promise<string> {
  const { resolveModel } = await import('../model/hub/index.ts');
  return (await resolveModel(name)).path;
}

/** The cache that the engine is to have room for. */
export type CacheRequest = Pick<BudgetRequest, 'plan' | 'context' | 'extra'>;

/** Loads what a file holds; the file is closed in the end, whatever comes. */
export async function loadEngine(file: ModelFile, cache: CacheRequest, options: EngineOptions = {}): Promise<Engine> {
  const { gguf, config, tokenizer, template, rope } = file;
  const { threads, precise, signal, onProgress } = options;
  const { pageTokens } = cache.plan;
  let device: Device | undefined;
  try {
    signal?.throwIfAborted();
    const opened = await openDevice(options.device ?? 'auto', { ...config, pageTokens }, { threads, precise });
    device = opened.device;
    const rows = chunkRows(options.prefillChunk, device);
    // Nobody can say how much memory a GPU has free: it speaks up when there is none.
    const limit = options.memoryLimit ?? (device.name === 'webgpu' ? Number.POSITIVE_INFINITY : await memoryLimit());
    checkBudget({ ...cache, config, tensors: gguf.tensors, device: device.name, rows }, limit);
    const weights = await loadWeights(gguf, config, device, { signal, onProgress });
    const weightBytes = device.bytes;
    const scratch = createScratch(device, config, rows);
    const bytes = { weights: weightBytes, scratch: device.bytes - weightBytes };
    const engine = createEngine({ ...opened, config, tokenizer, template, rope, weights, scratch, bytes });
    if (options.warmUp ?? opened.warmUp) await warmUp(engine, cache.plan);
    return engine;
  } catch (error) {
    await device?.dispose();
    throw error;
  } finally {
    await gguf.close();
  }
}

type Parts = Omit<Engine, 'disposed' | 'openSequence' | 'dispose'>;

function createEngine(parts: Parts): Engine {
  const { device, config } = parts;
  let disposed = false;
  const engine = {
    ...parts,
    get disposed() {
      return disposed;
    },
    openSequence(plan: Plan, context: number, overflow?: 'error' | 'slide') {
      const { headDim, kvHeads } = config;
      const { pageTokens, window, leaf } = plan;
      const shape = { headDim, kvHeads, pageTokens, sinks: window.sink };
      return createSequence({ device, shape, leaf, recent: window.recent, context, overflow });
    },
    async dispose() {
      if (disposed) return;
      disposed = true;
      const { rows: _, products: __, ...tensors } = engine.scratch;
      for (const tensor of Object.values<Tensor>(tensors)) device.free(tensor);
      // Whoever still holds the engine shall not hold gigabytes by it.
      Object.assign(engine, { weights: undefined, scratch: undefined, device: undefined });
      await device.dispose();
    },
  };
  return engine;
}

/** The slow device gets small chunks, so that one does not keep a signal waiting for minutes; a GPU wants large ones. */
function chunkRows(asked: number | undefined, { name }: Device): number {
  const rows = asked ?? (name === 'js' ? 32 : name === 'webgpu' ? 512 : 256);
  if (!Number.isInteger(rows) || rows < 1 || rows > 65536)
    throw new InputError(`prefillChunk must be a whole number from 1 to 65536, not ${rows}.`);
  return rows;
}
