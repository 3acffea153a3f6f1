/** Random vectors for tests of the vector cache: the queries, keys and values of some tokens. */
import { createRandom, normals } from '../../src/codec/parts/random.ts';
import type { VectorSequence, Vectors } from '../../src/index.ts';

/** Small, because the js device and SwiftShader are slow. */
export const SHAPE = { layers: 2, heads: 4, kvHeads: 2, headDim: 32, pageTokens: 32 };
export const MAX_TOKENS = 300;
/** Max error of outputs relative to the norm of a value: float arithmetic, and int8 queries and probabilities. */
export const FLOAT_ATTENTION = 1e-3;
export const INT8_ATTENTION = 1e-2;

export const { layers, heads, kvHeads, headDim, pageTokens } = SHAPE;
export const vectorLength = kvHeads * headDim;
export const queryLength = heads * headDim;

/** Queries, keys and values of all tokens, by layer; token n has the same vectors in every test. */
const random = createRandom(7);
export const inputs = Array.from({ length: layers }, () => ({
  queries: normals(random, MAX_TOKENS * queryLength),
  keys: normals(random, MAX_TOKENS * vectorLength),
  values: normals(random, MAX_TOKENS * vectorLength),
}));
/** Rows of tokens `from` to before `to`. */
export const rowsOf = (layer: number, from: number, to: number) => ({
  queries: inputs[layer].queries.subarray(from * queryLength, to * queryLength),
  keys: inputs[layer].keys.subarray(from * vectorLength, to * vectorLength),
  values: inputs[layer].values.subarray(from * vectorLength, to * vectorLength),
});
export const append = (sequence: VectorSequence, from: number, to: number) => {
  const rows = inputs.map((_, layer) => rowsOf(layer, from, to));
  return sequence.append(
    rows.map(({ keys }) => keys),
    rows.map(({ values }) => values),
  );
};
/** One query for the state of a sequence, in every layer. */
export const query = inputs[0].queries.subarray(0, queryLength);

/** Everything that can be read of a sequence. */
export async function readAll(sequence: VectorSequence): Promise<(Float32Array | Vectors)[]> {
  const all: (Float32Array | Vectors)[] = [];
  for (let layer = 0; layer < layers; layer++) {
    if (sequence.length > 0) all.push(await sequence.attend(layer, query));
    all.push(await sequence.decode(layer));
  }
  return all;
}

/** Softmax attention of one row of queries over vectors, in f64. */
export function exactAttention(queries: Float32Array, { keys, values }: Vectors): Float32Array {
  const out = new Float32Array(queryLength);
  const tokens = keys.length / vectorLength;
  for (let head = 0; head < heads; head++) {
    const kvHead = Math.floor((head * kvHeads) / heads);
    const offset = (t: number) => t * vectorLength + kvHead * headDim;
    const dot = (t: number) => {
      let sum = 0;
      for (let j = 0; j < headDim; j++) sum += queries[head * headDim + j] * keys[offset(t) + j];
      return sum / Math.sqrt(headDim);
    };
    const scores = Array.from({ length: tokens }, (_, t) => dot(t));
    const max = Math.max(...scores);
    const weights = scores.map(score => Math.exp(score - max));
    const total = weights.reduce((a, b) => a + b, 0);
    for (let j = 0; j < headDim; j++)
      out[head * headDim + j] = weights.reduce((sum, w, t) => sum + w * values[offset(t) + j], 0) / total;
  }
  return out;
}
