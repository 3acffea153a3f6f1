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
  /** Biases of Q, K and V. Default: never. */
  bias?: 'always' | 'optional';
  /** RMS norms of queries and keys before RoPE: of each head, or of all heads together. Default: none. */
  qkNorm?: 'head' | 'row';
  /** Where the norms of attention and feed-forward are: at their inputs, their outputs, or both. Default: inputs. */
  norms?: 'inputs' | 'outputs' | 'both';
  /** Of the feed-forward network. Default: silu. */
  activation?: Activation;
  /** ffn_up.weight holds gate and up, one after the other. */
  fusedGateUp?: boolean;
  /** Every n-th layer has no RoPE. */
  ropelessEvery?: number;
  /** The file may divide each RoPE frequency by a factor (`rope_freqs.weight`). */
  ropeFactors?: boolean;
  /** LongRoPE: factors for contexts up to the original length, and for longer ones. */
  longRope?: boolean;
  /** The metadata may scale embeddings, what layers add to the residual stream, and logits. */
  scales?: boolean;
  /** A sliding window in the metadata is ignored, as llama.cpp does: converters write it for models without one. */
  ignoresWindow?: boolean;
}

export const architectures = {
  llama: { models: 'Llama 2 and 3, Mistral, SmolLM2', pairing: 'adjacent', bias: 'optional', ropeFactors: true },
  mistral3: { models: 'Mistral Small 3, Ministral 3', pairing: 'adjacent', ropeFactors: true },
  qwen2: { models: 'Qwen 2 and 2.5', pairing: 'halves', bias: 'always' },
  qwen3: { models: 'Qwen 3', pairing: 'halves', qkNorm: 'head' },
  // Without images all parts of a position are equal, and its RoPE is that of qwen3.
  qwen3vl: { models: 'Qwen 3 VL without images', pairing: 'halves', qkNorm: 'head' },
  phi3: { models: 'Phi-3, 3.5 and 4', pairing: 'halves', fusedGateUp: true, longRope: true, ignoresWindow: true },
  smollm3: { models: 'SmolLM3', pairing: 'adjacent', ropelessEvery: 4 },
  granite: { models: 'Granite 3', pairing: 'adjacent', bias: 'optional', ropeFactors: true, scales: true },
  olmo2: { models: 'OLMo 2', pairing: 'halves', qkNorm: 'row', norms: 'outputs' },
  exaone4: { models: 'EXAONE 4 1.2B', pairing: 'halves', qkNorm: 'head', norms: 'outputs', ropeFactors: true },
  glm4: { models: 'GLM-4', pairing: 'adjacent', bias: 'optional', norms: 'both', fusedGateUp: true },
} satisfies Record<string, Traits>;

export type Architecture = keyof typeof architectures;
export const supportedArchitectures = Object.keys(architectures) as Architecture[];
