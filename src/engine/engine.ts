/** A model's weights on a device, ready to run. It holds no cache: sequences of any plan run through it. */
import { createSequence, type Sequence } from '../cache/sequence.ts';
import { InputError } from '../errors.ts';
import type { Device, Tensor } from '../kernel/device.ts';
import { type DeviceName, openDevice } from '../kernel/open.ts';
import { templateNote } from '../model/chat.ts';
import { configOf, type ModelConfig, readRope } from '../model/config.ts';
import { createScratch, type Scratch } from '../model/forward.ts';
import type { Gguf } from '../model/gguf.ts';
import { type ModelInput, type OpenOptions, openModel } from '../model/input.ts';
import type { RopeFrequencies } from '../model/rope.ts';
import { type ChatTemplate, createChatTemplate } from '../model/template.ts';
import { getString } from '../model/tokenizer/metadata.ts';
import { createTokenizer, type Tokenizer } from '../model/tokenizer.ts';
import { type LoadProgress, loadWeights, type ModelWeights } from '../model/weights.ts';
import type { Plan, PlanShape } from '../plan/plan.ts';
import { type BudgetRequest, checkBudget, memoryLimit } from './budget.ts';
import { createPassRows, type PassRows, scratchRows } from './pass-rows.ts';
import { warmUp } from './warm-up.ts';

export type { ModelInput, ModelPart } from '../model/input.ts';

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
  readonly passRows: PassRows;
  readonly disposed: boolean;
  openSequence(plan: Plan, context: number, overflow?: 'error' | 'slide'): Sequence;
  /** Runs work that needs the scratch for itself, one after the other; a typed error once the engine is disposed. */
  exclusive<T>(work: (engine: Engine) => Promise<T>): Promise<T>;
  /** Frees everything, once the work under way has ended. Twice is harmless. */
  dispose(): Promise<void>;
}

/** What a model file says of itself, read without its weights. */
export interface ModelFile {
  /** Its files, in order; none if it is not on disk. */
  paths: readonly string[];
  gguf: Gguf;
  config: ModelConfig;
  tokenizer: Tokenizer;
  template: ChatTemplate;
  rope: RopeFrequencies;
}

export async function openModelFile(input: ModelInput, options?: OpenOptions): Promise<ModelFile> {
  const { gguf, paths } = await openModel(input, options);
  try {
    const config = configOf(gguf);
    const tokenizer = createTokenizer(gguf.metadata);
    const nameOf = (id: number | undefined) => (id === undefined ? undefined : tokenizer.tokenText(id));
    const bare = createChatTemplate({
      source: getString(gguf.metadata, 'tokenizer.chat_template'),
      bosToken: nameOf(tokenizer.bos),
      eosToken: nameOf(tokenizer.eos),
    });
    const template = { ...bare, note: bare.note ?? templateNote(tokenizer, bare) };
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
    const rows = scratchRows(options.prefillChunk, device);
    // Nobody can say how much memory a GPU has free: it speaks up when there is none.
    const limit = options.memoryLimit ?? (device.name === 'webgpu' ? Number.POSITIVE_INFINITY : await memoryLimit());
    checkBudget({ ...cache, config, tensors: gguf.tensors, device, rows }, limit);
    const weights = await loadWeights(gguf, config, device, { signal, onProgress });
    const weightBytes = device.bytes;
    await device.loadCodecs?.(cache.plan.leaf.layers);
    const scratch = createScratch(device, config, rows);
    const bytes = { weights: weightBytes, scratch: device.bytes - weightBytes };
    const passRows = createPassRows(rows, device);
    const engine = createEngine({ ...opened, config, tokenizer, template, rope, weights, scratch, bytes, passRows });
    if (options.warmUp ?? opened.warmUp) await warmUp(engine, cache.plan);
    return engine;
  } catch (error) {
    await device?.dispose();
    throw error;
  } finally {
    await gguf.close();
  }
}

/** What everybody is told who uses a model after its end. */
export function refuseDisposed(disposed: boolean): void {
  if (disposed) throw new InputError('The model was disposed. Load it again.');
}

type Parts = Omit<Engine, 'disposed' | 'openSequence' | 'exclusive' | 'dispose'>;

function createEngine(parts: Parts): Engine {
  const { device, config } = parts;
  let disposal: Promise<void> | undefined;
  /** The last work that was begun. */
  let last: Promise<unknown> = Promise.resolve();
  const checkOpen = () => refuseDisposed(disposal !== undefined);
  const engine: Engine = {
    ...parts,
    get disposed() {
      return disposal !== undefined;
    },
    openSequence(plan, context, overflow) {
      checkOpen();
      const { headDim, kvHeads } = config;
      const { pageTokens, window, leaf } = plan;
      const shape = { headDim, kvHeads, pageTokens, sinks: window.sink };
      return createSequence({ device, shape, leaf, recent: window.recent, context, overflow });
    },
    exclusive(work) {
      const run = async () => {
        checkOpen();
        return work(engine);
      };
      const ended = last.then(run);
      last = ended.catch(() => {});
      return ended;
    },
    dispose() {
      disposal ??= last.then(async () => {
        const { rows: _, products: __, ...tensors } = engine.scratch;
        for (const tensor of Object.values<Tensor>(tensors)) device.free(tensor);
        // Whoever still holds the engine shall not hold gigabytes by it.
        Object.assign(engine, { weights: undefined, scratch: undefined, device: undefined });
        await device.dispose();
      });
      return disposal;
    },
  };
  return engine;
}
