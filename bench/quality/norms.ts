/**
 * Why sinks hurt codecs with ranges per channel, and what OScaR's parts do about it. In each layer: the norms of the
 * first tokens' keys against the median of the later ones, and the share of a channel's range over the first group of
 * tokens that only these first tokens need.
 */
import { signedHadamard } from '../../src/codec/parts/rotation.ts';
import { norm } from '../../src/codec/parts/vector.ts';
import type { Engine } from '../../src/engine/engine.ts';
import { step } from '../../src/engine/step.ts';
import { createPlan } from '../../src/plan/plan.ts';
import { type LayerNorms, round } from './results.ts';

/** Tokens of the page and of the group that the first ones share. */
const [TOKENS, GROUP] = [128, 32];
const FIRST = 4;

/** Names of the transforms, as in the tables: what KIVI quantizes, and OScaR with one or both of its parts. */
export const TRANSFORMS = ['neither', 'scaling', 'rotation', 'both'] as const;

export async function measureTokenNorms(engine: Engine, ids: readonly number[]): Promise<LayerNorms[]> {
  const { config, device } = engine;
  const pageTokens = TOKENS;
  const keys: Float32Array[][] = Array.from({ length: config.layers }, () => []);
  const sequence = engine.openSequence(createPlan('f16', { ...config, pageTokens }), TOKENS);
  try {
    await step(engine, [{ sequence, tokens: ids.slice(0, TOKENS), logits: 'none' }], {
      async observe(layer, { k, rows }) {
        for (let row = 0; row < rows; row++) keys[layer].push(await device.readRow(k, row));
      },
    });
  } finally {
    sequence.dispose();
  }
  return keys.map(rows => layerNorms(rows, config.headDim));
}

/** `keys`: one row per token, [kv head][dim]. Averaged over heads. */
export function layerNorms(keys: readonly Float32Array[], headDim: number): LayerNorms {
  const heads = keys[0].length / headDim;
  const norms = new Array<number>(FIRST).fill(0);
  const shares = { neither: 0, scaling: 0, rotation: 0, both: 0 };
  for (let head = 0; head < heads; head++) {
    const vectors = keys.map(row => Float64Array.from(row.subarray(head * headDim, (head + 1) * headDim)));
    const lengths = vectors.map(norm);
    const median = lengths.slice(FIRST).sort((a, b) => a - b)[Math.floor((lengths.length - FIRST) / 2)];
    for (let token = 0; token < FIRST; token++) norms[token] += lengths[token] / median / heads;
    for (const name of TRANSFORMS)
      shares[name] += rangeShare(vectors.slice(0, GROUP).map(vector => transform(vector, name))) / heads;
  }
  return { norms: norms.map(round), shares: Object.fromEntries(TRANSFORMS.map(name => [name, round(shares[name])])) };
}

function transform(vector: Float64Array, name: (typeof TRANSFORMS)[number]): Float64Array {
  const y = vector.slice();
  if (name === 'rotation' || name === 'both') signedHadamard(vector.length, 0).forward(y);
  const length = norm(vector);
  return name === 'scaling' || name === 'both' ? y.map(x => (length > 0 ? x / length : 0)) : y;
}

/** 1 - range without the first tokens / range of all, averaged over channels. */
function rangeShare(vectors: readonly Float64Array[]): number {
  const range = (values: readonly number[]) => Math.max(...values) - Math.min(...values);
  const shares = Array.from(vectors[0], (_, i) => {
    const channel = vectors.map(vector => vector[i]);
    const all = range(channel);
    return all > 0 ? 1 - range(channel.slice(FIRST)) / all : 0;
  });
  return shares.reduce((sum, share) => sum + share, 0) / shares.length;
}
