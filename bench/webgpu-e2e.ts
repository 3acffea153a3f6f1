/** How fast does a whole model generate on the GPU, by depth and batch? With random weights. */
import type { Sequence } from '../src/cache/sequence.ts';
import { createSequence } from '../src/cache/sequence.ts';
import { formatTable } from '../src/cli/table.ts';
import { InputError } from '../src/errors.ts';
import { createWebGpuDevice, type WebGpuDevice } from '../src/kernel/webgpu/device.ts';
import type { ModelConfig } from '../src/model/config.ts';
import { type Chunk, createScratch, forward } from '../src/model/forward.ts';
import type { RopeFrequencies } from '../src/model/rope.ts';
import type { ModelWeights } from '../src/model/weights.ts';
import { createPlan, type Plan } from '../src/plan/plan.ts';

interface Options {
  shape: string;
  kv: string;
  depths: string;
  batch: string;
  /** Tokens of the prompt. */
  prompt: string;
  /** Prompt tokens per pass. */
  chunk: string;
  /** Print the GPU time of each kernel in a step, at each depth. */
  breakdown: boolean;
  json: boolean;
}

type ModelShape = Pick<ModelConfig, 'layers' | 'width' | 'heads' | 'kvHeads' | 'headDim' | 'ffn' | 'vocab'>;

const shapes: Record<string, ModelShape> = {
  'llama-8b': { layers: 32, width: 4096, heads: 32, kvHeads: 8, headDim: 128, ffn: 14336, vocab: 128256 },
  'smol-135m': { layers: 30, width: 576, heads: 9, kvHeads: 3, headDim: 64, ffn: 1536, vocab: 49152 },
  tiny: { layers: 2, width: 64, heads: 4, kvHeads: 2, headDim: 32, ffn: 128, vocab: 256 },
};

/** The best of ROUNDS rounds of ROUND tokens: V8 takes about a hundred tokens to reach full speed. */
const ROUNDS = 8;
const ROUND = 16;
const TYPE = 'Q4_K';

export async function benchWebGpuE2e(options: Options): Promise<void> {
  const shape = shapes[options.shape];
  if (!shape)
    throw new InputError(`There is no shape "${options.shape}". Take one of: ${Object.keys(shapes).join(', ')}.`);
  const depths = options.depths.split(',').map(Number);
  const [batch, batchDepth] = options.batch.split('x').map(Number);
  const [prompt, chunk] = [options.prompt, options.chunk].map(Number);
  const device = await createWebGpuDevice({ ...shape, pageTokens: 128 });
  const model = randomModel(device, shape, Math.max(chunk, batch));
  const lines: string[][] = [];
  for (const kv of options.kv.split(',')) {
    // One plan for all sequences, so that they share dispatches.
    const cache = { kv, plan: createPlan(kv, shape) };
    const ms: number[] = [];
    for (const depth of depths) ms.push(await decode(device, model, cache, 1, depth, options.breakdown));
    const together = await decode(device, model, cache, batch, batchDepth, options.breakdown);
    const prefill = await prefillTime(device, model, cache, prompt, chunk, options.breakdown);
    lines.push([
      kv,
      ...ms.map(x => x.toFixed(2)),
      ((1000 * batch) / together).toFixed(0),
      ((1000 * prompt) / prefill).toFixed(0),
    ]);
  }
  const header = [
    'kv',
    ...depths.map(depth => `ms at ${depth}`),
    `tokens/s at ${options.batch}`,
    `prefill of ${prompt}/s`,
  ];
  if (options.json)
    console.log(JSON.stringify({ adapter: device.info.name, shape: options.shape, header, lines }, null, 1));
  else
    console.log(
      `${options.shape}, random ${TYPE} weights, on ${device.info.name}. Best of ${ROUNDS} rounds of ${ROUND} tokens.\n${formatTable(header, lines)}`,
    );
  await device.dispose();
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

function randomModel(device: WebGpuDevice, shape: ModelShape, rows: number): Model {
  const { width, heads, kvHeads, headDim, ffn, vocab, layers } = shape;
  const matrix = (outs: number, cols: number) => device.randomWeights(TYPE, outs, cols);
  const ones = () => {
    const tensor = device.createTensor(1, width);
    device.writeRows(tensor, 0, new Float32Array(width).fill(1));
    return tensor;
  };
  const weights: ModelWeights = {
    embedding: matrix(vocab, width),
    outputHead: matrix(vocab, width),
    outputNorm: ones(),
    layers: Array.from({ length: layers }, () => ({
      attentionNorm: ones(),
      q: matrix(heads * headDim, width),
      k: matrix(kvHeads * headDim, width),
      v: matrix(kvHeads * headDim, width),
      attentionOutput: matrix(width, heads * headDim),
      ffnNorm: ones(),
      gate: matrix(ffn, width),
      up: matrix(ffn, width),
      down: matrix(width, ffn),
    })),
  };
  const config = {
    ...shape,
    normEps: 1e-5,
    attentionScale: 1 / Math.sqrt(headDim),
    rope: { dims: headDim },
  } as unknown as ModelConfig;
  const frequencies = Float64Array.from({ length: headDim / 2 }, (_, i) => 500000 ** ((-2 * i) / headDim));
  const rope = { frequencies, magnitude: 1 };
  return { config, weights, rope, scratch: createScratch(device, config, rows) };
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

/** Milliseconds per token. Each pass is recorded while the one before runs, as in generation. */
async function decode(
  device: WebGpuDevice,
  model: Model,
  { kv, plan }: Cache,
  batch: number,
  depth: number,
  breakdown: boolean,
): Promise<number> {
  const sequences = Array.from({ length: batch }, () => opened(device, model.config, plan, depth, ROUNDS * ROUND + 2));
  let pass = await begin(device, model, sequences, 1);
  await pass.ended;
  let best = Number.POSITIVE_INFINITY;
  let recorded = Number.POSITIVE_INFINITY;
  for (let round = 0; round < ROUNDS; round++) {
    const start = performance.now();
    for (let i = 0; i < ROUND; i++) {
      const next = await begin(device, model, sequences, 1, { given: pass.handles });
      await pass.ended;
      pass = next;
      recorded = Math.min(recorded, pass.recorded);
    }
    await pass.ended;
    best = Math.min(best, (performance.now() - start) / ROUND);
  }
  if (breakdown) {
    const title = `${kv}, ${batch} x ${depth}`;
    console.log(`${title}: ${best.toFixed(2)} ms; of which the CPU records for ${recorded.toFixed(2)} ms`);
    await showBreakdown(title, device, async () => (await begin(device, model, sequences, 1)).ended);
  }
  for (const sequence of sequences) sequence.dispose();
  return best;
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

async function showBreakdown(title: string, device: WebGpuDevice, work: () => Promise<void>): Promise<void> {
  const start = performance.now();
  const found = await device.gpu.timeDispatches(work);
  const wall = performance.now() - start;
  const kinds = new Map<string, { count: number; ns: number }>();
  for (const { name, ns } of found) {
    const kind = kinds.get(name) ?? { count: 0, ns: 0 };
    kinds.set(name, { count: kind.count + 1, ns: kind.ns + ns });
  }
  const sum = found.reduce((total, { ns }) => total + ns, 0);
  const lines = [...kinds]
    .sort(([, a], [, b]) => b.ns - a.ns)
    .map(([name, { count, ns }]) => [
      name.length > 60 ? `${name.slice(0, 57)}...` : name,
      String(count),
      (ns / 1e6).toFixed(3),
      (ns / 1e3 / count).toFixed(1),
    ]);
  console.log(
    `${title}: ${found.length} dispatches, ${(sum / 1e6).toFixed(2)} ms; ${wall.toFixed(2)} ms with one pass each`,
  );
  console.log(formatTable(['kernel', 'dispatches', 'ms', 'us each'], lines));
}

/** A pass over `count` tokens of each sequence, or over the token `given`; samples greedily. */
async function begin(
  device: WebGpuDevice,
  model: Model,
  sequences: readonly Sequence[],
  count: number,
  { given, logits = 'last' }: { given?: readonly number[]; logits?: Chunk['logits'] } = {},
): Promise<Pass> {
  const { config, weights, rope, scratch } = model;
  const fixed = Array.from({ length: count }, (_, i) => (i * 7919) % config.vocab);
  const sampling = { temperature: 0, topK: 0, topP: 1, minP: 0, random: 0 };
  const chunks = sequences.map((sequence, i): Chunk => {
    return { sequence, tokens: given ? [given[i]] : fixed, logits, sampling };
  });
  const handles: number[] = [];
  const start = performance.now();
  const { delivered } = await forward(device, config, weights, rope, scratch, chunks, {
    onLogits() {},
    onToken() {},
    onHandle: (_chunk, name) => handles.push(name),
  });
  return { recorded: performance.now() - start, handles, ended: delivered };
}
