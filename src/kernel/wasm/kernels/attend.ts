/**
 * Attention on packed pages. One loop for all codecs: a key fragment prepares queries and scores a page, a value
 * fragment sums it; between them lies the softmax. Work is cut into units of one KV head and a fixed run of pages,
 * whoever runs them, and their states are merged in order: the result depends on nothing but the row.
 */
import type { Fragment } from '../../fragment.ts';
import { f32, f32x4, type I32, i32, type V128, v128 } from '../emit.ts';
import { Kernel } from '../module.ts';
import { turnBytes } from '../turns.ts';
import { addMean, applyTranspose, matrixAt } from './domain.ts';
import { attendRows } from './rows.ts';
import { clearState, mergeStates, NOWHERE, STATE_HEAD, stateBytes } from './softmax.ts';
import type { Ahead } from './touch.ts';
import { blockAt, type Tables } from './unpack.ts';

/** Pages a unit. */
export const SPLIT = 4;

export interface AttendShape {
  headDim: number;
  /** Query heads a KV head. */
  group: number;
  kvHeads: number;
  pageTokens: number;
  relaxed: boolean;
  /** Pages are read as floats. */
  precise: boolean;
}

/** How a codec's keys are read. Addresses are of this thread's scratch. */
export interface KeyFragment {
  /** Bytes of a group's prepared queries. */
  queryBytes: number;
  /** From `group` queries of headDim f32, already scaled. */
  prepare(k: Kernel, queries: I32, head: I32, out: I32): void;
  /** Once a page, before its scores. */
  open(k: Kernel, page: I32, head: I32): void;
  /** scores[group][pageTokens]. `turn` is the page's, where keys are relative to its start. */
  scores(k: Kernel, page: I32, head: I32, query: I32, scores: I32, turn: I32, ahead?: Ahead): void;
}

export interface ValueFragment {
  codedDim: number;
  open(k: Kernel, page: I32, head: I32): void;
  /** Takes a page's scores, which it may overwrite, and its values into each head's state. */
  sum(k: Kernel, page: I32, head: I32, scores: I32, state: I32, ahead?: Ahead): void;
}

/** A group's queries out of a row of all heads', times a factor. */
function scaleQueries(k: Kernel, { headDim, group }: AttendShape, row: I32, head: I32, factor: V128, out: I32): void {
  const bytes = 4 * headDim * group;
  const from = k.i32(i32.add(row, i32.mul(head, bytes)));
  k.for(0, bytes, 16, i => {
    k.do(v128.store(i32.add(out, i), f32x4.mul(v128.load(i32.add(from, i)), factor)));
  });
}

/** prepare(q, qStride, out, rows, scale bits): every row's queries, group by group. */
export function prepareQueries(
  name: string,
  shape: AttendShape,
  keys: KeyFragment,
  scratch: (k: Kernel, thread: I32) => I32,
): Kernel {
  const { kvHeads } = shape;
  const k = new Kernel(name, Array(8).fill('i32'));
  const [q, stride, out, rows, scale, chunk, chunks, thread] = k.params.map((_, i) => k.i32Param(i));
  const scaled = k.i32(scratch(k, thread));
  const factor = k.v128(f32x4.splat(f32.mul(f32.fromBits(scale), f32.const(Math.LOG2E))));
  k.for(chunk, i32.mul(rows, kvHeads), chunks, unit => {
    const head = k.i32(i32.remU(unit, kvHeads));
    const row = i32.divU(unit, kvHeads);
    scaleQueries(k, shape, i32.add(q, i32.mul(row, stride)), head, factor, scaled);
    keys.prepare(k, scaled, head, i32.add(out, i32.mul(unit, keys.queryBytes)));
  });
  return k;
}

/** One page, while its KV head and its run of pages are worked on. */
export interface PageInHand {
  head: I32;
  keys: I32;
  values: I32;
  /** Where the keys of the next page of the run are, or of this one if it is the last. */
  nextKeys(): I32;
  turn: I32;
  /** The first so many tokens are read elsewhere. */
  hidden: I32;
  rows: I32;
  /** A row's state and its prepared queries. */
  stateOf(row: I32): I32;
  queryOf(row: I32): I32;
}

/**
 * pages(queries, states, leaves, keyOffset, valueOffset, rows, pages, skip, turns): states[row][head][split] over all
 * pages. `leaves` are addresses; the first `skip` tokens are read elsewhere; `turns` are those of the pages, in order.
 * `prepare` is done once a call, what it gives once a page that was opened.
 */
export function overPages(
  name: string,
  shape: AttendShape,
  keys: KeyFragment,
  values: ValueFragment,
  prepare: (k: Kernel, thread: I32, rows: I32) => (page: PageInHand) => void,
): Kernel {
  const { headDim, group, kvHeads, pageTokens } = shape;
  const k = new Kernel(name, Array(12).fill('i32'));
  const [queries, states, leaves, keyOffset, valueOffset, rows, pages, skip, turns, chunk, chunks, thread] =
    k.params.map((_, i) => k.i32Param(i));
  const stateStride = stateBytes(values.codedDim);
  const work = prepare(k, thread, rows);
  const splits = k.i32(i32.divU(i32.add(pages, SPLIT - 1), SPLIT));
  const leafOf = (page: I32) => i32.load(i32.add(leaves, i32.mul(page, 4)));
  k.for(chunk, i32.mul(splits, kvHeads), chunks, unit => {
    const head = k.i32(i32.remU(unit, kvHeads));
    const split = k.i32(i32.divU(unit, kvHeads));
    const numberOf = (row: I32) => i32.add(i32.mul(row, kvHeads), head);
    const stateOf = (row: I32) =>
      i32.add(states, i32.mul(i32.add(i32.mul(numberOf(row), splits), split), group * stateStride));
    const queryOf = (row: I32) => i32.add(queries, i32.mul(numberOf(row), keys.queryBytes));
    const state = k.i32();
    k.for(0, rows, 1, row => {
      k.set(state, stateOf(row));
      for (let g = 0; g < group; g++) clearState(k, i32.add(state, g * stateStride), values.codedDim);
    });
    const first = k.i32(i32.mul(split, SPLIT));
    const end = k.i32(i32.add(first, SPLIT));
    k.set(end, i32.select(i32.ltS(end, pages), end, pages));
    k.for(first, end, 1, page => {
      const leaf = k.i32(leafOf(page));
      const [keyPage, valuePage] = [k.i32(i32.add(leaf, keyOffset)), k.i32(i32.add(leaf, valueOffset))];
      const turn = k.i32(i32.add(turns, i32.mul(page, turnBytes(headDim))));
      const hidden = k.i32(i32.sub(skip, i32.mul(page, pageTokens)));
      const more = i32.ltS(page, i32.sub(end, 1));
      const nextKeys = () => k.i32(i32.add(leafOf(i32.add(page, more)), keyOffset));
      keys.open(k, keyPage, head);
      values.open(k, valuePage, head);
      work({ head, keys: keyPage, values: valuePage, nextKeys, turn, hidden, rows, stateOf, queryOf });
    });
  });
  return k;
}

/** Row by row. With `blocks`, for few rows, what is read next is touched ahead of its time. */
export function attendPages(
  name: string,
  shape: AttendShape,
  keys: KeyFragment,
  values: ValueFragment,
  scratch: (k: Kernel, thread: I32) => I32,
  blocks?: { keys: Fragment; values: Fragment },
): Kernel {
  return overPages(name, shape, keys, values, (k, thread) => {
    const scores = k.i32(scratch(k, thread));
    return page => {
      const ahead = (fragment: Fragment, at: I32) => ({
        at: blockAt(fragment, at, page.head),
        bytes: fragment.blockBytes,
      });
      const next = blocks && page.nextKeys();
      const state = k.i32();
      k.for(0, page.rows, 1, row => {
        const query = k.i32(page.queryOf(row));
        k.set(state, page.stateOf(row));
        keys.scores(k, page.keys, page.head, query, scores, page.turn, blocks && ahead(blocks.values, page.values));
        dropFirst(k, scores, shape.group, shape.pageTokens, page.hidden);
        values.sum(k, page.values, page.head, scores, state, blocks && ahead(blocks.keys, next!));
      });
    };
  });
}

/** Of every head, the first `skip` scores count for nothing. */
export function dropFirst(k: Kernel, scores: I32, group: number, pageTokens: number, skip: I32): void {
  const count = k.i32(skip);
  k.set(count, i32.select(i32.ltS(count, pageTokens), count, pageTokens));
  k.for(0, count, 1, t => {
    for (let g = 0; g < group; g++) {
      k.do(f32.store(i32.add(scores, i32.mul(t, 4)), f32.const(NOWHERE), 4 * g * pageTokens));
    }
  });
}

/**
 * finish(q, qStride, states, pages, sinks, sinkStride, sinkCount, tail, tailTokens, tailStart, position, out,
 * outStride, rows, scale bits): the sinks, the states of the pages brought back from their domain, the tail; then the
 * output. `sinks` and `tail` are the layer's keys, of `size` bytes a value; its values follow at the same length.
 */
export function finishAttention(
  name: string,
  shape: AttendShape,
  values: Fragment,
  tables: Tables,
  scratch: (k: Kernel, thread: I32) => I32,
  size: 2 | 4,
): Kernel {
  const { headDim, group, kvHeads, pageTokens } = shape;
  const { codedDim } = values;
  const k = new Kernel(name, Array(18).fill('i32'));
  const [
    q,
    qStride,
    states,
    pages,
    sinks,
    sinkTokens,
    sinkCount,
    tail,
    tailTokens,
    tailStart,
    position,
    out,
    outStride,
    rows,
    scale,
    chunk,
    chunks,
    thread,
  ] = k.params.map((_, i) => k.i32Param(i));
  const rowsOf = { size, dims: headDim, heads: group, relaxed: shape.relaxed } as const;
  const stride = stateBytes(headDim);
  const codedStride = stateBytes(codedDim);
  // This thread's scratch: queries, scores of a page, states, and one finished state.
  const queries = k.i32(scratch(k, thread));
  const scores = k.i32(i32.add(queries, 4 * headDim * group));
  const state = k.i32(i32.add(scores, 4 * pageTokens * group));
  const back = k.i32(i32.add(state, stride * group));
  const factor = k.v128(f32x4.splat(f32.mul(f32.fromBits(scale), f32.const(Math.LOG2E))));
  const splits = k.i32(i32.divU(i32.add(pages, SPLIT - 1), SPLIT));

  k.for(chunk, i32.mul(rows, kvHeads), chunks, unit => {
    const head = k.i32(i32.remU(unit, kvHeads));
    const row = k.i32(i32.divU(unit, kvHeads));
    scaleQueries(k, shape, i32.add(q, i32.mul(row, qStride)), head, factor, queries);
    for (let g = 0; g < group; g++) clearState(k, i32.add(state, g * stride), headDim);

    /** Tokens `first` on of a block that holds `room` tokens a head; in pieces that the scores have room for. */
    const half = (block: I32, room: I32, first: I32, count: I32) => {
      const keys = k.i32(i32.add(block, i32.mul(i32.mul(i32.add(i32.mul(head, room), first), headDim), size)));
      const values = k.i32(i32.add(keys, i32.mul(i32.mul(room, kvHeads * headDim), size)));
      const left = k.i32(count);
      k.while(i32.gtS(left, 0), () => {
        const n = k.i32(i32.select(i32.ltS(left, pageTokens), left, pageTokens));
        attendRows(k, rowsOf, keys, values, n, queries, scores, pageTokens, state);
        k.increment(keys, size * headDim * pageTokens);
        k.increment(values, size * headDim * pageTokens);
        k.set(left, i32.sub(left, n));
      });
    };
    half(sinks, sinkTokens, 0, sinkCount);

    k.if(splits, () => {
      const first = k.i32(i32.add(states, i32.mul(i32.mul(unit, splits), group * codedStride)));
      for (let g = 0; g < group; g++) {
        const own = k.i32(i32.add(first, g * codedStride));
        const each = group * codedStride;
        mergeStates(k, own, i32.add(own, each), i32.sub(splits, 1), each, codedDim);
      }
      const matrix = values.matrix && k.i32(matrixAt(values, values.matrix, tables.matrix!, headDim, head));
      for (let g = 0; g < group; g++) {
        const coded = k.i32(i32.add(first, g * codedStride));
        k.do(v128.store(back, v128.load(coded)));
        applyTranspose(k, matrix, codedDim, headDim, i32.add(coded, STATE_HEAD), i32.add(back, STATE_HEAD));
        if (tables.mean !== undefined)
          addMean(k, tables.mean, head, headDim, f32.load(coded, 4), i32.add(back, STATE_HEAD));
        mergeStates(k, i32.add(state, g * stride), back, 1, stride, headDim);
      }
    });

    // The tail is a ring: at most two runs of it.
    const tokens = k.i32(i32.sub(i32.add(i32.add(position, row), 1), tailStart));
    const start = k.i32(i32.remU(tailStart, tailTokens));
    const run = k.i32(i32.sub(tailTokens, start));
    k.set(run, i32.select(i32.ltS(tokens, run), tokens, run));
    half(tail, tailTokens, start, run);
    half(tail, tailTokens, 0, i32.sub(tokens, run));

    for (let g = 0; g < group; g++) {
      const of = k.i32(i32.add(state, g * stride));
      const inverse = k.v128(f32x4.splat(f32.div(f32.const(1), f32.load(of, 4))));
      const to = k.i32(
        i32.add(i32.add(out, i32.mul(row, outStride)), i32.mul(i32.add(i32.mul(head, group), g), 4 * headDim)),
      );
      k.for(0, 4 * headDim, 16, i => {
        k.do(v128.store(i32.add(to, i), f32x4.mul(v128.load(i32.add(of, i), STATE_HEAD), inverse)));
      });
    }
  });
  return k;
}

/** Scratch that `finishAttention` needs a thread. */
export const finishScratch = ({ headDim, group, pageTokens }: AttendShape) =>
  4 * headDim * group + 4 * pageTokens * group + stateBytes(headDim) * (group + 1);
