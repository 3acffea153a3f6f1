/**
 * What calibration sees of one layer in one row of text, small enough to keep: some keys and values, what errors in them
 * would do to the layer's output (look.ts). Records of all rows together make the samples that codecs learn from.
 *
 * Everything is exact but for two choices. `samples` positions a row are kept, one from each of as many equal stretches
 * (positions below 4 are sinks, which stay f16, and those of the last page are never read from codes: both do not
 * count). And only every 8th query is looked at, from an offset that differs by row: all of them would take longer than
 * the forward pass.
 */
import type { Side } from '../codec/codec.ts';
import type { Samples } from '../codec/learned.ts';
import { createRandom } from '../codec/parts/random.ts';
import { fromF16, toF16 } from '../kernel/float.ts';
import { createLooker, type LookShape, lookAt, sealedBefore } from './look.ts';
import { valueMetric } from './metric.ts';

export interface StatisticsShape extends LookShape {
  /** Positions kept of a row. */
  samples: number;
  seed: number;
}

/** Views of one record's bytes, in this order. */
export interface LayerRecord {
  /** [side][kv head][sample]: what an error weighs by how later queries look at the token. */
  attention: Float32Array;
  /** [kv head][dim][dim]: what an error of a key costs by its direction, keys being turned to their page's start. */
  metric: Float32Array;
  /** [head]: squared probabilities of tokens read from codes. */
  shares: Float32Array;
  /** [side][kv head][dim]: largest magnitudes. */
  maxima: Float32Array;
  /** [kv head][sample][dim], f16: keys after RoPE. */
  keys: Uint16Array;
  values: Uint16Array;
}

const SINKS = 4;
const QUERY_STEP = 8;
/** Attention this many times the mean counts no more than that; a fifth of the weight does not ask for attention. */
const MOST_ATTENTION = 50;
const ATTENTION_SHARE = 0.8;
/** One sample of so many stands for text that was not seen. */
const STRANGERS = 5;

export function recordBytes({ heads, kvHeads, headDim, samples }: StatisticsShape): number {
  const floats = 2 * kvHeads * samples + kvHeads * headDim * headDim + heads + 2 * kvHeads * headDim;
  return 4 * floats + 4 * kvHeads * samples * headDim;
}

export function recordOf(shape: StatisticsShape, bytes: Uint8Array<ArrayBuffer>): LayerRecord {
  const { heads, kvHeads, headDim, samples } = shape;
  let offset = bytes.byteOffset;
  const floats = (length: number) => {
    offset += 4 * length;
    return new Float32Array(bytes.buffer, offset - 4 * length, length);
  };
  const halves = (length: number) => {
    offset += 2 * length;
    return new Uint16Array(bytes.buffer, offset - 2 * length, length);
  };
  return {
    attention: floats(2 * kvHeads * samples),
    metric: floats(kvHeads * headDim * headDim),
    shares: floats(heads),
    maxima: floats(2 * kvHeads * headDim),
    keys: halves(kvHeads * samples * headDim),
    values: halves(kvHeads * samples * headDim),
  };
}

/** How many positions of a row could be kept. */
export const mostSamples = (shape: Pick<StatisticsShape, 'context' | 'pageTokens'>): number =>
  sealedBefore(shape, shape.context - 1) - SINKS;

/** The positions kept of a row: one from each of equal stretches, in order. */
export function sampledPositions(shape: StatisticsShape, row: number): Int32Array {
  const { samples, seed } = shape;
  const random = createRandom(seed * 0x10001 + row);
  const stretch = mostSamples(shape) / samples;
  return Int32Array.from({ length: samples }, (_, i) => {
    const [from, to] = [Math.ceil(i * stretch), Math.ceil((i + 1) * stretch)];
    return SINKS + from + Math.floor(random.uniform() * (to - from));
  });
}

/** The queries looked at; the last one always, so that every token has one. */
export function sampledQueries({ context, seed }: StatisticsShape, row: number): number[] {
  const queries: number[] = [];
  const offset = createRandom(seed * 0x10001 + row + 0x8000).uint32() % Math.min(QUERY_STEP, context);
  for (let t = offset; t < context - 1; t += QUERY_STEP) queries.push(t);
  return [...queries, context - 1];
}

/** What a record is made of. */
export interface Observed {
  /** Vectors after RoPE: [sampled query][head][dim], and [token][kv head][dim]. */
  q: Float32Array;
  k: Float32Array;
  v: Float32Array;
  /** [head][dim][dim], see metric.ts. */
  grams: Float32Array;
}

/** One layer's record of a row. */
export function observeLayer(shape: StatisticsShape, row: number, observed: Observed): Uint8Array<ArrayBuffer> {
  const { heads, kvHeads, headDim, samples, context } = shape;
  const { k, v } = observed;
  const bytes = new Uint8Array(recordBytes(shape));
  const record = recordOf(shape, bytes);
  const positions = sampledPositions(shape, row);
  const queries = sampledQueries(shape, row);
  const vector = kvHeads * headDim;
  const looker = createLooker(shape);
  for (let head = 0; head < kvHeads; head++) {
    const looked = lookAt(shape, looker, head, queries, observed);
    record.metric.set(looked.metric, head * headDim * headDim);
    record.shares.set(looked.shares, (head * heads) / kvHeads);
    positions.forEach((t, i) => {
      const at = (head * samples + i) * headDim;
      record.attention[head * samples + i] = looked.keys[t];
      record.attention[(kvHeads + head) * samples + i] = looked.values[t];
      for (let d = 0; d < headDim; d++) {
        record.keys[at + d] = toF16(k[t * vector + head * headDim + d]);
        record.values[at + d] = toF16(v[t * vector + head * headDim + d]);
      }
    });
  }
  for (const [side, x] of [k, v].entries()) {
    const largest = record.maxima.subarray(side * vector, (side + 1) * vector);
    for (let at = SINKS * vector; at < context * vector; at += vector) {
      for (let i = 0; i < vector; i++) if (Math.abs(x[at + i]) > largest[i]) largest[i] = Math.abs(x[at + i]);
    }
  }
  return bytes;
}

/** What codecs learn one side of a layer from: its records of all rows, in order, and the side's metric. */
export function samplesFrom(
  shape: StatisticsShape,
  records: readonly LayerRecord[],
  side: Side,
  metric: Float64Array,
): Samples {
  const { kvHeads, headDim, samples } = shape;
  const count = records.length * samples;
  const vectors = new Float32Array(kvHeads * count * headDim);
  const attention = new Float32Array(kvHeads * count);
  const positions = new Int32Array(count);
  const maxima = new Float32Array(kvHeads * headDim);
  records.forEach((record, row) => {
    positions.set(sampledPositions(shape, row), row * samples);
    const codes = side === 'key' ? record.keys : record.values;
    for (let head = 0; head < kvHeads; head++) {
      const [from, to] = [head * samples, head * count + row * samples];
      const weights = record.attention.subarray(side === 'key' ? 0 : kvHeads * samples);
      attention.set(weights.subarray(from, from + samples), to);
      for (let i = 0; i < samples * headDim; i++) vectors[to * headDim + i] = fromF16(codes[from * headDim + i]);
    }
    const seen = record.maxima.subarray(side === 'key' ? 0 : maxima.length);
    for (let i = 0; i < maxima.length; i++) maxima[i] = Math.max(maxima[i], seen[i]);
  });
  for (let head = 0; head < kvHeads; head++) weigh(attention.subarray(head * count, (head + 1) * count));
  return { vectors, count, positions, attention, metric, maxima, strangers: STRANGERS };
}

/** Attention to weights, in place: relative to the mean, held within bounds. */
function weigh(attention: Float32Array): void {
  const mean = attention.reduce((sum, a) => sum + a, 0) / attention.length;
  for (let i = 0; i < attention.length; i++) {
    attention[i] = ATTENTION_SHARE * Math.min(MOST_ATTENTION, attention[i] / mean) + (1 - ATTENTION_SHARE);
  }
}

/** The keys' metric over all rows, or the values'. */
export function metricOf(
  shape: StatisticsShape,
  records: readonly LayerRecord[],
  side: Side,
  grams: Float32Array,
): Float64Array {
  if (side === 'key') return sumOf(records.map(({ metric }) => metric));
  return valueMetric(grams, sumOf(records.map(({ shares }) => shares)), shape);
}

function sumOf(arrays: readonly Float32Array[]): Float64Array {
  const sum = new Float64Array(arrays[0].length);
  for (const array of arrays) for (let i = 0; i < sum.length; i++) sum[i] += array[i];
  return sum;
}
