/** The activations of a pass, and the matrix multiplications between them. */
import type { Device, Projection, Tensor } from '../kernel/device.ts';
import {
  createFeedForwardScratch,
  type FeedForwardProjections,
  type FeedForwardScratch,
  feedForwardProjections,
} from './feed-forward.ts';
import type { ModelConfig } from './model-config.ts';
import type { ModelWeights } from './weights.ts';

/** Activations, allocated once for the largest batch. */
export interface Scratch extends FeedForwardScratch {
  rows: number;
  /** The residual stream. */
  x: Tensor;
  normed: Tensor;
  q: Tensor;
  k: Tensor;
  v: Tensor;
  attention: Tensor;
  ropeAngles: Tensor;
  /** Of queries, if theirs are others. */
  queryAngles?: Tensor;
  /** Of layers with a window, if theirs are others. */
  localRopeAngles?: Tensor;
  /** The rows that need logits, gathered. */
  outputRows: Tensor;
  logits: Tensor;
  /** Filled by the first pass. */
  projections: WeakMap<ModelWeights, LayerProjections[]>;
}

/** The matrix multiplications of a layer. The arrays are created once, so that a device can cache state per array. */
export interface LayerProjections extends FeedForwardProjections {
  qkv: readonly Projection[];
  attentionOutput: readonly Projection[];
}

/** Max rows of logits per multiplication: each row is as long as the vocabulary. */
const MAX_LOGIT_ROWS = 64;

export function createScratch(device: Device, config: ModelConfig, rows: number): Scratch {
  const { width, heads, kvHeads, headDim, vocab, rope, localRope } = config;
  const logitRows = Math.min(rows, MAX_LOGIT_ROWS);
  return {
    rows,
    x: device.createTensor(rows, width),
    normed: device.createTensor(rows, width),
    q: device.createTensor(rows, heads * headDim),
    k: device.createTensor(rows, kvHeads * headDim),
    v: device.createTensor(rows, kvHeads * headDim),
    attention: device.createTensor(rows, heads * headDim),
    ...createFeedForwardScratch(device, config, rows),
    ropeAngles: device.createTensor(rows, rope.dims),
    ...(rope.sharpening && { queryAngles: device.createTensor(rows, rope.dims) }),
    ...(localRope && { localRopeAngles: device.createTensor(rows, localRope.dims) }),
    outputRows: device.createTensor(logitRows, width),
    logits: device.createTensor(logitRows, vocab),
    projections: new WeakMap(),
  };
}

export function projectionsOf(scratch: Scratch, weights: ModelWeights): LayerProjections[] {
  const { x, normed, q, k, v } = scratch;
  /** Added to the residual stream, or normalized first. */
  const output = (norm?: Tensor) => (norm ? { out: normed } : { out: x, accumulate: true });
  const projections =
    scratch.projections.get(weights) ??
    weights.layers.map(w => ({
      qkv: [
        { weights: w.q, out: q, bias: w.qBias },
        { weights: w.k, out: k, bias: w.kBias },
        { weights: w.v, out: v, bias: w.vBias },
      ],
      attentionOutput: [{ weights: w.attentionOutput, bias: w.attentionOutputBias, ...output(w.attentionOutputNorm) }],
      ...feedForwardProjections(scratch, w, output(w.ffnOutputNorm)),
    }));
  scratch.projections.set(weights, projections);
  return projections;
}
