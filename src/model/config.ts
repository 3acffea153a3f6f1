/**
 * What a model is: its metadata, checked, as the numbers that the forward pass needs. A file is refused here rather
 * than run wrongly: by name if we do not know its architecture, by tensor if one is missing, misshapen or unknown.
 */
import { FormatError, UnsupportedError } from '../errors.ts';
import { type Gguf, readFloats, tensorOf } from './gguf.ts';
import { quote } from './gguf-header.ts';
import { checkTensors } from './layout.ts';
import { type MetaReader, metaReader } from './metadata.ts';
import { checkFactors, type RopeConfig, type RopeFrequencies, type RopeScaling, ropeFrequencies } from './rope.ts';

/** What sets the architectures apart; in all else they are the same network. */
const architectures = {
  /** Llama 2 and 3, Mistral, SmolLM2. */
  llama: { pairing: 'adjacent', bias: 'optional', qkNorm: false, ropeFactors: true },
  qwen2: { pairing: 'halves', bias: 'always', qkNorm: false, ropeFactors: false },
  qwen3: { pairing: 'halves', bias: 'never', qkNorm: true, ropeFactors: false },
} as const;

export type Architecture = keyof typeof architectures;
export const knownArchitectures = Object.keys(architectures) as Architecture[];

export interface ModelConfig {
  readonly architecture: Architecture;
  readonly name: string;
  readonly layers: number;
  /** Length of the vector that runs through the layers. */
  readonly width: number;
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  /** Inner width of the feed-forward part. */
  readonly ffn: number;
  readonly vocab: number;
  /** Tokens that the model was made for. */
  readonly context: number;
  readonly normEps: number;
  /** Multiplies the dot products: 1 / sqrt(headDim), unless the file says otherwise. */
  readonly attentionScale: number;
  readonly rope: RopeConfig;
  /** Q, K and V have biases. */
  readonly qkvBias: boolean;
  /** Each head's queries and keys are normalised before they are turned. */
  readonly qkNorm: boolean;
  /** The embedding serves as the output matrix. */
  readonly tiedOutput: boolean;
}

/** The config of a model, once all of its metadata and tensors have been found to agree. */
export function configOf(gguf: Pick<Gguf, 'metadata' | 'tensors'>): ModelConfig {
  const architecture = architectureOf(gguf);
  const traits = architectures[architecture];
  const meta = metaReader(gguf.metadata, `${architecture}.`);
  refuseUnknownParts(meta);

  const layers = meta.integer('block_count', { max: 4096 });
  const width = meta.integer('embedding_length', { max: 2 ** 20 });
  const heads = meta.integer('attention.head_count', { max: 2 ** 14, layers });
  const kvHeads = meta.integer('attention.head_count_kv', { max: 2 ** 14, layers, missing: heads });
  if (heads % kvHeads !== 0) meta.fail(`${heads} query heads cannot share ${kvHeads} key-value heads evenly`);
  const headDim = headDimOf(meta, width, heads);
  const ffn = meta.integer('feed_forward_length', { max: 2 ** 24, layers });
  const context = meta.integer('context_length', { max: 2 ** 31 - 1 });

  const config: ModelConfig = {
    architecture,
    name: nameOf(gguf),
    layers,
    width,
    heads,
    kvHeads,
    headDim,
    ffn,
    vocab: vocabOf(gguf),
    context,
    normEps: meta.real('attention.layer_norm_rms_epsilon', { min: 0, max: 1 }),
    // Zero means "as usual", in files that write it.
    attentionScale: meta.real('attention.scale', { min: 0, max: 1e3, missing: 0 }) || 1 / Math.sqrt(headDim),
    rope: {
      base: meta.real('rope.freq_base', { min: 1.001, max: 1e15, missing: 10000 }),
      dims: ropeDimsOf(meta, headDim),
      pairing: traits.pairing,
      scaling: scalingOf(meta, context),
      attnFactor: attnFactorOf(meta),
      hasFactors: traits.ropeFactors && gguf.tensors.has('rope_freqs.weight'),
    },
    qkvBias: traits.bias === 'always' || (traits.bias === 'optional' && gguf.tensors.has('blk.0.attn_q.bias')),
    qkNorm: traits.qkNorm,
    tiedOutput: !gguf.tensors.has('output.weight'),
  };
  checkTensors(config, gguf.tensors);
  return config;
}

/** The model's turning frequencies, with the factors that the file may hold. */
export async function readRope(gguf: Gguf, { rope }: ModelConfig): Promise<RopeFrequencies> {
  if (!rope.hasFactors) return ropeFrequencies(rope);
  return ropeFrequencies(rope, checkFactors(await readFloats(gguf, tensorOf(gguf, 'rope_freqs.weight'))));
}

function architectureOf({ metadata }: Pick<Gguf, 'metadata'>): Architecture {
  const name = metadata.get('general.architecture');
  if (typeof name !== 'string') throw new FormatError('The file does not name its architecture. Is it a model?');
  if (!Object.hasOwn(architectures, name))
    throw new UnsupportedError(
      `The architecture ${quote(name)} is not known. Take a model of one of these: ${knownArchitectures.join(', ')}.`,
    );
  const kind = metadata.get('general.type') ?? 'model';
  if (kind !== 'model')
    throw new UnsupportedError(`The file holds ${quote(String(kind))}, not a whole model. Give the model's own file.`);
  return name as Architecture;
}

const nameOf = ({ metadata }: Pick<Gguf, 'metadata'>): string => {
  const name = metadata.get('general.name');
  return typeof name === 'string' ? name.slice(0, 200) : 'unnamed';
};

/** The embedding's rows count the vocabulary; the list of words, where there is one, must agree. */
function vocabOf({ metadata, tensors }: Pick<Gguf, 'metadata' | 'tensors'>): number {
  const vocab = tensorOf({ tensors }, 'token_embd.weight').shape[1] ?? 1;
  const tokens = metadata.get('tokenizer.ggml.tokens');
  if (tokens !== undefined && (!Array.isArray(tokens) || tokens.length !== vocab))
    throw new FormatError(
      `The vocabulary has ${Array.isArray(tokens) ? tokens.length : 'no list of'} words, but token_embd.weight has ${vocab} rows.`,
    );
  return vocab;
}

function headDimOf(meta: MetaReader, width: number, heads: number): number {
  const usual = width % heads === 0 ? width / heads : undefined;
  const headDim = meta.integer('attention.key_length', { max: 4096, missing: usual });
  const valueDim = meta.integer('attention.value_length', { max: 4096, missing: usual ?? headDim });
  if (headDim !== valueDim) meta.unsupported(`keys of ${headDim} and values of ${valueDim} dimensions a head`);
  if (headDim % 2 !== 0) meta.fail(`a head of ${headDim} dimensions cannot be turned in pairs`);
  return headDim;
}

function ropeDimsOf(meta: MetaReader, headDim: number): number {
  const dims = meta.integer('rope.dimension_count', { max: headDim, missing: headDim });
  if (dims % 2 !== 0) meta.fail(`rope.dimension_count must be even, not ${dims}`);
  return dims;
}

/** As llama.cpp reads it: a factor without a type is linear, and a factor of zero is none. */
function scalingOf(meta: MetaReader, context: number): RopeScaling {
  const type = meta.text('rope.scaling.type') ?? 'linear';
  const old = meta.real('rope.scale_linear', { min: 0, max: 1e6, missing: 0 });
  const factor = meta.real('rope.scaling.factor', { min: 0, max: 1e6, missing: old }) || 1;
  if (type === 'none' || (type === 'linear' && factor === 1)) return { type: 'none' };
  if (type === 'linear') return { type, factor };
  if (type !== 'yarn') return meta.unsupported(`the RoPE scaling ${quote(type)}; none, linear and yarn are known`);
  const extFactor = meta.real('rope.scaling.yarn_ext_factor', { min: -1, max: 1, missing: 1 });
  return {
    type,
    factor,
    originalContext: meta.integer('rope.scaling.original_context_length', { max: 2 ** 31 - 1, missing: context }),
    betaFast: meta.real('rope.scaling.yarn_beta_fast', { min: 1e-3, max: 1e6, missing: 32 }),
    betaSlow: meta.real('rope.scaling.yarn_beta_slow', { min: 1e-3, max: 1e6, missing: 1 }),
    // Below zero means "not said".
    extFactor: extFactor < 0 ? 1 : extFactor,
  };
}

function attnFactorOf(meta: MetaReader): number {
  const yarn = meta.real('rope.scaling.yarn_attn_factor', { min: 1e-3, max: 1e3, missing: 1 });
  return meta.real('rope.scaling.attn_factor', { min: 1e-3, max: 1e3, missing: yarn });
}

/** Parts of other models of the same name, which would otherwise be left out in silence. */
function refuseUnknownParts(meta: MetaReader): void {
  if (meta.value('expert_count')) meta.unsupported('a mixture of experts');
  if (meta.value('attention.causal') === false) meta.unsupported('attention to later tokens');
  if (meta.value('attention.sliding_window')) meta.unsupported('sliding window attention');
}
