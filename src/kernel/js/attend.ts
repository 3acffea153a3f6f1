/**
 * Attention over any mix of packed pages: the reference for all other kernels.
 *
 * The loop uses codecs only through KeyReader and ValueReader. Consecutive pages of one value codec share a partial sum
 * in the codec's domain (rotated, centered). It is transformed back once and then merged as a state.
 */
import { type AttentionState, attentionOutput, emptyState, mergeStates } from '../attention-state.ts';
import type { KeyReader, TransformedQuery, ValueReader } from '../page-readers.ts';

export interface Segment {
  keys: KeyReader;
  values: ValueReader;
  keyPage: Uint8Array;
  valuePage: Uint8Array;
  /** Position of the page's first token. */
  start: number;
  tokens: number;
  /** First tokens to skip: sinks, which are read from f16, and tokens before a window. */
  skip: number;
}

export interface AttendOptions {
  headDim: number;
  kvHeads: number;
  /** Factor on every score. Default: 1 / sqrt(headDim). */
  scale?: number;
  /** See kernel/device.ts. */
  softcap?: number;
}

/** Squashes a score into (-softcap, softcap). */
export const capped = (score: number, softcap?: number): number =>
  softcap ? softcap * Math.tanh(score / softcap) : score;

/** Query and output are [query head][dim]. Equal groups of query heads share a KV head (GQA). */
export function attend(query: Float32Array, segments: readonly Segment[], options: AttendOptions): Float32Array {
  const { headDim, kvHeads } = options;
  const group = query.length / headDim / kvHeads;
  const out = new Float32Array(query.length);
  for (let offset = 0; offset < query.length; offset += headDim) {
    const head = Math.floor(offset / headDim / group);
    const state = attendHead(query.subarray(offset, offset + headDim), segments, head, options);
    out.set(attentionOutput(state), offset);
  }
  return out;
}

/** The state of one query head over all segments, in the original domain. */
export function attendHead(
  query: Float32Array,
  segments: readonly Segment[],
  head: number,
  { headDim, scale = 1 / Math.sqrt(headDim), softcap }: AttendOptions,
): AttentionState {
  const total = emptyState(headDim);
  const queries = new Map<KeyReader, TransformedQuery>();
  let current: { values: ValueReader; state: AttentionState } | undefined;

  const flush = () => {
    if (!current) return;
    const { m, l, o: sum } = current.state;
    const o = new Float32Array(headDim);
    current.values.transformOutput(sum, l, head, o);
    mergeStates(total, { o, m, l });
    current = undefined;
  };

  for (const segment of segments) {
    const { keys, values, tokens, skip } = segment;
    if (tokens <= skip) continue;
    let q = keys.pageRelative ? undefined : queries.get(keys);
    if (!q) {
      q = keys.transformQuery(query, head, segment.start);
      queries.set(keys, q);
    }
    const scores = new Float32Array(tokens);
    keys.dotKeys(q, segment.keyPage, head, tokens, scores);
    if (current?.values !== values) flush();
    current ??= { values, state: emptyState(values.codedDim) };
    for (let t = 0; t < tokens; t++) scores[t] = capped((scores[t] + q.constant) * scale, softcap);
    mergeStates(current.state, softmax(scores, skip, segment, head));
  }
  flush();
  return total;
}

/** One page's state, in the value codec's domain. */
function softmax(
  scores: Float32Array,
  skip: number,
  { values, valuePage, tokens }: Segment,
  head: number,
): AttentionState {
  const state = emptyState(values.codedDim);
  for (let t = skip; t < tokens; t++) state.m = Math.max(state.m, scores[t]);
  const weights = scores.map((score, t) => (t < skip ? 0 : Math.exp(score - state.m)));
  for (const weight of weights) state.l += weight;
  values.accumulateValues(weights, valuePage, head, tokens, state.o);
  return state;
}
