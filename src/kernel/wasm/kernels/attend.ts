/**
 * Attention on packed pages, one loop for all codecs. A `KeyEmitter` transforms queries and scores a page, a
 * `ValueEmitter` applies the softmax and adds up the values. Work is divided into one KV head x one split of
 * PAGES_PER_SPLIT pages, independently of threads, and splits are combined in order: the result depends only on the
 * row.
 */
import type { PageLayout } from '../../page-layout.ts';
import { tailBlockTokens } from '../../visibility.ts';
import { f32, f32x4, type I32, i32, index, type V128, v128 } from '../emit.ts';
import { Kernel } from '../module.ts';
import { mapVectors } from '../ops.ts';
import { pageRopeBytes } from '../page-rope.ts';
import { chunked } from '../task.ts';
import { blockAddress, type CodecTables } from './dequantize-page.ts';
import { attendRows, contiguous, type RowSpans } from './float-rows.ts';
import type { PageHead } from './head-context.ts';
import { capScores, clearState, MASKED, mergeStates, STATE_HEADER, stateBytes } from './online-softmax.ts';
import type { PrefetchRange } from './prefetch.ts';
import { addMean, applyTranspose, headMatrix } from './transform.ts';

export const PAGES_PER_SPLIT = 4;

export interface AttentionShape {
  headDim: number;
  /** Query heads per KV head. */
  group: number;
  kvHeads: number;
  pageTokens: number;
  relaxed: boolean;
  /** Use `i32x4.relaxedDotAdd`. */
  dotAdd: boolean;
  /** Vectors are joined to 256 bits. */
  wide: boolean;
  /** Pages are dequantized to f32. */
  precise: boolean;
}

/** The scratch of the thread that a kernel runs on: emits its address. */
export type ThreadScratch = (k: Kernel, thread: I32) => I32;

/** The page of keys or values that is read, and the thread's scratch. */
export interface PageArgs extends PageHead {
  scratch: I32;
}

/** Emits the code that reads a codec's keys. */
export interface KeyEmitter {
  /** Bytes of one group's transformed queries. */
  queryBytes: number;
  /** `queries` is [group][headDim] f32, already scaled. */
  transformQuery(k: Kernel, queries: I32, head: I32, out: I32, scratch: I32): void;
  /** Called once per page, before it is scored for any row. */
  beginPage(k: Kernel, page: PageArgs): void;
  /** Writes scores[group][pageTokens]. `pageRope` is the page's rotation, for page-relative keys. */
  scorePage(k: Kernel, page: PageArgs, query: I32, scores: I32, pageRope: I32, next?: PrefetchRange): void;
}

export interface ValueEmitter {
  codedDim: number;
  beginPage(k: Kernel, page: PageArgs): void;
  /** Adds a page to each head's state. May overwrite the scores. */
  accumulatePage(k: Kernel, page: PageArgs, scores: I32, state: I32, next?: PrefetchRange): void;
}

/** Copies one group's queries from a row of all heads, multiplied by a factor. */
function scaleQueries(
  k: Kernel,
  { headDim, group }: AttentionShape,
  row: I32,
  head: I32,
  factor: V128,
  out: I32,
): void {
  const bytes = 4 * headDim * group;
  const from = k.i32(index(row, bytes, head));
  mapVectors(k, bytes, from, out, v => f32x4.mul(v, factor));
}

/** Writes out[row][kv head], `queryBytes` each. `scale` is the bits of an f32. */
export function transformQueries(name: string, shape: AttentionShape, keys: KeyEmitter, scratch: ThreadScratch) {
  const { kvHeads } = shape;
  const k = new Kernel(chunked(name, 'q', 'qStride', 'out', 'rows', 'scale'));
  const { q, qStride, out, rows, scale, chunk, chunks, thread } = k.params;
  const base = scratch(k, thread);
  const scaled = k.i32(base);
  const factor = k.v128(f32x4.splat(f32.mul(f32.fromBits(scale), f32.const(Math.LOG2E))));
  k.for(chunk, i32.mul(rows, kvHeads), chunks, unit => {
    const head = k.i32(i32.remU(unit, kvHeads));
    const row = i32.divU(unit, kvHeads);
    scaleQueries(k, shape, index(q, qStride, row), head, factor, scaled);
    keys.transformQuery(k, scaled, head, index(out, keys.queryBytes, unit), base);
  });
  return k;
}

/** The current page of the loop. */
export interface PageContext {
  keys: PageArgs;
  values: PageArgs;
  /** Address of the next key page of the split, or of this one if it is the last. */
  nextKeyPage(): I32;
  rope: I32;
  /** Caps a row's scores, and masks the tokens that it does not read here: sinks, and tokens before its window. */
  finishScores(row: I32, scores: I32, heads: number): void;
  rows: I32;
  /** Addresses of a row's state and of its transformed queries. */
  stateOf(row: I32): I32;
  queryOf(row: I32): I32;
}

/**
 * Computes states[row][head][split]. `leaves` is an array of addresses; pages before `firstPage` are not read; the first
 * `skip` tokens are masked, and those before `windowStart` + row, which may be negative; `ropeTables` has one table per
 * page. `softcap` is the bits of an f32, or 0. `setUp` emits code that runs once per call and returns the emitter of the code per page.
 */
export function pageLoop(
  name: string,
  shape: AttentionShape,
  keys: KeyEmitter,
  values: ValueEmitter,
  threadScratch: ThreadScratch,
  setUp: (k: Kernel, scratch: I32, rows: I32) => (page: PageContext) => void,
) {
  const { headDim, group, kvHeads, pageTokens } = shape;
  const addresses = ['queries', 'states', 'leaves', 'keyOffset', 'valueOffset', 'ropeTables'] as const;
  const visibility = ['firstPage', 'skip', 'windowStart'] as const;
  const k = new Kernel(chunked(name, ...addresses, 'rows', 'pages', ...visibility, 'softcap'));
  const { queries, states, leaves, keyOffset, valueOffset, rows, pages, ropeTables } = k.params;
  const { firstPage, skip, windowStart, softcap } = k.params;
  const { chunk, chunks, thread } = k.params;
  const stateStride = stateBytes(values.codedDim);
  const scratch = threadScratch(k, thread);
  const attendPage = setUp(k, scratch, rows);
  const splits = k.i32(i32.divU(i32.add(pages, PAGES_PER_SPLIT - 1), PAGES_PER_SPLIT));
  const leafAddress = (page: I32) => i32.load(index(leaves, 4, page));
  k.for(chunk, i32.mul(splits, kvHeads), chunks, unit => {
    const head = k.i32(i32.remU(unit, kvHeads));
    const split = k.i32(i32.divU(unit, kvHeads));
    const rowHead = (row: I32) => i32.add(i32.mul(row, kvHeads), head);
    const stateOf = (row: I32) => index(states, group * stateStride, rowHead(row), [splits, split]);
    const queryOf = (row: I32) => index(queries, keys.queryBytes, rowHead(row));
    const state = k.i32();
    k.for(0, rows, 1, row => {
      k.set(state, stateOf(row));
      for (let g = 0; g < group; g++) clearState(k, i32.add(state, g * stateStride), values.codedDim);
    });
    const first = k.i32(i32.mul(split, PAGES_PER_SPLIT));
    const end = k.i32(i32.add(first, PAGES_PER_SPLIT));
    k.set(end, i32.min(end, pages));
    k.set(first, i32.max(first, firstPage));
    k.for(first, end, 1, page => {
      const leaf = k.i32(leafAddress(page));
      const [keyPage, valuePage] = [k.i32(i32.add(leaf, keyOffset)), k.i32(i32.add(leaf, valueOffset))];
      const rope = k.i32(index(ropeTables, pageRopeBytes(headDim), page));
      const finishScores = (row: I32, scores: I32, heads: number) => {
        capScores(k, scores, heads * pageTokens, softcap);
        const firstRead = k.i32(i32.add(windowStart, row));
        k.set(firstRead, i32.max(firstRead, skip));
        maskFirst(k, scores, heads, pageTokens, i32.sub(firstRead, i32.mul(page, pageTokens)));
      };
      const hasNext = i32.ltS(page, i32.sub(end, 1));
      const nextKeyPage = () => k.i32(i32.add(leafAddress(i32.add(page, hasNext)), keyOffset));
      const keyArgs = { page: keyPage, head, scratch };
      const valueArgs = { page: valuePage, head, scratch };
      keys.beginPage(k, keyArgs);
      values.beginPage(k, valueArgs);
      attendPage({ keys: keyArgs, values: valueArgs, nextKeyPage, rope, finishScores, rows, stateOf, queryOf });
    });
  });
  return k;
}

/**
 * Attends one row after the other. With `prefetchLayouts`, for few rows, the blocks that are read next are prefetched.
 */
export function attendPages(
  name: string,
  shape: AttentionShape,
  keys: KeyEmitter,
  values: ValueEmitter,
  threadScratch: ThreadScratch,
  prefetchLayouts?: { keys: PageLayout; values: PageLayout },
) {
  return pageLoop(name, shape, keys, values, threadScratch, (k, scratch) => {
    const scores = k.i32(scratch);
    return page => {
      const blockRange = (layout: PageLayout, address: I32) => ({
        address: blockAddress(layout, { page: address, head: page.keys.head }),
        bytes: layout.blockBytes,
      });
      const nextKeys = prefetchLayouts && blockRange(prefetchLayouts.keys, page.nextKeyPage());
      const nextValues = prefetchLayouts && blockRange(prefetchLayouts.values, page.values.page);
      const state = k.i32();
      k.for(0, page.rows, 1, row => {
        const query = k.i32(page.queryOf(row));
        k.set(state, page.stateOf(row));
        keys.scorePage(k, page.keys, query, scores, page.rope, nextValues);
        page.finishScores(row, scores, shape.group);
        values.accumulatePage(k, page.values, scores, state, nextKeys);
      });
    };
  });
}

/** Masks the first `skip` scores of every head. */
function maskFirst(k: Kernel, scores: I32, group: number, pageTokens: number, skip: I32): void {
  const count = k.i32(skip);
  k.set(count, i32.min(count, pageTokens));
  k.for(0, count, 1, t => {
    for (let g = 0; g < group; g++) {
      k.do(f32.store(index(scores, 4, t), f32.const(MASKED), 4 * g * pageTokens));
    }
  });
}

/**
 * Merges the sinks, the states of the pages after the inverse transform, and the tail; then writes the output. `sinks` are
 * the layer's keys, `size` bytes per value; its values follow them. `tail` is a table of the addresses of the same in the
 * blocks of the tail. Row r sees no token before `windowStart` + r, which may be negative. `scale` and `softcap` are the
 * bits of an f32. `sinkLogits` has one logit per query head, or is 0; with it the state begins as that of a token whose value
 * is zero.
 */
export function combineSplits(
  name: string,
  shape: AttentionShape,
  values: PageLayout,
  tables: CodecTables,
  scratch: ThreadScratch,
  size: 2 | 4,
) {
  const { headDim, group, kvHeads, pageTokens } = shape;
  const blockTokens = tailBlockTokens(pageTokens);
  const { codedDim } = values;
  const sources = ['states', 'pages', 'sinks', 'sinkTokens', 'sinkCount', 'tail', 'tailTokens', 'tailStart'] as const;
  const outputs = ['out', 'outStride', 'rows', 'scale', 'softcap', 'sinkLogits'] as const;
  const k = new Kernel(chunked(name, 'q', 'qStride', ...sources, 'position', 'windowStart', ...outputs));
  const { states, pages, sinks, sinkTokens, sinkCount, tail, tailTokens, tailStart } = k.params;
  const { q, qStride, position, windowStart, out, outStride, rows, scale, softcap, sinkLogits } = k.params;
  const { chunk, chunks, thread } = k.params;
  const rowShape = { size, dims: headDim, heads: group, stride: pageTokens, relaxed: shape.relaxed };
  const stride = stateBytes(headDim);
  const codedStride = stateBytes(codedDim);
  // The thread's scratch: queries, scores of a page, states, and one state after the inverse transform.
  const queries = k.i32(scratch(k, thread));
  const scores = k.i32(i32.add(queries, 4 * headDim * group));
  const state = k.i32(i32.add(scores, 4 * pageTokens * group));
  const decoded = k.i32(i32.add(state, stride * group));
  const factor = k.v128(f32x4.splat(f32.mul(f32.fromBits(scale), f32.const(Math.LOG2E))));
  const splits = k.i32(i32.divU(i32.add(pages, PAGES_PER_SPLIT - 1), PAGES_PER_SPLIT));

  k.for(chunk, i32.mul(rows, kvHeads), chunks, unit => {
    const head = k.i32(i32.remU(unit, kvHeads));
    const row = k.i32(i32.divU(unit, kvHeads));
    scaleQueries(k, shape, index(q, qStride, row), head, factor, queries);
    for (let g = 0; g < group; g++) clearState(k, i32.add(state, g * stride), headDim);
    k.if(sinkLogits, () => {
      for (let g = 0; g < group; g++) {
        const logit = f32.load(index(sinkLogits, 4, head, [group, g]));
        k.do(f32.store(state, f32.mul(logit, f32.const(Math.LOG2E)), g * stride));
        k.do(f32.store(state, f32.const(1), g * stride + 4));
      }
    });
    const firstVisible = k.i32(i32.add(windowStart, row));

    /** Keys or values of the head, in a block of `capacity` tokens. */
    const headOffset = (side: 0 | 1, capacity: I32) =>
      i32.mul(i32.mul(i32.add(head, side * kvHeads), capacity), headDim * size);
    /**
     * The visible tokens of a ring of `capacity`, from `first` to `end`: at most pageTokens at a time, and none past the end
     * of the ring. Begins with a whole block.
     */
    const attendUnsealed = (
      first: I32,
      end: I32,
      capacity: I32,
      rowsAt: (side: 0 | 1, start: I32, count: I32) => RowSpans,
    ) => {
      const visible = k.i32(i32.max(first, firstVisible));
      const aligned = k.i32(i32.and(visible, -blockTokens));
      const skip = k.i32(i32.sub(visible, aligned));
      const start = k.i32();
      const left = k.i32(i32.select(i32.ltS(visible, end), i32.sub(end, aligned), 0));
      k.if(left, () => k.set(start, i32.remU(aligned, capacity)));
      k.while(i32.gtS(left, 0), () => {
        const n = k.i32(i32.min(left, pageTokens));
        k.set(n, i32.min(n, i32.sub(capacity, start)));
        const [keys, values] = [rowsAt(0, start, n), rowsAt(1, start, n)];
        attendRows(k, rowShape, { keys, values, count: n, skip }, { query: queries, scores, state, softcap });
        k.set(skip, i32.sub(skip, i32.min(skip, n)));
        k.set(start, i32.remU(i32.add(start, n), capacity));
        k.set(left, i32.sub(left, n));
      });
    };
    attendUnsealed(0, sinkCount, sinkTokens, (side, start, n) => {
      const rows = i32.add(sinks, headOffset(side, sinkTokens));
      return contiguous(k.i32(index(rows, headDim * size, start)), n);
    });

    k.if(splits, () => {
      const first = k.i32(index(states, group * codedStride, i32.mul(unit, splits)));
      for (let g = 0; g < group; g++) {
        const target = k.i32(i32.add(first, g * codedStride));
        const splitStride = group * codedStride;
        mergeStates(k, target, i32.add(target, splitStride), i32.sub(splits, 1), splitStride, codedDim);
      }
      const matrix =
        values.queryMatrix && k.i32(headMatrix(values, values.queryMatrix, tables.queryMatrix!, headDim, head));
      for (let g = 0; g < group; g++) {
        const coded = k.i32(i32.add(first, g * codedStride));
        k.do(v128.store(decoded, v128.load(coded)));
        applyTranspose(k, matrix, codedDim, headDim, i32.add(coded, STATE_HEADER), i32.add(decoded, STATE_HEADER));
        if (tables.mean !== undefined)
          addMean(k, tables.mean, head, headDim, f32.load(coded, 4), i32.add(decoded, STATE_HEADER));
        mergeStates(k, i32.add(state, g * stride), decoded, 1, stride, headDim);
      }
    });

    const end = k.i32(i32.add(i32.add(position, row), 1));
    attendUnsealed(tailStart, end, tailTokens, (side, start, n) => {
      const offset = k.i32(headOffset(side, blockTokens));
      const firstBlock = k.i32(index(tail, 4, i32.divU(start, blockTokens)));
      return emit => {
        const [block, left] = [k.i32(firstBlock), k.i32(n)];
        k.while(i32.gtS(left, 0), () => {
          emit(i32.add(i32.load(block), offset), k.i32(i32.min(left, blockTokens)));
          k.increment(block, 4);
          k.set(left, i32.sub(left, blockTokens));
        });
      };
    });

    for (let g = 0; g < group; g++) {
      const from = k.i32(i32.add(state, g * stride));
      const inverse = k.v128(f32x4.splat(f32.div(f32.const(1), f32.load(from, 4))));
      const to = k.i32(index(index(out, outStride, row), 4 * headDim, head, [group, g]));
      k.for(0, 4 * headDim, 16, i => {
        k.do(v128.store(i32.add(to, i), f32x4.mul(v128.load(i32.add(from, i), STATE_HEADER), inverse)));
      });
    }
  });
  return k;
}

/** Scratch bytes per thread for `combineSplits`. */
export const combineSplitsScratch = ({ headDim, group, pageTokens }: AttentionShape) =>
  4 * headDim * group + 4 * pageTokens * group + stateBytes(headDim) * (group + 1);
