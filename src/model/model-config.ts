/** What is known of a model before its weights are loaded; config.ts reads it from a file. */
import type { AttentionWindows } from '../cache/leaf.ts';
import type { Activation, RoutingRule } from '../kernel/device.ts';
import type { Architecture } from './architectures.ts';
import type { RopeConfig } from './rope.ts';

/** The model's RoPE, or that of layers with a window. */
export type LayerRope = 'global' | 'local';

export interface ModelConfig {
  readonly architecture: Architecture;
  readonly name: string;
  readonly layers: number;
  /** Hidden size: length of the residual stream (d_model). */
  readonly width: number;
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  /** Inner width of the dense feed-forward networks; without any, of each expert. */
  readonly ffn: number;
  /** The feed-forward networks are mixtures of experts, but for those of the first layers. */
  readonly experts: ExpertsConfig | undefined;
  /** Tokens in the vocabulary. */
  readonly vocab: number;
  /** Context length that the model was trained for, in tokens. */
  readonly context: number;
  readonly normEps: number;
  /** Factor of the attention scores: 1 / sqrt(headDim), unless the file overrides it. */
  readonly attentionScale: number;
  /** Scores s of attention become softcap * tanh(s / softcap), and so do logits; 0: they do not. */
  readonly attentionSoftcap: number;
  readonly logitSoftcap: number;
  /** Factor of the embeddings. */
  readonly embeddingScale: number;
  /** Factor of the logits. */
  readonly logitScale: number;
  readonly rope: RopeConfig;
  /** RoPE of layers with a window, if it is another one. */
  readonly localRope: RopeConfig | undefined;
  /** The RoPE of each layer; undefined: none. */
  readonly layerRopes: readonly (LayerRope | undefined)[];
  /** How many of the last tokens each layer sees; undefined: all. */
  readonly attentionWindows: AttentionWindows;
  /** Which matrices of a layer have biases; `feedForward`: those of experts, too. */
  readonly qkvBias: boolean;
  readonly attentionOutputBias: boolean;
  readonly feedForwardBias: boolean;
  /** The softmax of attention includes a logit per head. */
  readonly sinkLogits: boolean;
  /** Queries and keys are RMS-normalized: each head, or all heads together; before RoPE or after it. */
  readonly qkNorm: 'head' | 'row' | undefined;
  readonly ropeFirst: boolean;
  /** Where the norms of attention and feed-forward are. */
  readonly norms: 'inputs' | 'outputs' | 'both';
  /** The tensor with the norm of the feed-forward network's input. */
  readonly ffnNorm: 'ffn_norm' | 'post_attention_norm';
  readonly activation: Activation;
  /** Q, K and V are the rows of one tensor; so are gate and up. */
  readonly fusedQkv: boolean;
  readonly fusedGateUp: boolean;
  /** The embedding matrix is also the output head. */
  readonly tiedOutput: boolean;
}

export interface ExpertsConfig {
  readonly count: number;
  /** Experts per row. */
  readonly used: number;
  /** Inner width of each. */
  readonly ffn: number;
  /** How many of the first layers have a dense network instead. */
  readonly denseLayers: number;
  readonly routing: RoutingRule;
  /** The tensor with a bias for the choice of each expert. */
  readonly selectionBias?: 'exp_probs_b.bias' | 'exp_probs_b';
  /** An expert that all rows use: its inner width, and whether its output is multiplied by the sigmoid of its own router. */
  readonly shared?: { readonly ffn: number; readonly gated: boolean };
}
