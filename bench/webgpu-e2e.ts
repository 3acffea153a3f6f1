/**
 * How fast does a whole model generate on the GPU, by depth and batch? With random weights. Batches are measured with and
 * without `batchInvariant`. Validates first: a sequence has the same logits alone and in a batch, bit by bit or nearly.
 */

import { createSequence } from '../src/cache/create-sequence.ts';
import type { Sequence } from '../src/cache/sequence.ts';
import { formatTable } from '../src/cli/table.ts';
import type { Weights } from '../src/kernel/device.ts';
import { createWebGpuDevice, type WebGpuDevice } from '../src/kernel/webgpu/device.ts';
import type { Chunk } from '../src/model/batch.ts';
import { forward } from '../src/model/forward.ts';
import type { ModelConfig } from '../src/model/model-config.ts';
import { type RopeConfig, type RopeFrequencies, ropeFrequencies } from '../src/model/rope.ts';
import { createScratch } from '../src/model/scratch.ts';
import type { LayerWeights, ModelWeights } from '../src/model/weights.ts';
import type { Plan } from '../src/plan/plan.ts';
import { InputError } from '../src/util/errors.ts';
import { benchPlan } from './fill-context.ts';

interface Options {
  shape: string;
  kv: string;
  /** Depths of one sequence; may be empty. */
  depths: string;
  /** SEQUENCESxDEPTH, a list; may be empty. */
  batch: string;
  /** Tokens of the prompt, or 0. */
  prompt: string;
  /** Prompt tokens per pass. */
  chunk: string;
  /** Print the GPU time of each kernel in a step, at each depth. */
  breakdown: boolean;
  json: boolean;
}

type ModelShape = Pick<ModelConfig, 'layers' | 'width' | 'heads' | 'kvHeads' | 'headDim' | 'ffn' | 'vocab'> & {
  /** Default: a dense model. */
  experts?: { count: number; used: number };
  /** Whether queries and keys have a norm per head. */
  qkNorm?: ModelConfig['qkNorm'];
};

const shapes: Record<string, ModelShape> = {
  'llama-8b': { layers: 32, width: 4096, heads: 32, kvHeads: 8, headDim: 128, ffn: 14336, vocab: 128256 },
  'smol-135m': { layers: 30, width: 576, heads: 9, kvHeads: 3, headDim: 64, ffn: 1536, vocab: 49152 },
  'qwen3-30b-a3b': {
    ...{ layers: 48, width: 2048, heads: 32, kvHeads: 4, headDim: 128, ffn: 768, vocab: 151936 },
    experts: { count: 128, used: 8 },
    qkNorm: 'head',
  },
  tiny: { layers: 2, width: 64, heads: 4, kvHeads: 2, headDim: 32, ffn: 128, vocab: 256 },
  'tiny-moe': {
    ...{ layers: 2, width: 64, heads: 4, kvHeads: 2, headDim: 32, ffn: 64, vocab: 256 },
    experts: { count: 8, used: 2 },
    qkNorm: 'head',
  },
};

/** The best round counts: V8 takes about a hundred tokens to reach full speed. */
const ROUNDS = { count: 8, tokens: 16 };
/** A GPU in software is slow: there the benchmark only shows that it runs. */
const SOFTWARE_ROUNDS = { count: 1, tokens: 2 };
const PAGE_TOKENS = 128;
const TYPE = 'Q4_K';

/** Largest relative error of logits in a batch, if bits may differ: products by f16 matrices instead of int8. */
const BATCH_TOLERANCE = 0.1;
/** Sequences and depth of the validation. */
const VALIDATED = { sequences: 20, depth: 256 };

interface Setting {
  kv: string;
  batchInvariant: boolean;
}

/** One measurement: `together` sequences of `depth` tokens, or a prompt. */
interface Result extends Setting {
  work: string;
  tokensPerSecond: number;
  ms: number;
  /** Milliseconds of GPU time by kind of kernel, with about 6 us more for each dispatch. */
  split?: Record<Kind, number>;
  dispatches?: number;
}

const kinds = ['products', 'attention', 'sampling', 'rest'] as const;
type Kind = (typeof kinds)[number];

export async function benchWebGpuE2e(options: Options): Promise<void> {
  const shape = shapes[options.shape];
  if (!shape)
    throw new InputError(`There is no shape "${options.shape}". Take one of: ${Object.keys(shapes).join(', ')}.`);
  const depths = listed(options.depths).map(depth => ({ batch: 1, depth: Number(depth) }));
  const batches = listed(options.batch).map(text => {
    const [batch, depth] = text.split('x').map(Number);
    return { batch, depth };
  });
  const [prompt, chunk] = [options.prompt, options.chunk].map(Number);
  const rows = Math.max(chunk, VALIDATED.sequences, ...batches.map(({ batch }) => batch));
  const results: Result[] = [];
  let adapter = '';
  let rounds = ROUNDS;
  for (const batchInvariant of [true, false]) {
    const device = await createWebGpuDevice({ ...shape, pageTokens: PAGE_TOKENS, batchInvariant });
    adapter = device.info.name;
    if (device.info.software) rounds = SOFTWARE_ROUNDS;
    const model = await randomModel(device, shape, rows);
    // Without subgroup matrices both are the same.
    const works = batchInvariant ? [...depths, ...batches] : device.info.matrices ? batches : [];
    const prompts = batchInvariant && prompt > 0;
    for (const kv of works.length > 0 || prompts ? options.kv.split(',') : []) {
      // One plan for all sequences, so that they share dispatches.
      const cache = {
        kv,
        plan: benchPlan(kv, { ...shape, pageTokens: PAGE_TOKENS, ropeFrequencies: model.rope.frequencies }),
      };
      await validate(device, model, cache, batchInvariant);
      for (const { batch, depth } of works) {
        const measured = await decode(device, model, cache, batch, depth, rounds, options.breakdown);
        const tokensPerSecond = (1000 * batch) / measured.ms;
        results.push({ kv, batchInvariant, work: `${batch} x ${depth}`, tokensPerSecond, ...measured });
      }
      if (!prompts) continue;
      const ms = await prefillTime(device, model, cache, prompt, chunk, options.breakdown);
      results.push({ kv, batchInvariant, work: `prompt of ${prompt}`, tokensPerSecond: (1000 * prompt) / ms, ms });
    }
    await device.dispose();
  }
  if (options.json) console.log(JSON.stringify({ adapter, shape: options.shape, results }, null, 1));
  else {
    const lines = results.map(({ kv, batchInvariant, work, tokensPerSecond, ms, split, dispatches }) => [
      kv,
      work,
      batchInvariant ? 'yes' : 'no',
      tokensPerSecond.toFixed(0),
      ms.toFixed(2),
      ...(options.breakdown ? [...kinds.map(kind => split?.[kind].toFixed(2) ?? ''), String(dispatches ?? '')] : []),
    ]);
    const header = ['kv', 'work', 'batch invariant', 'tokens/s', 'ms per pass'];
    if (options.breakdown) header.push(...kinds, 'dispatches');
    console.log(
      `${options.shape}, random ${TYPE} weights, on ${adapter}. Best of ${rounds.count} rounds of ${rounds.tokens} tokens.\n${formatTable(header, lines)}`,
    );
  }
}

const listed = (text: string) => text.split(',').filter(Boolean);

function kindOf(kernel: string): Kind {
  if (/^(gemv|gemm|fused|gated|quantize|convert to f16|add partial sums)\b/.test(kernel)) return 'products';
  if (/sample|logit/.test(kernel)) return 'sampling';
  if (/^(norm|rope|embed|gate)\b/.test(kernel)) return 'rest';
  return 'attention';
}

/** Logits of the last sequence of a batch against those of the same sequence alone. */
async function validate(device: WebGpuDevice, model: Model, { plan }: Cache, batchInvariant: boolean): Promise<void> {
  const logits = async (count: number) => {
    const sequences = Array.from({ length: count }, () => opened(device, model.config, plan, VALIDATED.depth, 1));
    const chunks = sequences.map((sequence, i): Chunk => {
      return { sequence, tokens: [(count - i) * 17], logits: i === count - 1 ? 'last' : 'none' };
    });
    let found: Float32Array = new Float32Array();
    const onLogits = (_chunk: Chunk, _row: number, values: Float32Array) => {
      found = values;
    };
    await (await forward({ ...model, device }, chunks, { onLogits })).delivered;
    for (const sequence of sequences) sequence.dispose();
    return found;
  };
  const [alone, together] = [await logits(1), await logits(VALIDATED.sequences)];
  // Without their mean, which random weights make large.
  const mean = alone.reduce((sum, x) => sum + x, 0) / alone.length;
  const squares = (x: Float32Array) => x.reduce((sum, value) => sum + value * value, 0);
  const error = Math.sqrt(squares(alone.map((x, i) => x - together[i])) / squares(alone.map(x => x - mean)));
  if (!(batchInvariant ? error === 0 : error < BATCH_TOLERANCE))
    throw new InputError(
      `The logits of a sequence in a batch of ${VALIDATED.sequences}: relative error ${error} against alone.`,
    );
  console.error(`validated, batchInvariant ${batchInvariant}: relative error ${error.toExponential(1)} in a batch`);
}

/** A pass that is running. */
interface Pass {
  /** Milliseconds of recording; the GPU has started by then. */
  recorded: number;
  /** Handles of the sampled tokens. */
  handles: number[];
  ended: Promise<void>;
}

interface Cache {
  kv: string;
  plan: Plan;
}

interface Model {
  config: ModelConfig;
  weights: ModelWeights;
  rope: RopeFrequencies;
  scratch: ReturnType<typeof createScratch>;
}

async function randomModel(device: WebGpuDevice, shape: ModelShape, rows: number): Promise<Model> {
  const { width, heads, kvHeads, headDim, ffn, vocab, layers, experts, qkNorm } = shape;
  const matrix = (outs: number, cols: number) => device.randomWeights(TYPE, outs, cols);
  const ones = (length = width) => {
    const tensor = device.createTensor(1, length);
    device.writeRows(tensor, 0, new Float32Array(length).fill(1));
    return tensor;
  };
  const headNorm = () => (qkNorm ? ones(headDim) : undefined);
  const perExpert = experts?.count ?? 1;
  const layer = async (): Promise<LayerWeights> => ({
    attentionNorm: ones(),
    q: matrix(heads * headDim, width),
    k: matrix(kvHeads * headDim, width),
    v: matrix(kvHeads * headDim, width),
    qNorm: headNorm(),
    kNorm: headNorm(),
    attentionOutput: matrix(width, heads * headDim),
    ffnNorm: ones(),
    router: experts && (await randomRouter(device, experts.count, width)),
    gate: matrix(perExpert * ffn, width),
    up: matrix(perExpert * ffn, width),
    down: matrix(perExpert * width, ffn),
  });
  const weights: ModelWeights = {
    embedding: matrix(vocab, width),
    outputHead: matrix(vocab, width),
    outputNorm: ones(),
    layers: [],
  };
  for (let i = 0; i < layers; i++) weights.layers.push(await layer());
  const rope: RopeConfig = {
    base: 500000,
    dims: headDim,
    pairing: 'adjacent',
    scaling: { type: 'none' },
    attnFactor: 1,
  };
  const config: ModelConfig = {
    ...shape,
    architecture: 'llama',
    name: 'random weights',
    experts: experts && {
      ...{ ...experts, ffn: shape.ffn, denseLayers: 0 },
      routing: { scores: 'softmax', normalized: true, scale: 1 },
    },
    context: 131072,
    normEps: 1e-5,
    attentionScale: 1 / Math.sqrt(headDim),
    attentionSoftcap: 0,
    logitSoftcap: 0,
    embeddingScale: 1,
    logitScale: 1,
    rope,
    localRope: undefined,
    layerRopes: Array.from({ length: layers }, () => 'global'),
    attentionWindows: [],
    qkvBias: false,
    attentionOutputBias: false,
    feedForwardBias: false,
    sinkLogits: false,
    qkNorm,
    ropeFirst: false,
    norms: 'inputs',
    ffnNorm: 'ffn_norm',
    activation: 'silu',
    fusedQkv: false,
    fusedGateUp: false,
    tiedOutput: false,
  };
  return { config, weights, rope: ropeFrequencies(rope), scratch: createScratch(device, config, rows) };
}

/** Floats, as in files. Random, so that rows choose different experts. */
function randomRouter(device: WebGpuDevice, experts: number, width: number): Promise<Weights> {
  return device.loadWeights('F32', experts, width, async into => {
    const values = new Float32Array(into.buffer, into.byteOffset, experts * width);
    for (let i = 0; i < values.length; i++) values[i] = (2 * Math.random() - 1) / Math.sqrt(width);
  });
}

/** A sequence of `depth` tokens: pages of zeros, since time does not depend on their content. */
function opened(device: WebGpuDevice, shape: ModelShape, plan: Plan, depth: number, room: number): Sequence {
  const cache = {
    headDim: shape.headDim,
    kvHeads: shape.kvHeads,
    pageTokens: plan.pageTokens,
    sinks: plan.window.sink,
  };
  const context = depth + room;
  const sequence = createSequence({ device, shape: cache, leaf: plan.leaf, recent: plan.window.recent, context });
  if (depth > 0) sequence.plan(depth);
  sequence.commit(depth);
  return sequence;
}

/** Milliseconds per pass. Each pass is recorded while the one before runs, as in generation. */
async function decode(
  device: WebGpuDevice,
  model: Model,
  { kv, plan }: Cache,
  batch: number,
  depth: number,
  { count, tokens }: typeof ROUNDS,
  breakdown: boolean,
): Promise<Pick<Result, 'ms' | 'split' | 'dispatches'>> {
  const sequences = Array.from({ length: batch }, () => opened(device, model.config, plan, depth, count * tokens + 2));
  let pass = await begin(device, model, sequences, 1);
  await pass.ended;
  let best = Number.POSITIVE_INFINITY;
  let recorded = Number.POSITIVE_INFINITY;
  for (let round = 0; round < count; round++) {
    const start = performance.now();
    for (let i = 0; i < tokens; i++) {
      const next = await begin(device, model, sequences, 1, { given: pass.handles });
      await pass.ended;
      pass = next;
      recorded = Math.min(recorded, pass.recorded);
    }
    await pass.ended;
    best = Math.min(best, (performance.now() - start) / tokens);
  }
  const result: Pick<Result, 'ms' | 'split' | 'dispatches'> = { ms: best };
  if (breakdown) {
    const title = `${kv}, ${batch} x ${depth}`;
    console.error(`${title}: ${best.toFixed(2)} ms; of which the CPU records for ${recorded.toFixed(2)} ms`);
    Object.assign(
      result,
      await showBreakdown(title, device, async () => (await begin(device, model, sequences, 1)).ended),
    );
  }
  for (const sequence of sequences) sequence.dispose();
  return result;
}

/** Milliseconds of a whole prompt, after a short one that compiles the kernels. */
async function prefillTime(
  device: WebGpuDevice,
  model: Model,
  { kv, plan }: Cache,
  prompt: number,
  chunk: number,
  breakdown: boolean,
): Promise<number> {
  const warm = opened(device, model.config, plan, 0, chunk);
  await (await begin(device, model, [warm], chunk)).ended;
  warm.dispose();
  const sequence = opened(device, model.config, plan, 0, prompt + chunk);
  const start = performance.now();
  for (let done = 0; done < prompt; done += chunk) {
    const logits = done + chunk < prompt ? 'none' : 'last';
    await (await begin(device, model, [sequence], Math.min(chunk, prompt - done), { logits })).ended;
  }
  const time = performance.now() - start;
  if (breakdown)
    await showBreakdown(`${kv}, prompt`, device, async () => (await begin(device, model, [sequence], chunk)).ended);
  sequence.dispose();
  return time;
}

async function showBreakdown(
  title: string,
  device: WebGpuDevice,
  work: () => Promise<void>,
): Promise<Pick<Result, 'split' | 'dispatches'>> {
  const start = performance.now();
  const found = await device.gpu.timeDispatches(work);
  const wall = performance.now() - start;
  const kernels = new Map<string, { count: number; ns: number }>();
  const split = { products: 0, attention: 0, sampling: 0, rest: 0 };
  for (const { name, ns } of found) {
    const kernel = kernels.get(name) ?? { count: 0, ns: 0 };
    kernels.set(name, { count: kernel.count + 1, ns: kernel.ns + ns });
    split[kindOf(name)] += ns / 1e6;
  }
  const sum = found.reduce((total, { ns }) => total + ns, 0);
  const lines = [...kernels]
    .sort(([, a], [, b]) => b.ns - a.ns)
    .map(([name, { count, ns }]) => [
      name.length > 60 ? `${name.slice(0, 57)}...` : name,
      String(count),
      (ns / 1e6).toFixed(3),
      (ns / 1e3 / count).toFixed(1),
    ]);
  console.error(
    `${title}: ${found.length} dispatches, ${(sum / 1e6).toFixed(2)} ms; ${wall.toFixed(2)} ms with one pass each`,
  );
  console.error(formatTable(['kernel', 'dispatches', 'ms', 'us each'], lines));
  return { split, dispatches: found.length };
}

/** A pass over `count` tokens of each sequence, or over the token `given`; samples greedily. */
async function begin(
  device: WebGpuDevice,
  model: Model,
  sequences: readonly Sequence[],
  count: number,
  { given, logits = 'last' }: { given?: readonly number[]; logits?: Chunk['logits'] } = {},
): Promise<Pass> {
  const fixed = Array.from({ length: count }, (_, i) => (i * 7919) % model.config.vocab);
  const sampling = { temperature: 0, topK: 0, topP: 1, minP: 0, random: 0 };
  const chunks = sequences.map((sequence, i): Chunk => {
    return { sequence, tokens: given ? [given[i]] : fixed, logits, sampling };
  });
  const handles: number[] = [];
  const start = performance.now();
  const { delivered } = await forward({ ...model, device }, chunks, {
    onLogits() {},
    onToken() {},
    onHandle: (_chunk, name) => handles.push(name),
  });
  return { recorded: performance.now() - start, handles, ended: delivered };
}
