/**
 * A test of a GPU before a model is loaded onto it: WebGPU is known to return wrong numbers on some machines, without an
 * error. A layer with random weights, but with the heads, codecs and weight types of the real model, runs there and on the js
 * device, with a cache of random keys and values: some rows of a prompt, then single tokens. The results must agree.
 */
import { createSequence } from '../cache/create-sequence.ts';
import { leafLayout } from '../cache/leaf.ts';
import { createRandom, normals } from '../codec/parts/random.ts';
import type { Device, KvLayer } from '../kernel/device.ts';
import { dequantize } from '../kernel/weights/dequantize.ts';
import { type WeightType, weightBytes, weightFormats } from '../kernel/weights/types.ts';
import type { Chunk } from '../model/batch.ts';
import { forward, type LoadedModel, restoreKeysAndValues } from '../model/forward.ts';
import { type Gguf, requireTensor } from '../model/gguf.ts';
import type { ExpertsConfig, ModelConfig } from '../model/model-config.ts';
import { createScratch } from '../model/scratch.ts';
import { bytesSource } from '../model/source.ts';
import { tensorShapes } from '../model/tensor-shapes.ts';
import { loadWeights } from '../model/weights.ts';
import type { Plan } from '../plan/plan.ts';
import { GREEDY } from './warm-up.ts';

/** Of the residual stream and of the feed-forward network: one superblock of K-quants. */
const WIDTH = 256;
const VOCAB = 128;
const EXPERTS = 4;
/** More than attention reads at once: what it computes from several parts must be combined. */
const PAGES = 5;
const PROMPT = 24;
/** Two decoded tokens: one whose logits are compared, and one that the device samples. */
const DECODED = 2;
/**
 * Of a row of attention or logits, relative to its norm. Activations in int8, which js has in floats, make up to .04; a
 * wrong operation makes .6 and more.
 */
const TOLERANCE = 0.2;

interface TestedModel {
  readonly gguf: Pick<Gguf, 'tensors'>;
  readonly config: ModelConfig;
  readonly rope: LoadedModel['rope'];
}

/** What is wrong with the device's results; undefined: nothing. */
export async function selfTest(device: Device, model: TestedModel, plan: Plan): Promise<string | undefined> {
  // Loaded on use, as in kernel/open.ts: a page that has it twice would load it from two files.
  const { createJsDevice } = await import('../kernel/js/device.ts');
  for (const layer of differentLayers(plan.leaf.layers, model.config)) {
    const small = smallModel(model, plan, layer);
    const expected = await run(createJsDevice(), small);
    const found = await run(device, small);
    for (const what of ['attention', 'logits'] as const) {
      const rows = found[what];
      // NaN is wrong too.
      const wrong = rows.filter((row, i) => !(relativeError(row, expected[what][i]) <= TOLERANCE)).length;
      if (wrong > 0) return `the ${what} of ${wrong} of ${rows.length} tokens of a test model differ from those of js`;
    }
    if (found.token === undefined) continue;
    const last = expected.logits[expected.logits.length - 1];
    const isLikely = last[found.token] >= last.reduce((a, b) => Math.max(a, b)) - TOLERANCE * rms(last);
    if (!isLikely) return 'it samples a token that is not the likeliest one';
  }
  return undefined;
}

/** One layer of each kind of page and of feed-forward network. */
function differentLayers(layers: readonly KvLayer[], { experts }: ModelConfig): number[] {
  const kinds = layers.map(({ keys, values, window }, layer) =>
    [keys.layout.encoding.kind, values.layout.encoding.kind, window, experts && layer < experts.denseLayers].join(),
  );
  return [...new Set(kinds)].map(kind => kinds.indexOf(kind));
}

interface SmallModel {
  readonly gguf: Gguf;
  readonly config: ModelConfig;
  readonly rope: LoadedModel['rope'];
  readonly plan: Plan;
}

/** A model of one layer. */
function smallModel({ gguf, config, rope }: TestedModel, plan: Plan, layer: number): SmallModel {
  const { experts, layerRopes, attentionWindows, attentionSoftcap, logitSoftcap } = config;
  const small: ModelConfig = {
    ...{ ...config, layers: 1, width: WIDTH, ffn: WIDTH, vocab: VOCAB },
    ...{ layerRopes: [layerRopes[layer]], attentionWindows: [attentionWindows[layer]] },
    // Low enough to make a difference.
    ...{ attentionSoftcap: Math.min(1, attentionSoftcap), logitSoftcap: Math.min(1, logitSoftcap) },
    // Every row uses all experts, since rounding may choose others.
    experts: experts && layer >= experts.denseLayers ? smallExperts(experts) : undefined,
  };
  const typeOf = (name: string) => requireTensor(gguf, name.replace(/^blk\.0\./, `blk.${layer}.`)).type;
  const leaf = leafLayout([plan.leaf.layers[layer]], { windows: small.attentionWindows });
  return { gguf: randomFile(small, typeOf), config: small, rope, plan: { ...plan, leaf } };
}

const smallExperts = ({ routing: { groups: _, ...routing }, ...experts }: ExpertsConfig): ExpertsConfig => ({
  ...{ ...experts, routing, denseLayers: 0, count: EXPERTS, used: EXPERTS, ffn: WIDTH },
  shared: experts.shared && { ...experts.shared, ffn: WIDTH },
});

/** A model file with random weights: vectors of size 1, and matrices that keep the size of what they multiply. */
function randomFile(config: ModelConfig, typeOf: (name: string) => WeightType): Gguf {
  const tensors = new Map<string, ReturnType<typeof requireTensor>>();
  const shards: Gguf['shards'][number][] = [];
  for (const [name, ...shape] of tensorShapes(config)) {
    const type = typeOf(name);
    const data = randomWeights(type, shape);
    tensors.set(name, { name, type, shape, offset: 0, bytes: data.length, shard: shards.length });
    shards.push(bytesSource(data));
  }
  return { metadata: new Map(), tensors, shards, close: async () => {} };
}

/** Random bytes, of which only the blocks are kept whose values have about the right size. */
function randomWeights(type: WeightType, shape: readonly number[]): Uint8Array {
  const random = createRandom(shape.length);
  const values = shape.reduce((a, b) => a * b);
  const size = shape.length === 1 ? 1 : 1 / Math.sqrt(shape[0]);
  const block = new Uint8Array(weightFormats[type].bytes);
  const floats = new Float32Array(weightFormats[type].block);
  const blocks: Uint8Array[] = [];
  while (blocks.length < DIFFERENT_BLOCKS) {
    for (let i = 0; i < block.length; i++) block[i] = random.uint32();
    dequantize(type, block, floats);
    const ratio = rms(floats) / size;
    if (ratio > 0.5 && ratio < 1.5) blocks.push(block.slice());
  }
  const bytes = new Uint8Array(weightBytes(type, values));
  for (let at = 0; at < bytes.length; at += block.length) bytes.set(blocks[random.uint32() % DIFFERENT_BLOCKS], at);
  return bytes;
}

const DIFFERENT_BLOCKS = 64;

/** Of each token. */
interface Results {
  readonly attention: Float32Array[];
  /** Without the last one, if the device sampled it. */
  readonly logits: Float32Array[];
  /** The token that the device sampled at the end. */
  readonly token: number | undefined;
}

async function run(device: Device, { gguf, config, rope, plan }: SmallModel): Promise<Results> {
  const { headDim, kvHeads } = config;
  const { pageTokens, window, leaf } = plan;
  const weights = await loadWeights(gguf, config, device);
  await device.loadCodecs?.(leaf.layers);
  const [keys, values] = randomHistory(PAGES * pageTokens, pageTokens, kvHeads * headDim);
  const scratch = createScratch(device, config, PROMPT);
  const model: LoadedModel = { device, config, weights, rope, scratch };
  const passes = async (): Promise<Results> => {
    const attention: Float32Array[] = [];
    const logits: Float32Array[] = [];
    let token: number | undefined;
    const hooks = {
      onLogits: (_chunk: Chunk, _row: number, row: Float32Array) => void logits.push(row),
      onToken: (_chunk: Chunk, id?: number) => {
        token = id;
      },
    };
    const shape = { headDim, kvHeads, pageTokens, sinks: window.sink };
    const context = PAGES * pageTokens + PROMPT + DECODED;
    const sequence = createSequence({ device, leaf, shape, recent: 0, context });
    await restoreKeysAndValues(device, scratch, sequence, 0, [keys], [values]);
    const add = async (count: number, rest: Pick<Chunk, 'logits' | 'sampling'>) => {
      const tokens = Array.from({ length: count }, (_, i) => (sequence.length + i) % VOCAB);
      const { delivered } = await forward(model, [{ sequence, tokens, ...rest }], hooks);
      // Asked for together, they are read back at once.
      attention.push(...(await Promise.all(tokens.map((_, row) => device.readRows(scratch.attention, row)))));
      await delivered;
    };
    await add(PROMPT, { logits: 'all' });
    await add(1, { logits: 'last' });
    await add(1, { logits: 'last', sampling: GREEDY });
    sequence.dispose();
    return { attention, logits, token };
  };
  await device.warmUp?.(async () => void (await passes()));
  return passes();
}

/** Keys and values [token][dim]. The keys of each page have another mean, which codecs may store apart. */
function randomHistory(tokens: number, pageTokens: number, dims: number): [keys: Float32Array, values: Float32Array] {
  const random = createRandom(1);
  const keys = normals(random, tokens * dims);
  const means = normals(random, (tokens / pageTokens) * dims);
  const values = normals(random, tokens * dims);
  return [keys.map((x, i) => x + means[Math.floor(i / dims / pageTokens) * dims + (i % dims)]), values];
}

const rms = (x: Float32Array): number => Math.sqrt(x.reduce((sum, value) => sum + value * value, 0) / x.length);

const relativeError = (x: Float32Array, expected: Float32Array): number =>
  rms(x.map((value, i) => value - expected[i])) / rms(expected);
