/**
 * The arrays that codecs learn from data, and the samples that they learn from. A family's `learn` trains the arrays by
 * name, a profile stores them for every layer and side, and the family's `create` reads them.
 */
import { UnsupportedError } from '../util/errors.ts';
import type { Shape } from './codec.ts';
import { createRandom, normals } from './parts/random.ts';

/** Arrays for one layer's keys or values, by name. `mean` is [kv head][dim]; other names are defined by their family. */
export type Learned = Readonly<Record<string, Float32Array | undefined>>;

/** Samples and statistics of one layer's keys or values over some text. */
export interface Samples {
  /** [kv head][sample][dim]: keys after RoPE, or values. */
  vectors: Float32Array;
  count: number;
  /** The position of each sample. */
  positions: Int32Array;
  /** [kv head][sample]: how much attention later queries pay to it, 1 on average. */
  attentionWeights: Float32Array;
  /** [kv head][dim][dim]: the cost of an error e is e^T M e, from the queries (keys) or the output matrix (values). */
  metric: Float64Array;
  /** [kv head][dim]: largest magnitudes over the whole text. */
  maxima: Float32Array;
  /** If set, every n-th sample may be altered to represent unseen text (see mead). */
  stretchEvery?: number;
}

/** A learned array, checked for its length and finite values; throws with instructions if it is missing. */
export function requireLearned(
  { spec, learned }: { spec: string; learned: Learned },
  name: string,
  length: number,
): Float32Array {
  const array = learned[name];
  if (!array)
    throw new UnsupportedError(
      `${spec} needs learned data, but "${name}" is missing. Run \`kvasir calibrate MODEL\` to create a profile, or pass ` +
        'the result of `learn` on your own vectors.',
    );
  if (array.length !== length || !array.every(Number.isFinite))
    throw new UnsupportedError(
      `${spec}: the learned "${name}" must hold ${length} finite numbers; it holds ${array.length}. ` +
        'It was made for another shape or is damaged. Calibrate again.',
    );
  return array;
}

/** Samples from vectors [token][kv head][dim] that start at position 0, with equal weights and an identity metric. */
export function samplesOf(x: Float32Array, { headDim, kvHeads }: Pick<Shape, 'headDim' | 'kvHeads'>): Samples {
  const count = x.length / (headDim * kvHeads);
  const vectors = new Float32Array(x.length);
  const maxima = new Float32Array(headDim * kvHeads);
  const metric = new Float64Array(kvHeads * headDim * headDim);
  for (let head = 0; head < kvHeads; head++) {
    for (let t = 0; t < count; t++) {
      for (let i = 0; i < headDim; i++) {
        const value = x[(t * kvHeads + head) * headDim + i];
        vectors[(head * count + t) * headDim + i] = value;
        maxima[head * headDim + i] = Math.max(maxima[head * headDim + i], Math.abs(value));
      }
    }
    for (let i = 0; i < headDim; i++) metric[(head * headDim + i) * headDim + i] = 1;
  }
  const positions = Int32Array.from({ length: count }, (_, t) => t);
  return { vectors, count, positions, attentionWeights: new Float32Array(kvHeads * count).fill(1), metric, maxima };
}

/** Seeded Gaussian samples, for use without data. */
export const gaussianSamples = (shape: Pick<Shape, 'headDim' | 'kvHeads'>, count: number): Samples =>
  samplesOf(normals(createRandom(count), count * shape.headDim * shape.kvHeads), shape);

/** The samples' vectors minus the mean of those of the same page, as centered pages hold them. */
export function centerByPage(
  { vectors, count, positions }: Samples,
  { headDim, kvHeads, pageTokens }: Shape,
): Float32Array {
  const centered = vectors.slice();
  const pageOf = (sample: number) => Math.floor(positions[sample] / pageTokens);
  // Samples are in the order of the text; a smaller position is in the next row of it.
  const isNextPage = (sample: number) =>
    sample === count || pageOf(sample) !== pageOf(sample - 1) || positions[sample] < positions[sample - 1];
  for (let first = 0, end = 1; end <= count; end++) {
    if (!isNextPage(end)) continue;
    for (let head = 0; head < kvHeads; head++) {
      for (let i = 0; i < headDim; i++) {
        const at = (sample: number) => (head * count + sample) * headDim + i;
        let sum = 0;
        for (let sample = first; sample < end; sample++) sum += vectors[at(sample)];
        for (let sample = first; sample < end; sample++) centered[at(sample)] -= sum / (end - first);
      }
    }
    first = end;
  }
  return centered;
}
