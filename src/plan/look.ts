/**
 * What later queries make of one KV head's keys and values. They look at many tokens, but read from codes only those
 * whose page has ended; of these an error e in token j moves the output of query t
 * - by p v-error: p_tj^2 e^T G e, where it is the value's;
 * - by score: p_tj^2 |v_j - o_t|^2 (q_t . e)^2, where it is the key's, |.| being measured by G, too.
 * p are attention's probabilities, o_t is what attention gives, G = W^T W of the head's columns of the output matrix.
 * Summed over queries this is a weight for each token, and a metric for all.
 */

import { sealedPages } from '../kernel/visibility.ts';
import { LOOK_STATE, lookModule, TOKEN_BLOCK } from '../kernel/wasm/kernels/look.ts';
import { turnBothSides } from './metric.ts';

export interface LookShape {
  heads: number;
  kvHeads: number;
  headDim: number;
  /** Multiplies the dot products of queries and keys. */
  scale: number;
  /** RoPE: the angle of each adjacent pair a position. */
  turn: Float64Array;
  /** Tokens a row. */
  context: number;
  /** Tokens that are sealed together. */
  pageTokens: number;
}

export interface Looked {
  /** [token]: what an error of its key, or its value, weighs. */
  keys: Float32Array;
  values: Float32Array;
  /** [dim][dim]: what an error of a key costs by its direction, keys being turned back to their page's start. */
  metric: Float64Array;
  /** [head of the group]: squared probabilities, of all queries and tokens. */
  shares: Float64Array;
}

/** How many tokens a query at position t reads from codes. A row of less than two pages is taken as two halves. */
export function sealedBefore({ context, pageTokens }: Pick<LookShape, 'context' | 'pageTokens'>, t: number): number {
  const page = Math.min(pageTokens, context >> 1);
  return page * sealedPages(t, { pageTokens: page, recent: 0 });
}

/** One KV head's. Vectors come after RoPE: [token][kv head][dim], and [query][head][dim] at positions `queries`. */
export function lookAt(
  shape: LookShape,
  { arrays, size, look, weigh, addSquare }: Looker,
  head: number,
  queries: readonly number[],
  { q, k, v, grams }: { q: Float32Array; k: Float32Array; v: Float32Array; grams: Float32Array },
): Looked {
  const { heads, kvHeads, headDim: d, scale, context, pageTokens } = shape;
  const group = heads / kvHeads;
  const { own, query, keys, values, gram, sizes, p, mix, back, keySums, valueSums, moments } = arrays;
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
    sizes.fill(0);
    valueSums.fill(0);
    size();
    queries.forEach((t, n) => {
      const sealed = sealedBefore(shape, t);
      if (sealed === 0) return;
      own.set(q.subarray((n * heads + head * group + g) * d, (n * heads + head * group + g + 1) * d));
      for (let i = 0; i < d; i++) query[i] = scale * Math.LOG2E * own[i];
      look(t + 1);
      let length = 0;
      for (let i = 0; i < d; i++) {
        let sum = 0;
        for (let j = 0; j < d; j++) sum += gram[i * d + j] * mix[j];
        back[i] = sum;
        length += sum * mix[i];
      }
      p.fill(0, sealed, TOKEN_BLOCK * Math.ceil(sealed / TOKEN_BLOCK));
      weigh(sealed, length);
      for (let page = 0; page * pageTokens < sealed; page++) {
        let weight = 0;
        for (let j = page * pageTokens; j < Math.min(sealed, (page + 1) * pageTokens); j++) weight += p[j];
        addSquare(page, weight);
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
    turnBothSides(moment, d, shape.turn, -page * pageTokens);
    for (let i = 0; i < metric.length; i++) metric[i] += moment[i];
  }
  return { keys: keySums.slice(0, context), values: weights, metric, shares };
}

export type Looker = ReturnType<typeof createLooker>;

/** The kernels over a memory of their own. */
export function createLooker({ headDim: dims, context, pageTokens }: LookShape) {
  const padded = TOKEN_BLOCK * Math.ceil(context / TOKEN_BLOCK);
  const vector = 4 * Math.ceil(dims / 4);
  const lengths = {
    state: LOOK_STATE / 4,
    own: vector,
    query: vector,
    mix: vector,
    back: vector,
    gram: vector * dims,
    keys: padded * dims,
    values: padded * dims,
    sizes: padded,
    p: padded,
    keySums: padded,
    valueSums: padded,
    moments: Math.ceil(context / pageTokens) * dims * dims,
  };
  type Name = keyof typeof lengths;
  const names = Object.keys(lengths) as Name[];
  const at = {} as Record<Name, number>;
  let bytes = 0;
  for (const name of names) {
    at[name] = bytes;
    bytes += 4 * lengths[name];
  }
  const pages = Math.ceil(bytes / 65536);
  const memory = new WebAssembly.Memory({ initial: pages, maximum: pages });
  const module = new WebAssembly.Module(lookModule(dims, { maxPages: pages, shared: false }));
  const kernels = new WebAssembly.Instance(module, { env: { memory } }).exports as unknown as Kernels;
  const blocks = (count: number) => TOKEN_BLOCK * Math.ceil(count / TOKEN_BLOCK);
  return {
    arrays: Object.fromEntries(
      names.map(name => [name, new Float32Array(memory.buffer, at[name], lengths[name])]),
    ) as Record<Name, Float32Array>,
    size: () => kernels.size(at.values, padded, at.gram, at.sizes),
    look: (count: number) => kernels.look(at.query, at.keys, at.values, count, at.p, at.mix, at.state),
    weigh: (count: number, own: number) =>
      kernels.weigh(at.values, blocks(count), at.p, at.sizes, at.back, own, at.keySums, at.valueSums),
    addSquare: (page: number, weight: number) => kernels.addSquare(at.moments + 4 * dims * dims * page, at.own, weight),
  };
}

interface Kernels {
  size(values: number, count: number, gram: number, sizes: number): void;
  look(query: number, keys: number, values: number, count: number, p: number, mix: number, state: number): void;
  weigh(
    values: number,
    count: number,
    p: number,
    sizes: number,
    back: number,
    own: number,
    keySums: number,
    valueSums: number,
  ): void;
  addSquare(sum: number, x: number, weight: number): void;
}
