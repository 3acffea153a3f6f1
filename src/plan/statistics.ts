/**
 * What calibration sees of one layer in one row of text, small enough to keep: some keys and values, how much they are
 * looked at, the shape of the queries. Records of all rows together make the samples that codecs learn from.
 *
 * Everything is exact but for two choices. `samples` positions a row are kept, one from each of as many equal stretches
 * (positions below 4 are sinks, which stay f16, and do not count). And only every 8th query is looked at, from an offset
 * that differs by row: all of them would take longer than the forward pass.
 */
import type { Side } from '../codec/codec.ts';
import { turnPairs } from '../codec/domain.ts';
import type { Samples } from '../codec/learned.ts';
import { createRandom } from '../codec/parts/random.ts';
import { fromF16, toF16 } from '../kernel/float.ts';
import { KEY_BLOCK, LOOK_STATE, lookModule } from '../kernel/wasm/kernels/look.ts';

export interface StatisticsShape {
  heads: number;
  kvHeads: number;
  headDim: number;
  /** Multiplies the dot products of queries and keys. */
  scale: number;
  /** RoPE: the angle of each adjacent pair a position. */
  turn: Float64Array;
  /** Tokens a row. */
  context: number;
  /** Positions kept of a row. */
  samples: number;
  seed: number;
}

/** Views of one record's bytes, in this order. */
export interface LayerRecord {
  /** [kv head][sample]: squared attention probability, mean over this and later queries and the group's heads. */
  attention: Float32Array;
  /** [kv head][dim][dim]: second moment of queries before RoPE, mean over positions, sum over the group. */
  queries: Float32Array;
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

export function recordBytes({ kvHeads, headDim, samples }: StatisticsShape): number {
  const floats = kvHeads * samples + kvHeads * headDim * headDim + 2 * kvHeads * headDim;
  return 4 * floats + 4 * kvHeads * samples * headDim;
}

export function recordOf(shape: StatisticsShape, bytes: Uint8Array<ArrayBuffer>): LayerRecord {
  const { kvHeads, headDim, samples } = shape;
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
    attention: floats(kvHeads * samples),
    queries: floats(kvHeads * headDim * headDim),
    maxima: floats(2 * kvHeads * headDim),
    keys: halves(kvHeads * samples * headDim),
    values: halves(kvHeads * samples * headDim),
  };
}

/** The positions kept of a row: one from each of equal stretches, in order. */
export function sampledPositions({ context, samples, seed }: StatisticsShape, row: number): Int32Array {
  const random = createRandom(seed * 0x10001 + row);
  const stretch = (context - SINKS) / samples;
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

/** One layer's record of a row, from vectors after RoPE: [token][kv head][dim], and [sampled query][head][dim]. */
export function observeLayer(
  shape: StatisticsShape,
  row: number,
  q: Float32Array,
  k: Float32Array,
  v: Float32Array,
): Uint8Array<ArrayBuffer> {
  const { kvHeads, headDim, samples, context } = shape;
  const bytes = new Uint8Array(recordBytes(shape));
  const record = recordOf(shape, bytes);
  const positions = sampledPositions(shape, row);
  const queries = sampledQueries(shape, row);
  const vector = kvHeads * headDim;
  const looker = createLooker(headDim, context);
  for (let head = 0; head < kvHeads; head++) {
    const attention = squaredAttention(shape, looker, head, queries, q, k);
    positions.forEach((t, i) => {
      const at = (head * samples + i) * headDim;
      record.attention[head * samples + i] = attention[t];
      for (let d = 0; d < headDim; d++) {
        record.keys[at + d] = toF16(k[t * vector + head * headDim + d]);
        record.values[at + d] = toF16(v[t * vector + head * headDim + d]);
      }
    });
    addQueries(shape, head, queries, q, record.queries);
  }
  for (const [side, x] of [k, v].entries()) {
    const largest = record.maxima.subarray(side * vector, (side + 1) * vector);
    for (let at = SINKS * vector; at < context * vector; at += vector) {
      for (let i = 0; i < vector; i++) if (Math.abs(x[at + i]) > largest[i]) largest[i] = Math.abs(x[at + i]);
    }
  }
  return bytes;
}

/** [position]: what the queries' probabilities there, squared, are on average over those that see it. */
function squaredAttention(
  { heads, kvHeads, headDim, scale, context }: StatisticsShape,
  { query, keys, sums, look }: Looker,
  head: number,
  queries: readonly number[],
  q: Float32Array,
  k: Float32Array,
): Float32Array {
  const group = heads / kvHeads;
  sums.fill(0);
  for (let t = 0; t < context; t++) {
    const [from, to] = [(t * kvHeads + head) * headDim, keyPlace(t, headDim)];
    for (let d = 0; d < headDim; d++) keys[to + d * KEY_BLOCK] = k[from + d];
  }
  const seen = new Uint32Array(context);
  queries.forEach((t, i) => {
    for (let g = 0; g < group; g++) {
      const from = (i * heads + head * group + g) * headDim;
      for (let d = 0; d < headDim; d++) query[d] = scale * Math.LOG2E * q[from + d];
      look(t + 1);
    }
    seen[t]++;
  });
  // Those that see a position are at it or behind it.
  for (let t = context - 1, later = 0; t >= 0; t--) {
    later += seen[t];
    sums[t] /= later * group;
  }
  return sums;
}

const keyPlace = (key: number, dims: number) => Math.floor(key / KEY_BLOCK) * KEY_BLOCK * dims + (key % KEY_BLOCK);

type Looker = ReturnType<typeof createLooker>;

/** The kernel over a memory of its own: a query and keys go in, squares of probabilities add up. */
function createLooker(dims: number, most: number) {
  const padded = KEY_BLOCK * Math.ceil(most / KEY_BLOCK);
  const lengths = {
    state: LOOK_STATE / 4,
    query: 4 * Math.ceil(dims / 4),
    keys: padded * dims,
    scores: padded,
    sums: padded,
  };
  const at = { state: 0, query: 0, keys: 0, scores: 0, sums: 0 };
  let bytes = 0;
  for (const name of Object.keys(lengths) as (keyof typeof at)[]) {
    at[name] = bytes;
    bytes += 4 * lengths[name];
  }
  const pages = Math.ceil(bytes / 65536);
  const memory = new WebAssembly.Memory({ initial: pages, maximum: pages });
  const module = new WebAssembly.Module(lookModule(dims, { maxPages: pages, shared: false }));
  const { look } = new WebAssembly.Instance(module, { env: { memory } }).exports as unknown as {
    look(query: number, keys: number, count: number, scores: number, sums: number, state: number): void;
  };
  const floats = (name: keyof typeof at) => new Float32Array(memory.buffer, at[name], lengths[name]);
  return {
    query: floats('query'),
    keys: floats('keys'),
    sums: floats('sums'),
    look: (count: number) => look(at.query, at.keys, count, at.scores, at.sums, at.state),
  };
}

function addQueries(
  { heads, kvHeads, headDim, turn }: StatisticsShape,
  head: number,
  queries: readonly number[],
  q: Float32Array,
  out: Float32Array,
): void {
  const group = heads / kvHeads;
  const sum = new Float64Array(headDim * headDim);
  queries.forEach((t, n) => {
    for (let g = 0; g < group; g++) {
      const at = (n * heads + head * group + g) * headDim;
      const x = Float64Array.from(q.subarray(at, at + headDim));
      turnPairs(x, turn, -t);
      for (let i = 0; i < headDim; i++) {
        for (let j = 0, to = i * headDim; j <= i; j++, to++) sum[to] += x[i] * x[j];
      }
    }
  });
  for (let i = 0; i < headDim; i++) {
    for (let j = 0; j < headDim; j++) {
      const of = sum[Math.max(i, j) * headDim + Math.min(i, j)];
      out[(head * headDim + i) * headDim + j] = of / queries.length;
    }
  }
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
      attention.set(record.attention.subarray(from, from + samples), to);
      for (let i = 0; i < samples * headDim; i++) vectors[to * headDim + i] = fromF16(codes[from * headDim + i]);
    }
    const seen = record.maxima.subarray(side === 'key' ? 0 : maxima.length);
    for (let i = 0; i < maxima.length; i++) maxima[i] = Math.max(maxima[i], seen[i]);
  });
  for (let head = 0; head < kvHeads; head++) weigh(attention.subarray(head * count, (head + 1) * count));
  return { vectors, count, positions, attention, metric, maxima };
}

/** Attention to weights, in place: relative to the mean, held within bounds. */
function weigh(attention: Float32Array): void {
  const mean = attention.reduce((sum, a) => sum + a, 0) / attention.length;
  for (let i = 0; i < attention.length; i++) {
    attention[i] = ATTENTION_SHARE * Math.min(MOST_ATTENTION, attention[i] / mean) + (1 - ATTENTION_SHARE);
  }
}

/** The queries' second moment over all rows. */
export function queryMoment(records: readonly LayerRecord[]): Float64Array {
  const sum = new Float64Array(records[0].queries.length);
  for (const { queries } of records)
    queries.forEach((x, i) => {
      sum[i] += x / records.length;
    });
  return sum;
}
