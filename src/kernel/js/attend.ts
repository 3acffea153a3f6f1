/**
 * Attention over any mix of packed pages: the definition that every fast kernel is held against.
 *
 * The loop knows nothing of a codec but the two interfaces below. Partial sums stay in the codec's own domain
 * (rotated, centred) as long as pages of the same value codec follow one another; they are finished once and then
 * merged as states.
 */
import { emptyState, merge, output, type State } from '../state.ts';

export interface PreparedQuery {
  vector: Float32Array;
  /** Added to every dot: what a subtracted mean contributes. */
  constant: number;
}

export interface KeyReader {
  /** Keys are stored relative to their page's start: the query must be prepared anew for each page. */
  readonly pageRelative: boolean;
  prepareQuery(query: Float32Array, head: number, pageStart: number): PreparedQuery;
  /** The dots of a prepared query with the first `tokens` keys of one head of a page. */
  dots(query: PreparedQuery, page: Uint8Array, head: number, tokens: number, out: Float32Array): void;
}

export interface ValueReader {
  /** Length of an unfinished sum; may exceed the head dimension. */
  readonly sumLength: number;
  /** sum += weights[t] * coded value[t], over the first `tokens` of one head of a page. */
  accumulate(weights: Float32Array, page: Uint8Array, head: number, tokens: number, sum: Float32Array): void;
  /** From an unfinished sum and the sum of its weights to a vector of the head dimension. */
  finishOutput(sum: Float32Array, weightSum: number, head: number, out: Float32Array): void;
}

export interface Segment {
  keys: KeyReader;
  values: ValueReader;
  keyPage: Uint8Array;
  valuePage: Uint8Array;
  /** Position of the page's first token. */
  start: number;
  tokens: number;
  /** Tokens at the front that are read elsewhere: sinks kept in f16. */
  skip: number;
}

export interface AttendOptions {
  headDim: number;
  kvHeads: number;
  /** Factor on every score; 1 / sqrt(headDim) unless given. */
  scale?: number;
}

/** Query [query head][dim] to output [query head][dim]; query heads share KV heads in equal groups. */
export function attend(query: Float32Array, segments: readonly Segment[], options: AttendOptions): Float32Array {
  const { headDim, kvHeads } = options;
  const group = query.length / headDim / kvHeads;
  const out = new Float32Array(query.length);
  for (let offset = 0; offset < query.length; offset += headDim) {
    const head = Math.floor(offset / headDim / group);
    const state = attendHead(query.subarray(offset, offset + headDim), segments, head, options);
    out.set(output(state), offset);
  }
  return out;
}

/** The finished state of one query head over all segments. */
export function attendHead(
  query: Float32Array,
  segments: readonly Segment[],
  head: number,
  { headDim, scale = 1 / Math.sqrt(headDim) }: AttendOptions,
): State {
  const total = emptyState(headDim);
  const prepared = new Map<KeyReader, PreparedQuery>();
  let open: { values: ValueReader; state: State } | undefined;

  const close = () => {
    if (!open) return;
    const { m, l, o: sum } = open.state;
    const o = new Float32Array(headDim);
    open.values.finishOutput(sum, l, head, o);
    merge(total, { o, m, l });
    open = undefined;
  };

  for (const segment of segments) {
    const { keys, values, tokens, skip } = segment;
    if (tokens <= skip) continue;
    let q = keys.pageRelative ? undefined : prepared.get(keys);
    if (!q) {
      q = keys.prepareQuery(query, head, segment.start);
      prepared.set(keys, q);
    }
    const scores = new Float32Array(tokens);
    keys.dots(q, segment.keyPage, head, tokens, scores);
    if (open?.values !== values) close();
    open ??= { values, state: emptyState(values.sumLength) };
    merge(open.state, softmax(scores, q.constant, scale, skip, segment, head));
  }
  close();
  return total;
}

/** One page's unfinished state from its dots. */
function softmax(
  scores: Float32Array,
  constant: number,
  scale: number,
  skip: number,
  { values, valuePage, tokens }: Segment,
  head: number,
): State {
  const state = emptyState(values.sumLength);
  for (let t = 0; t < tokens; t++) scores[t] = (scores[t] + constant) * scale;
  for (let t = skip; t < tokens; t++) state.m = Math.max(state.m, scores[t]);
  const weights = scores.map((score, t) => (t < skip ? 0 : Math.exp(score - state.m)));
  for (const weight of weights) state.l += weight;
  values.accumulate(weights, valuePage, head, tokens, state.o);
  return state;
}
