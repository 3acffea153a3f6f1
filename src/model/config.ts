/**
 * Reads a model's configuration from its metadata and checks it against its tensors. A model that would not run
 * correctly is rejected here: an unsupported architecture, or a missing, misshapen or unknown tensor.
 */
import type { RoutingRule } from '../kernel/device.ts';
import { FormatError, UnsupportedError } from '../util/errors.ts';
import { type Architecture, architectures, supportedArchitectures, type Traits } from './architectures.ts';
import { type Gguf, readTensorAsFloat32, requireTensor } from './gguf.ts';
import { quote } from './gguf-header.ts';
import { readLayerRopes, readLocalRope, readWindows } from './layer-kinds.ts';
import { createMetadataReader, type MetadataReader } from './metadata-reader.ts';
import type { ExpertsConfig, ModelConfig } from './model-config.ts';
import {
  checkFrequencyFactors,
  type RopeConfig,
  type RopeFrequencies,
  type RopeScaling,
  ropeFrequencies,
} from './rope.ts';
import { checkTensors } from './tensor-shapes.ts';
import { unsupportedArchitectures } from './unsupported-architectures.ts';

const MAX_DEFAULT_CONTEXT = 32768;

/** The max tokens per sequence, unless the caller wants another number. */
export const defaultContext = ({ context }: Pick<ModelConfig, 'context'>): number =>
  Math.min(context, MAX_DEFAULT_CONTEXT);

/**
 * Reads a model's config and checks that its metadata and tensors agree. `context`: max tokens per sequence, by which some
 * models choose their RoPE.
 */
export function readConfig(gguf: Pick<Gguf, 'metadata' | 'tensors'>, options: { context?: number } = {}): ModelConfig {
  const architecture = readArchitecture(gguf);
  const traits: Traits = architectures[architecture];
  const meta = createMetadataReader(gguf.metadata, `${architecture}.`);
  rejectUnsupported(meta, traits);

  const blocks = meta.integer('block_count', { max: 4096 });
  const layers = blocks - readPredictorLayers(meta, traits, blocks);
  const width = meta.integer('embedding_length', { max: 2 ** 20 });
  const heads = meta.integer('attention.head_count', { max: 2 ** 14, layers });
  const kvHeads = meta.integer('attention.head_count_kv', { max: 2 ** 14, layers, fallback: heads });
  if (heads % kvHeads !== 0) meta.fail(`${heads} query heads cannot share ${kvHeads} key-value heads evenly`);
  const headDim = readHeadDim(meta, width, heads);
  const experts = readExperts(meta, traits, layers, gguf.tensors);
  const ffn = experts?.denseLayers === 0 ? experts.ffn : readInnerWidth(meta, layers);
  const context = meta.integer('context_length', { max: 2 ** 31 - 1 });
  const loaded = options.context ?? defaultContext({ context });
  const scales = readScales(meta, traits, { layers, width });
  const rope: RopeConfig = {
    base: meta.float('rope.freq_base', { min: 1.001, max: 1e15, fallback: 10000 }),
    dims: readRopeDims(meta, headDim),
    pairing: traits.pairing,
    scaling: readRopeScaling(meta, traits, context),
    attnFactor: meta.float('rope.scaling.attn_factor', { min: 1e-3, max: 1e3, fallback: 1 }),
    factors: findRopeFactors(meta, traits, { trained: context, loaded }, gguf.tensors),
    sharpening: readSharpening(meta, context),
  };
  // Only rotated dims can be made larger with the rotation.
  if (rope.sharpening && rope.dims < headDim) meta.unsupported('attention.temperature_scale with a partial RoPE');
  const attentionWindows = readWindows(meta, traits, layers);
  const has = (tensor: string) => gguf.tensors.has(`blk.0.${tensor}`);

  const config: ModelConfig = {
    architecture,
    name: readName(gguf),
    layers,
    width,
    heads,
    kvHeads,
    headDim,
    ffn,
    experts,
    vocab: readVocabSize(gguf),
    context,
    normEps: meta.float('attention.layer_norm_rms_epsilon', { min: 0, max: 1 }) / scales.residual ** 2,
    // Some files write zero for the default.
    attentionScale:
      meta.float('attention.scale', { min: 0, max: 1e3, fallback: 0 }) ||
      1 / Math.sqrt(layers === traits.scoresByWidthAt ? width / heads : headDim),
    attentionSoftcap: readSoftcap(meta, 'attn_logit_softcapping', traits.softcaps?.attention),
    logitSoftcap: readSoftcap(meta, 'final_logit_softcapping', traits.softcaps?.logits),
    embeddingScale: scales.embedding / scales.residual,
    logitScale: scales.logits,
    rope,
    localRope: readLocalRope(meta, traits, rope),
    layerRopes: readLayerRopes(meta, traits, attentionWindows),
    attentionWindows,
    qkvBias: traits.bias !== undefined || has('attn_q.bias') || has('attn_qkv.bias'),
    attentionOutputBias: traits.bias === 'everywhere' || has('attn_output.bias'),
    feedForwardBias: traits.bias === 'everywhere' || has('ffn_up.bias'),
    sinkLogits: traits.sinkLogits ?? false,
    qkNorm: traits.qkNorm !== 'optional' ? traits.qkNorm : has('attn_q_norm.weight') ? 'head' : undefined,
    ropeFirst: traits.ropeFirst ?? false,
    norms: traits.norms ?? 'inputs',
    ffnNorm: traits.ffnNorm ?? 'ffn_norm',
    activation: traits.activation ?? 'silu',
    fusedQkv: has('attn_qkv.weight'),
    fusedGateUp: traits.fusedGateUp ?? false,
    tiedOutput: !gguf.tensors.has('output.weight'),
  };
  checkTensors(config, gguf.tensors);
  return config;
}

/** The model's RoPE frequencies, with the file's frequency factors, if any. */
export async function readRopeFrequencies(gguf: Gguf, { rope, localRope }: ModelConfig): Promise<RopeFrequencies> {
  const local = localRope && ropeFrequencies(localRope);
  if (!rope.factors) return { ...ropeFrequencies(rope), local };
  const factors = await readTensorAsFloat32(gguf, requireTensor(gguf, rope.factors));
  return { ...ropeFrequencies(rope, checkFrequencyFactors(factors, rope.factors)), local };
}

function readArchitecture({ metadata }: Pick<Gguf, 'metadata'>): Architecture {
  const name = metadata.get('general.architecture');
  if (typeof name !== 'string') throw new FormatError('The file has no general.architecture. Is it a model?');
  if (!Object.hasOwn(architectures, name)) {
    const reason = unsupportedArchitectures.get(name);
    throw new UnsupportedError(
      `The architecture ${quote(name)} is not supported${reason ? `: ${reason}` : ''}. ` +
        `Use a model of one of these: ${supportedArchitectures.join(', ')}.`,
    );
  }
  const kind = metadata.get('general.type') ?? 'model';
  if (kind !== 'model')
    throw new UnsupportedError(`The file contains ${quote(String(kind))}, not a model. Pass the model file.`);
  return name as Architecture;
}

const readName = ({ metadata }: Pick<Gguf, 'metadata'>): string => {
  const name = metadata.get('general.name');
  return typeof name === 'string' ? name.slice(0, 200) : 'unnamed';
};

/** The number of rows in the embedding; the token list, if there is one, must have the same length. */
function readVocabSize({ metadata, tensors }: Pick<Gguf, 'metadata' | 'tensors'>): number {
  const vocab = requireTensor({ tensors }, 'token_embd.weight').shape[1] ?? 1;
  const tokens = metadata.get('tokenizer.ggml.tokens');
  if (tokens !== undefined && (!Array.isArray(tokens) || tokens.length !== vocab))
    throw new FormatError(
      `The vocabulary has ${Array.isArray(tokens) ? tokens.length : 'no list of'} tokens, but token_embd.weight has ${vocab} rows.`,
    );
  return vocab;
}

function readHeadDim(meta: MetadataReader, width: number, heads: number): number {
  const quotient = width % heads === 0 ? width / heads : undefined;
  const headDim = meta.integer('attention.key_length', { max: 4096, fallback: quotient });
  const valueDim = meta.integer('attention.value_length', { max: 4096, fallback: quotient ?? headDim });
  if (headDim !== valueDim) meta.unsupported(`keys of ${headDim} and values of ${valueDim} dimensions per head`);
  if (headDim % 2 !== 0) meta.fail(`the head dimension ${headDim} is odd, but RoPE rotates pairs`);
  return headDim;
}

const SELECTION_BIASES = ['exp_probs_b.bias', 'exp_probs_b'] as const;

/** llama.cpp's numbers for how experts are scored. */
const SCORES: Record<number, ExpertsConfig['routing']['scores']> = { 1: 'softmax', 2: 'sigmoid' };

function readExperts(
  meta: MetadataReader,
  { experts }: Traits,
  layers: number,
  tensors: Gguf['tensors'],
): ExpertsConfig | undefined {
  const isDense = !meta.value('expert_count');
  if (!experts && !isDense) meta.unsupported('a mixture of experts');
  if (!experts || (isDense && experts.in === 'some')) return undefined;
  const count = meta.integer('expert_count', { max: 4096 });
  const used = meta.integer('expert_used_count', { max: count });
  // Zero is the default of these keys.
  const orZero = (key: string, max: number) => (meta.value(key) ? meta.integer(key, { max }) : 0);
  if (orZero('interleave_moe_layer_step', 4096) > 1) meta.unsupported('experts in every other layer');
  const denseLayers = orZero('leading_dense_block_count', layers) || layersWithoutRouter(layers, tensors);
  if (denseLayers === layers) meta.fail(`all ${layers} layers are dense`);
  const scoring = orZero('expert_gating_func', 255);
  const scores = scoring === 0 ? (experts.scores ?? 'softmax') : SCORES[scoring];
  if (!scores) meta.unsupported(`experts scored by function ${scoring}`);
  const sharedTensor = `blk.${denseLayers}.ffn_up_shexp.weight`;
  const shared = tensors.get(sharedTensor);
  if (experts.gatesShared && !shared) meta.fail(`there is no tensor ${sharedTensor}`);
  return {
    count,
    used,
    ffn: readInnerWidth(meta, layers, 'expert_feed_forward_length'),
    denseLayers,
    routing: {
      scores,
      normalized: meta.boolean('expert_weights_norm', !experts.unnormalized),
      // Some files write zero for the default.
      scale: meta.float('expert_weights_scale', { min: 0, max: 1e6, fallback: 0 }) || 1,
      ...readGroups(meta, count, used),
    },
    selectionBias: SELECTION_BIASES.find(name => tensors.has(`blk.${denseLayers}.${name}`)),
    // Files write its width, or the number of shared experts, whose widths add up, in several ways.
    ...(shared && { shared: { ffn: shared.shape[1] ?? 1, gated: experts.gatesShared ?? false } }),
  };
}

/** How many layers are before the first one with a router, if there is one. */
function layersWithoutRouter(layers: number, tensors: Gguf['tensors']): number {
  for (let layer = 0; layer < layers; layer++) if (tensors.has(`blk.${layer}.ffn_gate_inp.weight`)) return layer;
  return 0;
}

/** A single group is as good as none. */
function readGroups(meta: MetadataReader, experts: number, usedExperts: number): Pick<RoutingRule, 'groups'> {
  const key = 'expert_group_count';
  const count = meta.value(key) ? meta.integer(key, { max: experts }) : 1;
  if (count === 1) return {};
  const used = meta.integer('expert_group_used_count', { max: count });
  const size = experts / count;
  if (!Number.isInteger(size) || size < 2) meta.fail(`${experts} experts are not ${count} groups of two or more`);
  if (used * size < usedExperts) meta.fail(`${used} groups of ${size} experts are not ${usedExperts} experts`);
  return used === count ? {} : { groups: { count, used } };
}

/** Some architectures write the width of an expert apart from that of a dense network. */
function readInnerWidth(meta: MetadataReader, layers: number, key = 'feed_forward_length'): number {
  const given = meta.value(key) === undefined ? 'feed_forward_length' : key;
  return meta.integer(given, { max: 2 ** 24, layers });
}

function readRopeDims(meta: MetadataReader, headDim: number): number {
  const dims = meta.integer('rope.dimension_count', { max: headDim, fallback: headDim });
  if (dims % 2 !== 0) meta.fail(`rope.dimension_count must be even, not ${dims}`);
  return dims;
}

function readSharpening(meta: MetadataReader, context: number): RopeConfig['sharpening'] {
  const scale = meta.float('attention.temperature_scale', { min: 0, max: 1e3, fallback: 0 });
  return scale > 0 ? { scale, originalContext: readOriginalContext(meta, context) } : undefined;
}

const readOriginalContext = (meta: MetadataReader, context: number): number =>
  meta.integer('rope.scaling.original_context_length', { max: 2 ** 31 - 1, fallback: context });

const NO_SCALES = { embedding: 1, residual: 1, logits: 1 };

/**
 * Factors of embeddings, of what layers add to the residual stream, and of logits. Only the first and the last are needed
 * in a pass: the stream divided by the second has the same norms, if their epsilon is divided by its square.
 */
function readScales(
  meta: MetadataReader,
  { scales, scaledEmbedding }: Traits,
  { layers, width }: { layers: number; width: number },
): { embedding: number; residual: number; logits: number } {
  if (!scales) return { embedding: scaledEmbedding ? Math.sqrt(width) : 1, residual: 1, logits: 1 };
  // The first MiniCPM was converted before there were keys for its scales.
  const defaults =
    scales === 'minicpm' ? { embedding: 12, residual: 1.4 / Math.sqrt(layers), logits: width / 256 } : NO_SCALES;
  // Some files write zero for no scale.
  const scale = (key: string, fallback: number) =>
    meta.value(key) === 0 ? 1 : meta.float(key, { min: 1e-4, max: 1e6, fallback });
  return {
    embedding: scale('embedding_scale', defaults.embedding),
    residual: scale('residual_scale', defaults.residual),
    logits: 1 / scale('logit_scale', defaults.logits),
  };
}

const readSoftcap = (meta: MetadataReader, key: string, fallback: number | undefined): number =>
  fallback === undefined ? 0 : meta.float(key, { min: 0, max: 1e6, fallback });

/** The tensor with a divisor per RoPE frequency. LongRoPE has one for sequences up to the original context, and another. */
function findRopeFactors(
  meta: MetadataReader,
  { ropeFactors, longRope }: Traits,
  context: { trained: number; loaded: number },
  tensors: Gguf['tensors'],
): string | undefined {
  if (longRope && tensors.has('rope_factors_long.weight'))
    return `rope_factors_${context.loaded > readOriginalContext(meta, context.trained) ? 'long' : 'short'}.weight`;
  return ropeFactors && tensors.has('rope_freqs.weight') ? 'rope_freqs.weight' : undefined;
}

/** Like llama.cpp: a factor without a type is linear, and a factor of zero means no scaling. */
function readRopeScaling(meta: MetadataReader, { longRope }: Traits, context: number): RopeScaling {
  const type = meta.string('rope.scaling.type') ?? 'linear';
  const oldFactor = meta.float('rope.scale_linear', { min: 0, max: 1e6, fallback: 0 });
  const factor = meta.float('rope.scaling.factor', { min: 0, max: 1e6, fallback: oldFactor }) || 1;
  // LongRoPE is in the factors of the frequencies.
  if (longRope && type === 'longrope') return { type: 'none' };
  if (type === 'none' || (type === 'linear' && factor === 1)) return { type: 'none' };
  if (type === 'linear') return { type, factor };
  if (type !== 'yarn') return meta.unsupported(`the RoPE scaling ${quote(type)}; none, linear and yarn are supported`);
  // Converters also write yarn_attn_factor, which is the sharpening that follows from the factor, and yarn_ext_factor.
  // Like llama.cpp, this computes the first and does not read the second.
  return {
    type,
    factor,
    originalContext: readOriginalContext(meta, context),
    betaFast: meta.float('rope.scaling.yarn_beta_fast', { min: 1e-3, max: 1e6, fallback: 32 }),
    betaSlow: meta.float('rope.scaling.yarn_beta_slow', { min: 1e-3, max: 1e6, fallback: 1 }),
    logMultiplier: meta.float('rope.scaling.yarn_log_multiplier', { min: 0, max: 1e3, fallback: 0 }),
  };
}

/** Layers at the end of the file that predict further tokens: they are not loaded. */
function readPredictorLayers(meta: MetadataReader, { skipsPredictors }: Traits, blocks: number): number {
  const key = 'nextn_predict_layers';
  if (!meta.value(key)) return 0;
  if (!skipsPredictors) meta.unsupported('layers that predict further tokens');
  const layers = meta.integer(key, { max: blocks });
  return layers < blocks ? layers : meta.fail(`all ${blocks} layers predict further tokens`);
}

/** Rejects features that some models of these architectures have, which would otherwise be ignored silently. */
function rejectUnsupported(meta: MetadataReader, { ignoresWindow, fullEvery }: Traits): void {
  if (meta.value('attention.causal') === false) meta.unsupported('non-causal attention');
  if (meta.value('attention.sliding_window') && !ignoresWindow && !fullEvery)
    meta.unsupported('sliding window attention');
}
