/**
 * What calibration gives to codecs that learn from data, and what it starts from. A family says which arrays it needs
 * (`learn` makes them, by name), a profile keeps them for every layer and side, and the constructor takes them back.
 */
import { UnsupportedError } from '../errors.ts';
import type { Shape } from './codec.ts';
import { createRandom, normals } from './parts/random.ts';

/** One layer's keys or values: arrays by name. `mean` is [kv head][dim]; other names belong to their family. */
export type Learned = Readonly<Record<string, Float32Array | undefined>>;

/** What a pass over text has seen of one layer's keys or values. */
export interface Samples {
  /** [kv head][sample][dim]: keys as they are after RoPE, or values. */
  vectors: Float32Array;
  count: number;
  /** The position of each sample. */
  positions: Int32Array;
  /** [kv head][sample]: how much later queries look at it, 1 on average. */
  attention: Float32Array;
  /** [kv head][dim][dim]: what an error e costs is e^T M e, over all queries or through the output matrix. */
  metric: Float64Array;
  /** [kv head][dim]: largest magnitudes of all that was seen, samples or not. */
  maxima: Float32Array;
  /** One of so many samples may stand for text that was not seen; none unless given. */
  strangers?: number;
}

/** A learned array of the right length and finite, or the error that says how to get it. */
export function need(
  { spec, learned }: { spec: string; learned: Learned },
  name: string,
  length: number,
): Float32Array {
  const array = learned[name];
  if (!array)
    throw new UnsupportedError(
      `${spec} learns from data, and nothing learned was given ("${name}" is missing). Run \`kvasir calibrate MODEL\` ` +
        'to make the profile of a model, or pass what `learn` made of vectors of your own.',
    );
  if (array.length !== length || !array.every(Number.isFinite))
    throw new UnsupportedError(
      `${spec}: the learned "${name}" must hold ${length} finite numbers; it holds ${array.length}. ` +
        'It was made for another shape, or is damaged: calibrate again.',
    );
  return array;
}

/** Samples of vectors of one's own, [token][kv head][dim] from position 0 on: all count alike, in all directions. */
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
  return { vectors, count, positions, attention: new Float32Array(kvHeads * count).fill(1), metric, maxima };
}

/** Seeded Gaussian samples, where only sizes matter or no data is at hand. */
export const gaussianSamples = (shape: Pick<Shape, 'headDim' | 'kvHeads'>, count: number): Samples =>
  samplesOf(normals(createRandom(count), count * shape.headDim * shape.kvHeads), shape);

/** [kv head][dim] over all samples. */
export function meansOf(
  { vectors, count }: Samples,
  { headDim, kvHeads }: Pick<Shape, 'headDim' | 'kvHeads'>,
): Float32Array {
  const mean = new Float64Array(kvHeads * headDim);
  for (let i = 0; i < vectors.length; i++) {
    mean[Math.floor(i / (count * headDim)) * headDim + (i % headDim)] += vectors[i] / count;
  }
  return Float32Array.from(mean);
}
