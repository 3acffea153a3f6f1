import type { Activation } from '../kernel/device.ts';

/**
 * How the supported architectures differ; otherwise they are the same network: attention and a gated feed-forward network,
 * each added to the residual stream. Numbers of a model come from its metadata (config.ts).
 */
export interface Traits {
  /** Well-known models, for documentation. */
  models: string;
  /** Which dims of a head RoPE rotates together in the file: 2i with 2i + 1, or i with i + dims / 2. */
  pairing: 'adjacent' | 'halves';
  /** Q, K and V have biases; or all matrices in the layers. Default: those for which the file has biases. */
  bias?: 'always' | 'everywhere';
  /** The softmax of attention includes a logit per head (`attn_sinks`). */
  sinkLogits?: boolean;
  /** RMS norms of queries and keys: of each head, if the file has them or always, or of all heads together. Default: none. */
  qkNorm?: 'head' | 'row' | 'optional';
  /** RoPE comes before them. */
  ropeFirst?: true;
  /** Where the norms of attention and feed-forward are: at their inputs, their outputs, or both. Default: inputs. */
  norms?: 'inputs' | 'outputs' | 'both';
  /** The tensor with the norm of the feed-forward network's input. Default: ffn_norm. */
  ffnNorm?: 'post_attention_norm';
  /** Of the feed-forward network. Default: silu. */
  activation?: Activation;
  /** ffn_up.weight holds gate and up, one after the other. */
  fusedGateUp?: boolean;
  /** The metadata may have a number of experts, or always has. */
  experts?: ExpertTraits & { in: 'some' | 'all' };
  /** Layers after the last one, which predict further tokens, are ignored. */
  skipsPredictors?: true;
  /** Every n-th layer has no RoPE; or, in files with a window, the layers that see all tokens have none. */
  ropelessEvery?: number;
  ropelessFull?: boolean;
  /** `rope.scaling.finetuned` = false means no RoPE at all. */
  ropeSwitch?: boolean;
  /** The file may divide each RoPE frequency by a factor (`rope_freqs.weight`). */
  ropeFactors?: boolean;
  /** LongRoPE: factors for contexts up to the original length, and for longer ones. */
  longRope?: boolean;
  /** The metadata may scale embeddings, what layers add to the residual stream, and logits. Defaults: 1, or MiniCPM's. */
  scales?: 'optional' | 'minicpm';
  /** Embeddings are multiplied by the square root of the width. */
  scaledEmbedding?: boolean;
  /** In models with this many layers, scores are divided by the square root of width / heads, not of the head dim. */
  scoresByWidthAt?: number;
  /** Attention scores and logits are capped; these are the defaults, and 0 means that they are not. */
  softcaps?: { attention: number; logits: number };
  /** Every n-th layer sees all tokens, and the others the last ones, if the metadata has a sliding window. */
  fullEvery?: number;
  /** The window, if the metadata has none. */
  defaultWindow?: number;
  /** Layers with a window have an unscaled RoPE with this base, or the same as the others, if the file has none for them. */
  localRopeBase?: number | 'same';
  /** A sliding window in the metadata is ignored, as llama.cpp does: converters write it for models without one. */
  ignoresWindow?: boolean;
  /** The file may also have an image encoder, which is not loaded. */
  imageEncoder?: boolean;
}

/** What the metadata may say otherwise. */
export interface ExpertTraits {
  /** Scores of experts. Default: the softmax of the router's outputs. */
  scores?: 'sigmoid';
  /** The weights of a row's experts are their scores, not divided by the sum of them. */
  unnormalized?: true;
  /** The output of the expert that all rows use, if there is one, is multiplied by the sigmoid of its own router. */
  gatesShared?: true;
}

export const architectures = {
  llama: {
    models: 'Llama 2 and 3, Mistral, Mixtral, SmolLM2',
    pairing: 'adjacent',
    ropeFactors: true,
    ignoresWindow: true,
    experts: { in: 'some' },
  },
  mistral3: { models: 'Mistral Small 3, Ministral 3', pairing: 'adjacent', ropeFactors: true, ignoresWindow: true },
  qwen2: { models: 'Qwen 2 and 2.5', pairing: 'halves', bias: 'always' },
  // Without images all parts of a position are equal, and its RoPE is that of qwen2; so it is with qwen3vl.
  qwen2vl: { models: 'Qwen 2 VL and 2.5 VL without images', pairing: 'halves', bias: 'always' },
  qwen2moe: {
    models: 'Qwen 1.5 and 2 MoE',
    pairing: 'halves',
    bias: 'always',
    experts: { in: 'all', unnormalized: true, gatesShared: true },
  },
  qwen3: { models: 'Qwen 3', pairing: 'halves', qkNorm: 'head' },
  qwen3moe: {
    models: 'Qwen 3 30B-A3B and 235B-A22B',
    pairing: 'halves',
    qkNorm: 'head',
    experts: { in: 'all' },
  },
  qwen3vl: { models: 'Qwen 3 VL without images', pairing: 'halves', qkNorm: 'head' },
  qwen3vlmoe: {
    models: 'Qwen 3 VL 30B-A3B and 235B-A22B without images',
    pairing: 'halves',
    qkNorm: 'head',
    experts: { in: 'all' },
  },
  phi3: { models: 'Phi-3, 3.5 and 4', pairing: 'halves', fusedGateUp: true, longRope: true, ignoresWindow: true },
  smollm3: { models: 'SmolLM3', pairing: 'adjacent', ropelessEvery: 4 },
  granite: {
    models: 'Granite 3',
    pairing: 'adjacent',
    ropeFactors: true,
    scales: 'optional',
    ropeSwitch: true,
  },
  granitemoe: {
    models: 'Granite 3 1B-A400M and 3B-A800M',
    pairing: 'adjacent',
    ropeFactors: true,
    scales: 'optional',
    ropeSwitch: true,
    experts: { in: 'all' },
  },
  minicpm: { models: 'MiniCPM 1 and 4', pairing: 'adjacent', scales: 'minicpm', longRope: true },
  olmo2: {
    models: 'OLMo 2 and 3',
    pairing: 'halves',
    qkNorm: 'row',
    norms: 'outputs',
    fullEvery: 4,
    localRopeBase: 'same',
  },
  olmoe: { models: 'OLMoE', pairing: 'halves', qkNorm: 'row', experts: { in: 'all', unnormalized: true } },
  exaone: { models: 'EXAONE 3 and 3.5', pairing: 'halves', ropeFactors: true },
  exaone4: {
    models: 'EXAONE 4',
    pairing: 'halves',
    qkNorm: 'head',
    norms: 'outputs',
    ropeFactors: true,
    fullEvery: 4,
    ropelessFull: true,
    skipsPredictors: true,
  },
  chatglm: { models: 'ChatGLM 3, GLM-4 9B of 2024', pairing: 'adjacent', fusedGateUp: true },
  glm4: { models: 'GLM-4', pairing: 'adjacent', norms: 'both', fusedGateUp: true },
  'exaone-moe': {
    models: 'K-EXAONE',
    pairing: 'halves',
    qkNorm: 'head',
    ropeFactors: true,
    experts: { in: 'all', scores: 'sigmoid', unnormalized: true },
    skipsPredictors: true,
    fullEvery: 4,
    defaultWindow: 128,
    ropelessFull: true,
  },
  glm4moe: {
    models: 'GLM-4.5, 4.5-Air, 4.6 and 4.7, Solar Open 100B',
    pairing: 'halves',
    qkNorm: 'optional',
    ffnNorm: 'post_attention_norm',
    experts: { in: 'all', scores: 'sigmoid', unnormalized: true },
    skipsPredictors: true,
  },
  internlm2: { models: 'InternLM 2 and 2.5', pairing: 'adjacent' },
  ernie4_5: { models: 'ERNIE 4.5 0.3B', pairing: 'adjacent' },
  'ernie4_5-moe': { models: 'ERNIE 4.5 21B-A3B and 300B-A47B', pairing: 'adjacent', experts: { in: 'all' } },
  'hunyuan-dense': { models: 'Hunyuan 0.5B to 7B, Hunyuan MT', pairing: 'halves', qkNorm: 'head', ropeFirst: true },
  'hunyuan-moe': {
    models: 'Hunyuan A13B',
    pairing: 'halves',
    qkNorm: 'head',
    ropeFirst: true,
    experts: { in: 'all' },
  },
  hy_v3: {
    models: 'Hunyuan 3',
    pairing: 'halves',
    qkNorm: 'head',
    experts: { in: 'all', scores: 'sigmoid', unnormalized: true },
    skipsPredictors: true,
  },
  bailingmoe: { models: 'Ling 1 and 1.5', pairing: 'adjacent', experts: { in: 'all', unnormalized: true } },
  bailingmoe2: {
    models: 'Ling 2.0, Ring 2.0',
    pairing: 'halves',
    qkNorm: 'head',
    experts: { in: 'all', scores: 'sigmoid', unnormalized: true },
    skipsPredictors: true,
  },
  deepseek: { models: 'DeepSeek MoE 16B', pairing: 'adjacent', experts: { in: 'all', unnormalized: true } },
  dots1: {
    models: 'dots.llm1',
    pairing: 'halves',
    qkNorm: 'head',
    experts: { in: 'all', scores: 'sigmoid', unnormalized: true },
  },
  'minimax-m2': {
    models: 'MiniMax M2 and M2.1',
    pairing: 'halves',
    qkNorm: 'row',
    experts: { in: 'all', scores: 'sigmoid' },
  },
  'pangu-embedded': { models: 'openPangu Embedded', pairing: 'halves', ropeFactors: true },
  xverse: { models: 'XVERSE', pairing: 'adjacent' },
  maincoder: { models: 'Maincoder', pairing: 'adjacent', qkNorm: 'head', ropeFirst: true },
  mellum: {
    models: 'Mellum 2',
    pairing: 'halves',
    qkNorm: 'head',
    experts: { in: 'all' },
    fullEvery: 4,
    localRopeBase: 'same',
  },
  seed_oss: { models: 'Seed-OSS', pairing: 'halves', ffnNorm: 'post_attention_norm' },
  gemma: { models: 'Gemma 1', pairing: 'halves', activation: 'gelu', scaledEmbedding: true },
  gemma2: {
    models: 'Gemma 2',
    pairing: 'halves',
    norms: 'both',
    activation: 'gelu',
    scaledEmbedding: true,
    scoresByWidthAt: 46,
    softcaps: { attention: 50, logits: 30 },
    fullEvery: 2,
    defaultWindow: 4096,
  },
  gemma3: {
    models: 'Gemma 3',
    pairing: 'halves',
    qkNorm: 'head',
    norms: 'both',
    activation: 'gelu',
    scaledEmbedding: true,
    scoresByWidthAt: 62,
    softcaps: { attention: 0, logits: 0 },
    fullEvery: 6,
    localRopeBase: 10000,
    imageEncoder: true,
  },
  'gpt-oss': {
    models: 'gpt-oss 20B and 120B',
    pairing: 'halves',
    bias: 'everywhere',
    sinkLogits: true,
    ffnNorm: 'post_attention_norm',
    activation: 'clamped',
    experts: { in: 'all' },
    fullEvery: 2,
  },
} satisfies Record<string, Traits>;

export type Architecture = keyof typeof architectures;
export const supportedArchitectures = Object.keys(architectures) as Architecture[];
