/**
 * Reads a model's configuration from its metadata and checks it against its tensors. A model that would not run
 * correctly is rejected here: an unsupported architecture, or a missing, misshapen or unknown tensor.
 */
import { FormatError, UnsupportedError } from '../util/errors.ts';
import { type Gguf, readTensorAsFloat32, requireTensor } from './gguf.ts';
import { quote } from './gguf-header.ts';
import { createMetadataReader, type MetadataReader } from './metadata-reader.ts';
import {
  checkFrequencyFactors,
  type RopeConfig,
  type RopeFrequencies,
  type RopeScaling,
  ropeFrequencies,
} from './rope.ts';
import { checkTensors } from './tensor-shapes.ts';

/** How the supported architectures differ; otherwise they are the same network. */
const architectures = {
  /** Llama 2 and 3, Mistral, SmolLM2. */
  llama: { pairing: 'adjacent', bias: 'optional', qkNorm: false, ropeFactors: true },
  qwen2: { pairing: 'halves', bias: 'always', qkNorm: false, ropeFactors: false },
  qwen3: { pairing: 'halves', bias: 'never', qkNorm: true, ropeFactors: false },
} as const;

export type Architecture = keyof typeof architectures;
export const supportedArchitectures = Object.keys(architectures) as Architecture[];

export interface ModelConfig {
  readonly architecture: Architecture;
  readonly name: string;
  readonly layers: number;
  /** Hidden size: length of the residual stream (d_model). */
  readonly width: number;
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  /** Inner width of the feed-forward network. */
  readonly ffn: number;
  /** Tokens in the vocabulary. */
  readonly vocab: number;
  /** Context length that the model was trained for, in tokens. */
  readonly context: number;
  readonly normEps: number;
  /** Factor of the attention scores: 1 / sqrt(headDim), unless the file overrides it. */
  readonly attentionScale: number;
  readonly rope: RopeConfig;
  /** Q, K and V have biases. */
  readonly qkvBias: boolean;
  /** Queries and keys are RMS-normalized per head, before RoPE. */
  readonly qkNorm: boolean;
  /** The embedding matrix is also the output head. */
  readonly tiedOutput: boolean;
}

/** Reads a model's config and checks that its metadata and tensors agree. */
export function readConfig(gguf: Pick<Gguf, 'metadata' | 'tensors'>): ModelConfig {
  const architecture = readArchitecture(gguf);
  const traits = architectures[architecture];
  const meta = createMetadataReader(gguf.metadata, `${architecture}.`);
  rejectUnsupported(meta);

  const layers = meta.integer('block_count', { max: 4096 });
  const width = meta.integer('embedding_length', { max: 2 ** 20 });
  const heads = meta.integer('attention.head_count', { max: 2 ** 14, layers });
  const kvHeads = meta.integer('attention.head_count_kv', { max: 2 ** 14, layers, fallback: heads });
  if (heads % kvHeads !== 0) meta.fail(`${heads} query heads cannot share ${kvHeads} key-value heads evenly`);
  const headDim = readHeadDim(meta, width, heads);
  const ffn = meta.integer('feed_forward_length', { max: 2 ** 24, layers });
  const context = meta.integer('context_length', { max: 2 ** 31 - 1 });

  const config: ModelConfig = {
    architecture,
    name: readName(gguf),
    layers,
    width,
    heads,
    kvHeads,
    headDim,
    ffn,
    vocab: readVocabSize(gguf),
    context,
    normEps: meta.float('attention.layer_norm_rms_epsilon', { min: 0, max: 1 }),
    // Some files write zero for the default.
    attentionScale: meta.float('attention.scale', { min: 0, max: 1e3, fallback: 0 }) || 1 / Math.sqrt(headDim),
    rope: {
      base: meta.float('rope.freq_base', { min: 1.001, max: 1e15, fallback: 10000 }),
      dims: readRopeDims(meta, headDim),
      pairing: traits.pairing,
      scaling: readRopeScaling(meta, context),
      attnFactor: readAttnFactor(meta),
      hasFactors: traits.ropeFactors && gguf.tensors.has('rope_freqs.weight'),
    },
    qkvBias: traits.bias === 'always' || (traits.bias === 'optional' && gguf.tensors.has('blk.0.attn_q.bias')),
    qkNorm: traits.qkNorm,
    tiedOutput: !gguf.tensors.has('output.weight'),
  };
  checkTensors(config, gguf.tensors);
  return config;
}

/** The model's RoPE frequencies, with the file's frequency factors, if any. */
export async function readRopeFrequencies(gguf: Gguf, { rope }: ModelConfig): Promise<RopeFrequencies> {
  if (!rope.hasFactors) return ropeFrequencies(rope);
  return ropeFrequencies(
    rope,
    checkFrequencyFactors(await readTensorAsFloat32(gguf, requireTensor(gguf, 'rope_freqs.weight'))),
  );
}

function readArchitecture({ metadata }: Pick<Gguf, 'metadata'>): Architecture {
  const name = metadata.get('general.architecture');
  if (typeof name !== 'string') throw new FormatError('The file has no general.architecture. Is it a model?');
  if (!Object.hasOwn(architectures, name))
    throw new UnsupportedError(
      `The architecture ${quote(name)} is not supported. Use a model of one of these: ${supportedArchitectures.join(', ')}.`,
    );
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

function readRopeDims(meta: MetadataReader, headDim: number): number {
  const dims = meta.integer('rope.dimension_count', { max: headDim, fallback: headDim });
  if (dims % 2 !== 0) meta.fail(`rope.dimension_count must be even, not ${dims}`);
  return dims;
}

/** Like llama.cpp: a factor without a type is linear, and a factor of zero means no scaling. */
function readRopeScaling(meta: MetadataReader, context: number): RopeScaling {
  const type = meta.string('rope.scaling.type') ?? 'linear';
  const oldFactor = meta.float('rope.scale_linear', { min: 0, max: 1e6, fallback: 0 });
  const factor = meta.float('rope.scaling.factor', { min: 0, max: 1e6, fallback: oldFactor }) || 1;
  if (type === 'none' || (type === 'linear' && factor === 1)) return { type: 'none' };
  if (type === 'linear') return { type, factor };
  if (type !== 'yarn') return meta.unsupported(`the RoPE scaling ${quote(type)}; none, linear and yarn are supported`);
  const extFactor = meta.float('rope.scaling.yarn_ext_factor', { min: -1, max: 1, fallback: 1 });
  return {
    type,
    factor,
    originalContext: meta.integer('rope.scaling.original_context_length', { max: 2 ** 31 - 1, fallback: context }),
    betaFast: meta.float('rope.scaling.yarn_beta_fast', { min: 1e-3, max: 1e6, fallback: 32 }),
    betaSlow: meta.float('rope.scaling.yarn_beta_slow', { min: 1e-3, max: 1e6, fallback: 1 }),
    // Negative means unset.
    extFactor: extFactor < 0 ? 1 : extFactor,
  };
}

function readAttnFactor(meta: MetadataReader): number {
  const yarn = meta.float('rope.scaling.yarn_attn_factor', { min: 1e-3, max: 1e3, fallback: 1 });
  return meta.float('rope.scaling.attn_factor', { min: 1e-3, max: 1e3, fallback: yarn });
}

/** Rejects features that some models of these architectures have, which would otherwise be ignored silently. */
function rejectUnsupported(meta: MetadataReader): void {
  if (meta.value('expert_count')) meta.unsupported('a mixture of experts');
  if (meta.value('attention.causal') === false) meta.unsupported('non-causal attention');
  if (meta.value('attention.sliding_window')) meta.unsupported('sliding window attention');
}
