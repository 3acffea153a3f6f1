/**
 * How sensitive attention is to errors in the keys and values of one KV head. Only tokens in sealed pages are quantized,
 * without the sinks. An error e in token j changes the output of query t by
 * - p_tj^2 e^T G e, if it is in the value;
 * - p_tj^2 |v_j - o_t|^2 (q_t . e)^2, if it is in the key, where |x|^2 = x^T G x.
 * p are the attention probabilities, o_t is the attention output, and G = W^T W for the head's columns of the output matrix.
 * The sums over queries give a weight per token, and a metric for all tokens.
 */

import { DEFAULT_WINDOW } from '../codec/spec.ts';
import { floatBits } from '../kernel/float.ts';
import { sealedPagesAt } from '../kernel/visibility.ts';
import { fieldOffsets } from '../kernel/wasm/fields.ts';
import { SOFTMAX_STATE_BYTES, sensitivityKernels, TOKEN_BLOCK } from '../kernel/wasm/kernels/attention-sensitivity.ts';
import { instantiate } from '../kernel/wasm/module.ts';
import { ropeBothSides } from './metric.ts';

/** The first tokens of a row, which stay in f16. */
export const SINKS = DEFAULT_WINDOW.sink;

export interface AttentionShape {
  heads: number;
  kvHeads: number;
  headDim: number;
  /** Multiplies the dot products of queries and keys. */
  scale: number;
  /** RoPE: the angle per position of each adjacent pair of dims. */
  ropeFrequencies: Float64Array;
  /** Tokens per row. */
  context: number;
  pageTokens: number;
  /** The layer sees only the last tokens; then only queries that see all tokens of the row are measured. */
  window?: number;
}

export interface AttentionSensitivity {
  /** [token]: the weight of an error in its key. */
  keys: Float32Array;
  /** [token]: the weight of an error in its value. */
  values: Float32Array;
  /** [dim][dim]: the metric of key errors, for keys relative to their page's position. */
  metric: Float64Array;
  /** [query head of the group]: the sum of squared probabilities over all queries and tokens. */
  shares: Float64Array;
}

/** Number of tokens that a query at position t reads from sealed pages. Rows shorter than two pages have two half-row pages. */
export function sealedTokens(
  { context, pageTokens }: Pick<AttentionShape, 'context' | 'pageTokens'>,
  t: number,
): number {
  const page = Math.min(pageTokens, context >> 1);
  return page * sealedPagesAt(t, { pageTokens: page, recent: 0 });
}

/** Of one KV head. Vectors are after RoPE: k and v [token][kv head][dim], q [query][head][dim] at positions `queries`. */
export function measureSensitivity(
  shape: AttentionShape,
  { arrays, computeValueNorms, attend, addErrorWeights, addOuterProduct }: SensitivityKernels,
  head: number,
  queries: readonly number[],
  { q, k, v, grams }: { q: Float32Array; k: Float32Array; v: Float32Array; grams: Float32Array },
): AttentionSensitivity {
  const { heads, kvHeads, headDim: d, scale, context, pageTokens, window = context } = shape;
  const group = heads / kvHeads;
  const { rawQuery, query, keys, values, gram, valueNorms, p, output, gramOutput, keySums, valueSums, moments } =
    arrays;
  keySums.fill(0);
  moments.fill(0);
  for (let t = 0; t < context; t++) {
    const [from, to] = [(t * kvHeads + head) * d, Math.floor(t / TOKEN_BLOCK) * TOKEN_BLOCK * d + (t % TOKEN_BLOCK)];
    for (let i = 0; i < d; i++) {
      keys[to + i * TOKEN_BLOCK] = k[from + i];
      values[to + i * TOKEN_BLOCK] = v[from + i];
    }
  }
  const weights = new Float32Array(context);
  const shares = new Float64Array(group);
  for (let g = 0; g < group; g++) {
    gram.set(grams.subarray((head * group + g) * d * d, (head * group + g + 1) * d * d));
    valueNorms.fill(0);
    valueSums.fill(0);
    computeValueNorms();
    queries.forEach((t, n) => {
      const sealed = sealedTokens(shape, t);
      if (sealed === 0 || t >= window) return;
      rawQuery.set(q.subarray((n * heads + head * group + g) * d, (n * heads + head * group + g + 1) * d));
      for (let i = 0; i < d; i++) query[i] = scale * Math.LOG2E * rawQuery[i];
      attend(t + 1);
      let length = 0;
      for (let i = 0; i < d; i++) {
        let sum = 0;
        for (let j = 0; j < d; j++) sum += gram[i * d + j] * output[j];
        gramOutput[i] = sum;
        length += sum * output[i];
      }
      // Sinks stay in f16 and have no error.
      p.fill(0, 0, SINKS);
      p.fill(0, sealed, TOKEN_BLOCK * Math.ceil(sealed / TOKEN_BLOCK));
      addErrorWeights(sealed, length);
      for (let page = 0; page * pageTokens < sealed; page++) {
        let weight = 0;
        for (let j = page * pageTokens; j < Math.min(sealed, (page + 1) * pageTokens); j++) weight += p[j];
        addOuterProduct(page, weight);
      }
    });
    let diagonal = 0;
    for (let i = 0; i < d; i++) diagonal += gram[i * d + i] / d;
    for (let t = 0; t < context; t++) {
      weights[t] += diagonal * valueSums[t];
      shares[g] += valueSums[t];
    }
  }
  const metric = new Float64Array(d * d);
  for (let page = 0; page * pageTokens < context; page++) {
    const moment = Float64Array.from(moments.subarray(page * d * d, (page + 1) * d * d));
    ropeBothSides(moment, d, shape.ropeFrequencies, -page * pageTokens);
    for (let i = 0; i < metric.length; i++) metric[i] += moment[i];
  }
  return { keys: keySums.slice(0, context), values: weights, metric, shares };
}

export type SensitivityKernels = ReturnType<typeof createSensitivityKernels>;

/** The WebAssembly kernels and their memory. */
export function createSensitivityKernels({ headDim: dims, context, pageTokens }: AttentionShape) {
  const padded = TOKEN_BLOCK * Math.ceil(context / TOKEN_BLOCK);
  const vector = 16 * Math.ceil(dims / 4);
  const sizes = {
    state: SOFTMAX_STATE_BYTES,
    rawQuery: vector,
    query: vector,
    output: vector,
    gramOutput: vector,
    gram: vector * dims,
    keys: 4 * padded * dims,
    values: 4 * padded * dims,
    valueNorms: 4 * padded,
    p: 4 * padded,
    keySums: 4 * padded,
    valueSums: 4 * padded,
    moments: 4 * Math.ceil(context / pageTokens) * dims * dims,
  };
  const { bytes, ...offsets } = fieldOffsets(sizes);
  const { memory, calls } = instantiate(sensitivityKernels(dims), bytes);
  const arrays = (Object.keys(sizes) as (keyof typeof sizes)[]).map(name => [
    name,
    new Float32Array(memory.buffer, offsets[name], sizes[name] / 4),
  ]);
  const blocks = (count: number) => TOKEN_BLOCK * Math.ceil(count / TOKEN_BLOCK);
  return {
    arrays: Object.fromEntries(arrays) as Record<keyof typeof sizes, Float32Array>,
    computeValueNorms: () => calls.quadraticForm({ ...offsets, count: padded, forms: offsets.valueNorms }),
    attend: (count: number) => calls.attend({ ...offsets, count }),
    addErrorWeights: (count: number, outputForm: number) =>
      calls.errorWeights({
        ...offsets,
        count: blocks(count),
        forms: offsets.valueNorms,
        outputForm: floatBits(outputForm),
      }),
    addOuterProduct: (page: number, weight: number) =>
      calls.addOuterProduct({
        sum: offsets.moments + 4 * dims * dims * page,
        x: offsets.rawQuery,
        weight: floatBits(weight),
      }),
  };
}
