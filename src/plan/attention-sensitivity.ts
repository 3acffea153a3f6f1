/**
 * How sensitive attention is to errors in the keys and values of one KV head. Only tokens in sealed pages are quantized,
 * without the sinks. An error e in token j changes the output of query t by
 * - p_tj^2 e^T G e, if it is in the value;
 * - p_tj^2 |v_j - o_t|^2 (q_t . e)^2, if it is in the key, where |x|^2 = x^T G x.
 * p are the attention probabilities, o_t is the attention output, and G = W^T W for the head's columns of the output matrix.
 * A softcap multiplies (q_t . e) by its slope. The sums over queries give a weight per token, and a metric for all tokens.
 */

import { DEFAULT_WINDOW } from '../codec/spec.ts';
import { floatBits } from '../kernel/float.ts';
import { firstVisible, sealedPagesAt } from '../kernel/visibility.ts';
import { fieldOffsets } from '../kernel/wasm/fields.ts';
import { SOFTMAX_STATE_BYTES, sensitivityKernels, TOKEN_BLOCK } from '../kernel/wasm/kernels/attention-sensitivity.ts';
import { MASKED } from '../kernel/wasm/kernels/online-softmax.ts';
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
  /** The layer sees only the last tokens. */
  window?: number;
  /** Scores s become softcap * tanh(s / softcap); 0: they do not. */
  softcap: number;
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
  /** [query that reads codes]: the squared norm of what the heads add to the output, as if they were orthogonal. */
  outputNorms: number[];
}

/** The weights of a layer that decide how much errors matter. */
export interface AttentionWeights {
  /** [head][dim][dim], see metric.ts. */
  grams: Float32Array;
  /** [head]: a logit that the softmax includes. */
  sinkLogits?: Float32Array;
  /** The squared norm of the output, if the layer normalizes it. */
  outputNorm?: number;
}

/** Vectors are after RoPE: k and v [token][kv head][dim], q [query][head][dim]. */
export interface AttentionInput extends AttentionWeights {
  q: Float32Array;
  k: Float32Array;
  v: Float32Array;
}

/** Number of tokens that a query at position t reads from sealed pages. Rows shorter than two pages have two half-row pages. */
export function sealedTokens(
  { context, pageTokens }: Pick<AttentionShape, 'context' | 'pageTokens'>,
  t: number,
): number {
  const page = Math.min(pageTokens, context >> 1);
  return page * sealedPagesAt(t, { pageTokens: page, recent: 0 });
}

/** Of one KV head. `queries` are the positions of the queries. */
export function measureSensitivity(
  shape: AttentionShape,
  { arrays, computeValueNorms, attend, addErrorWeights, addOuterProduct }: SensitivityKernels,
  head: number,
  queries: readonly number[],
  { q, k, v, grams, sinkLogits }: AttentionInput,
): AttentionSensitivity {
  const { heads, kvHeads, headDim: d, scale, context, pageTokens, window } = shape;
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
  const outputNorms: number[] = [];
  for (let g = 0; g < group; g++) {
    gram.set(grams.subarray((head * group + g) * d * d, (head * group + g + 1) * d * d));
    valueNorms.fill(0);
    valueSums.fill(0);
    computeValueNorms();
    const sinkLogit = sinkLogits ? sinkLogits[head * group + g] * Math.LOG2E : MASKED;
    queries.forEach((t, n) => {
      const sealed = sealedTokens(shape, t);
      const visible = firstVisible(t, window);
      // Sinks stay in f16 and have no error.
      const first = Math.max(SINKS, visible);
      if (sealed <= first) return;
      rawQuery.set(q.subarray((n * heads + head * group + g) * d, (n * heads + head * group + g + 1) * d));
      for (let i = 0; i < d; i++) query[i] = scale * Math.LOG2E * rawQuery[i];
      attend(visible, t + 1, sinkLogit);
      let length = 0;
      for (let i = 0; i < d; i++) {
        let sum = 0;
        for (let j = 0; j < d; j++) sum += gram[i * d + j] * output[j];
        gramOutput[i] = sum;
        length += sum * output[i];
      }
      outputNorms[n] = (outputNorms[n] ?? 0) + length;
      p.fill(0, blockStart(first), first);
      p.fill(0, sealed, blockEnd(sealed));
      addErrorWeights(first, sealed, length);
      for (let page = Math.floor(first / pageTokens); page * pageTokens < sealed; page++) {
        let weight = 0;
        for (let j = Math.max(first, page * pageTokens); j < Math.min(sealed, (page + 1) * pageTokens); j++)
          weight += p[j];
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
  return {
    keys: keySums.slice(0, context),
    values: weights,
    metric,
    shares,
    outputNorms: outputNorms.filter(norm => norm > 0),
  };
}

export type SensitivityKernels = ReturnType<typeof createSensitivityKernels>;

const blockStart = (token: number) => token - (token % TOKEN_BLOCK);
const blockEnd = (token: number) => TOKEN_BLOCK * Math.ceil(token / TOKEN_BLOCK);

/** The WebAssembly kernels and their memory. */
export function createSensitivityKernels({ headDim: dims, context, pageTokens, softcap }: AttentionShape) {
  const padded = blockEnd(context);
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
    slopes: 4 * padded,
    keySums: 4 * padded,
    valueSums: 4 * padded,
    moments: 4 * Math.ceil(context / pageTokens) * dims * dims,
  };
  const { bytes, ...offsets } = fieldOffsets(sizes);
  const { memory, calls } = instantiate(sensitivityKernels(dims), bytes);
  const named = (Object.keys(sizes) as (keyof typeof sizes)[]).map(name => [
    name,
    new Float32Array(memory.buffer, offsets[name], sizes[name] / 4),
  ]);
  const arrays = Object.fromEntries(named) as Record<keyof typeof sizes, Float32Array>;
  arrays.slopes.fill(1);
  /** The arrays from a block on. */
  const from = (block: number) => {
    const at = (name: 'valueNorms' | 'p' | 'slopes' | 'keySums' | 'valueSums') => offsets[name] + 4 * block;
    return {
      ...offsets,
      keys: offsets.keys + 4 * block * dims,
      values: offsets.values + 4 * block * dims,
      ...{ forms: at('valueNorms'), p: at('p'), slopes: at('slopes') },
      ...{ keySums: at('keySums'), valueSums: at('valueSums') },
    };
  };
  return {
    arrays,
    computeValueNorms: () => calls.quadraticForm({ ...offsets, count: padded, forms: offsets.valueNorms }),
    attend: (first: number, end: number, sinkLogit: number) => {
      const block = blockStart(first);
      calls.attend({
        ...from(block),
        count: end - block,
        hidden: first - block,
        softcap: floatBits(softcap),
        sinkLogit: floatBits(sinkLogit),
      });
    },
    addErrorWeights: (first: number, end: number, outputForm: number) => {
      const block = blockStart(first);
      calls.errorWeights({ ...from(block), count: blockEnd(end) - block, outputForm: floatBits(outputForm) });
    },
    addOuterProduct: (page: number, weight: number) =>
      calls.addOuterProduct({
        sum: offsets.moments + 4 * dims * dims * page,
        x: offsets.rawQuery,
        weight: floatBits(weight),
      }),
  };
}
