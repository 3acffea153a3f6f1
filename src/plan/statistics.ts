/**
 * Statistics of one layer in one row of text: sampled keys and values, and how much errors in them change the layer's output
 * (attention-sensitivity.ts). The records of all rows together are the samples that codecs learn from.
 *
 * Two things are sampled. Of each row, `samples` positions are kept, one from each of as many equal intervals; the first 4
 * (sinks) and those of the last page, which are never read from codes, are left out. And only every n-th query is used, from
 * an offset that depends on the row: all of them would take longer than the forward pass.
 */
import type { Side } from '../codec/codec.ts';
import type { Samples } from '../codec/learned.ts';
import { createRandom } from '../codec/parts/random.ts';
import { fromF16, toF16 } from '../kernel/float.ts';
import {
  type AttentionInput,
  type AttentionShape,
  createSensitivityKernels,
  measureSensitivity,
  SINKS,
  sealedTokens,
} from './attention-sensitivity.ts';
import { valueMetric } from './metric.ts';
import { type PlanShape, shapeOfLayer } from './plan.ts';

export interface StatisticsShape extends AttentionShape {
  /** Positions kept per row. */
  samples: number;
  /** Every n-th query is used. */
  queryStep: number;
  seed: number;
}

/** The shape of one layer of a model whose layers differ. */
export const statisticsOfLayer = (shape: StatisticsShape, model: PlanShape, layer: number): StatisticsShape => ({
  ...shape,
  ropeFrequencies: shapeOfLayer(model, layer).ropeFrequencies ?? shape.ropeFrequencies,
  window: model.attentionWindows?.[layer],
});

/** One layer's statistics of one row: views of the record's bytes, in this order. */
export interface LayerRecord {
  /** [side][kv head][sample]: the weight of an error in the token, by the attention it gets. */
  attention: Float32Array;
  /** [kv head][dim][dim]: the metric of key errors, for keys relative to their page's position. */
  metric: Float32Array;
  /** [head]: the sum of squared probabilities of tokens read from codes. */
  shares: Float32Array;
  /** [side][kv head][dim]: the largest magnitudes. */
  maxima: Float32Array;
  /** One number: the squared norm of the layer's input, the median over tokens; times what a norm of its output divides by. */
  inputNorm: Float32Array;
  /** [kv head][sample][dim], f16: keys after RoPE. */
  keys: Uint16Array;
  values: Uint16Array;
}

/** Weights are capped at this multiple of the mean, and a fifth of each weight does not depend on attention. */
const MAX_RELATIVE_ATTENTION = 50;
const ATTENTION_SHARE = 0.8;
/** One sample in 5 is stretched, to stand for text that was not seen. */
const STRETCH_EVERY = 5;

export function recordBytes({ heads, kvHeads, headDim, samples }: StatisticsShape): number {
  const floats = 2 * kvHeads * samples + kvHeads * headDim * headDim + heads + 2 * kvHeads * headDim + 1;
  return 4 * floats + 4 * kvHeads * samples * headDim;
}

export function viewRecord(shape: StatisticsShape, bytes: Uint8Array<ArrayBuffer>): LayerRecord {
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
    inputNorm: floats(1),
    keys: halves(kvHeads * samples * headDim),
    values: halves(kvHeads * samples * headDim),
  };
}

/** Number of positions per row that can be kept. */
export const maxSamples = (shape: Pick<StatisticsShape, 'context' | 'pageTokens'>): number =>
  sealedTokens(shape, shape.context - 1) - SINKS;

/** The positions kept of a row: one from each of equal intervals, in order. */
export function sampledPositions(shape: StatisticsShape, row: number): Int32Array {
  const { samples, seed } = shape;
  const random = createRandom(seed * 0x10001 + row);
  const intervalLength = maxSamples(shape) / samples;
  return Int32Array.from({ length: samples }, (_, i) => {
    const [from, to] = [Math.ceil(i * intervalLength), Math.ceil((i + 1) * intervalLength)];
    return SINKS + from + Math.floor(random.uniform() * (to - from));
  });
}

/** The positions of the queries used; always includes the last one, so that every token has a query. */
export function sampledQueries({ context, queryStep, seed }: StatisticsShape, row: number): number[] {
  const queries: number[] = [];
  const offset = createRandom(seed * 0x10001 + row + 0x8000).uint32() % Math.min(queryStep, context);
  for (let t = offset; t < context - 1; t += queryStep) queries.push(t);
  return [...queries, context - 1];
}

/** The input of a record: one layer's vectors of a row; the queries are the sampled ones. */
export interface LayerObservation extends AttentionInput {
  inputNorm: number;
}

/** Computes one layer's record of a row. */
export function observeLayer(shape: StatisticsShape, row: number, observed: LayerObservation): Uint8Array<ArrayBuffer> {
  const { heads, kvHeads, headDim, samples, context } = shape;
  const { k, v, inputNorm, outputNorm } = observed;
  const bytes = new Uint8Array(recordBytes(shape));
  const record = viewRecord(shape, bytes);
  const outputNorms: number[] = [];
  const positions = sampledPositions(shape, row);
  const queries = sampledQueries(shape, row);
  const vector = kvHeads * headDim;
  const kernels = createSensitivityKernels(shape);
  for (let head = 0; head < kvHeads; head++) {
    const sensitivity = measureSensitivity(shape, kernels, head, queries, observed);
    sensitivity.outputNorms.forEach((norm, i) => {
      outputNorms[i] = (outputNorms[i] ?? 0) + norm;
    });
    record.metric.set(sensitivity.metric, head * headDim * headDim);
    record.shares.set(sensitivity.shares, (head * heads) / kvHeads);
    positions.forEach((t, i) => {
      const offset = (head * samples + i) * headDim;
      record.attention[head * samples + i] = sensitivity.keys[t];
      record.attention[(kvHeads + head) * samples + i] = sensitivity.values[t];
      for (let d = 0; d < headDim; d++) {
        record.keys[offset + d] = toF16(k[t * vector + head * headDim + d]);
        record.values[offset + d] = toF16(v[t * vector + head * headDim + d]);
      }
    });
  }
  // Changes of an output that is normalized are relative to its norm before that.
  record.inputNorm[0] = outputNorm ? (inputNorm * median(outputNorms)) / outputNorm : inputNorm;
  for (const [side, x] of [k, v].entries()) {
    const largest = record.maxima.subarray(side * vector, (side + 1) * vector);
    for (let offset = SINKS * vector; offset < context * vector; offset += vector) {
      for (let i = 0; i < vector; i++) if (Math.abs(x[offset + i]) > largest[i]) largest[i] = Math.abs(x[offset + i]);
    }
  }
  return bytes;
}

const median = (values: readonly number[]) => [...values].sort((a, b) => a - b)[values.length >> 1] ?? 1;

/** The samples that codecs learn one side of a layer from: its records of all rows, in order, and the side's metric. */
export function samplesFromRecords(
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
    const recordMaxima = record.maxima.subarray(side === 'key' ? 0 : maxima.length);
    for (let i = 0; i < maxima.length; i++) maxima[i] = Math.max(maxima[i], recordMaxima[i]);
  });
  for (let head = 0; head < kvHeads; head++) normalizeAttention(attention.subarray(head * count, (head + 1) * count));
  return { vectors, count, positions, attentionWeights: attention, metric, maxima, stretchEvery: STRETCH_EVERY };
}

/** Turns attention into weights, in place: relative to the mean, with a minimum and a maximum. */
function normalizeAttention(attention: Float32Array): void {
  const mean = attention.reduce((sum, a) => sum + a, 0) / attention.length;
  for (let i = 0; i < attention.length; i++) {
    attention[i] = ATTENTION_SHARE * Math.min(MAX_RELATIVE_ATTENTION, attention[i] / mean) + (1 - ATTENTION_SHARE);
  }
}

/**
 * [kv head]: the squared change of the layer's output, relative to its input, per unit of loss: the loss is the error in a
 * metric with a mean diagonal of 1, times the token's weight over the mean weight, with a maximum.
 */
export function outputErrorPerLoss(shape: StatisticsShape, records: readonly LayerRecord[], side: Side): number[] {
  const { kvHeads, headDim, samples, scale } = shape;
  return Array.from({ length: kvHeads }, (_, head) => {
    const first = (side === 'key' ? head : kvHeads + head) * samples;
    const weights = records.flatMap(({ attention }) => Array.from(attention.subarray(first, first + samples)));
    const sum = weights.reduce((a, b) => a + b, 0);
    const limit = (MAX_RELATIVE_ATTENTION * sum) / weights.length;
    const capped = weights.reduce((a, b) => a + Math.min(limit, b), 0);
    let keyMetric = 0;
    for (const { metric } of records)
      for (let i = 0; i < headDim; i++) keyMetric += metric[(head * headDim + i) * headDim + i] / headDim;
    const change = side === 'key' ? scale ** 2 * keyMetric * (capped / sum) : capped * (maxSamples(shape) / samples);
    return change / records.reduce((a, { inputNorm }) => a + inputNorm[0], 0);
  });
}

/** The error metric of one side over all rows. */
export function errorMetric(
  shape: StatisticsShape,
  records: readonly LayerRecord[],
  side: Side,
  grams: Float32Array,
): Float64Array {
  if (side === 'key') return sumArrays(records.map(({ metric }) => metric));
  return valueMetric(grams, sumArrays(records.map(({ shares }) => shares)), shape);
}

function sumArrays(arrays: readonly Float32Array[]): Float64Array {
  const sum = new Float64Array(arrays[0].length);
  for (const array of arrays) for (let i = 0; i < sum.length; i++) sum[i] += array[i];
  return sum;
}
