/**
 * Why sinks hurt codecs with ranges per channel, and what OScaR's parts do about it. In each layer, for the keys of the
 * first tokens: their norms against the median of the later ones, the share of a channel's range that only they need, and
 * their error after quantization to 2 bits, relative to their own norm.
 */

import { affineCode, affineStep } from '../../src/codec/affine.ts';
import { signedHadamard } from '../../src/codec/parts/rotation.ts';
import { norm } from '../../src/codec/parts/vector.ts';
import { parseSpec } from '../../src/codec/spec.ts';
import type { Engine } from '../../src/engine/engine.ts';
import { step } from '../../src/engine/step.ts';
import { createPlan } from '../../src/plan/plan.ts';
import { type LayerNorms, round } from './results.ts';

/** Tokens of the page and of the group that the first ones share. */
const [TOKENS, GROUP] = [128, 32];
const [FIRST, BITS] = [4, 2];

/** Names of the transforms, as in the tables: what KIVI quantizes, and OScaR with one or both of its parts. */
const TRANSFORMS = ['neither', 'scaling', 'rotation', 'both'] as const;

export async function measureTokenNorms(engine: Engine, ids: readonly number[]): Promise<LayerNorms[]> {
  const { config, device } = engine;
  const pageTokens = TOKENS;
  const keys: Float32Array[][] = Array.from({ length: config.layers }, () => []);
  const sequence = engine.openSequence(createPlan(parseSpec('f16'), { ...config, pageTokens }), TOKENS);
  try {
    await step(engine, [{ sequence, tokens: ids.slice(0, TOKENS), logits: 'none' }], {
      async observe(layer, { k, rows }) {
        const all = await device.readRows(k, 0, rows);
        for (let row = 0; row < rows; row++) keys[layer].push(all.subarray(row * k.cols, (row + 1) * k.cols));
      },
    });
  } finally {
    sequence.dispose();
  }
  return keys.map(rows => layerNorms(rows, config.headDim));
}

/** `keys`: one row per token, [kv head][dim]. Averaged over heads. */
export function layerNorms(keys: readonly Float32Array[], headDim: number): LayerNorms {
  const heads = Array.from({ length: keys[0].length / headDim }, (_, head) =>
    keys.map(row => Float64Array.from(row.subarray(head * headDim, (head + 1) * headDim))),
  );
  const mean = (of: (vectors: Float64Array[]) => number) =>
    round(heads.reduce((sum, vectors) => sum + of(vectors), 0) / heads.length);
  const norms = Array.from({ length: FIRST }, (_, token) =>
    mean(vectors => norm(vectors[token]) / median(vectors.slice(FIRST).map(norm))),
  );
  const transforms = TRANSFORMS.map(name => {
    const group = (vectors: Float64Array[]) => vectors.slice(0, GROUP).map(vector => transform(vector, name));
    return {
      name,
      share: mean(vectors => rangeShare(group(vectors))),
      firstError: mean(vectors => Math.max(...relativeErrors(group(vectors)).slice(0, FIRST))),
      laterError: mean(vectors => median(relativeErrors(group(vectors)).slice(FIRST))),
    };
  });
  return { norms, transforms };
}

const median = (values: readonly number[]) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)];

function transform(vector: Float64Array, name: (typeof TRANSFORMS)[number]): Float64Array {
  const y = vector.slice();
  if (name === 'rotation' || name === 'both') signedHadamard(vector.length, 0).forward(y);
  const length = norm(vector);
  return name === 'scaling' || name === 'both' ? y.map(x => (length > 0 ? x / length : 0)) : y;
}

const channelsOf = (vectors: readonly Float64Array[]) =>
  Array.from(vectors[0], (_, i) => vectors.map(vector => vector[i]));

/** 1 - range without the first tokens / range of all, averaged over channels. */
function rangeShare(vectors: readonly Float64Array[]): number {
  const range = (values: readonly number[]) => Math.max(...values) - Math.min(...values);
  const shares = channelsOf(vectors).map(channel => {
    const all = range(channel);
    return all > 0 ? 1 - range(channel.slice(FIRST)) / all : 0;
  });
  return shares.reduce((sum, share) => sum + share, 0) / shares.length;
}

/** |error| / |vector| of each token, quantized per channel. Rotating and scaling back would not change it. */
function relativeErrors(vectors: readonly Float64Array[]): number[] {
  const squared = new Float64Array(vectors.length);
  for (const channel of channelsOf(vectors)) {
    const min = Math.min(...channel);
    const step = affineStep(min, Math.max(...channel), BITS);
    channel.forEach((x, token) => {
      squared[token] += (min + affineCode(x, min, step, BITS) * step - x) ** 2;
    });
  }
  return vectors.map((vector, token) => Math.sqrt(squared[token]) / norm(vector));
}
