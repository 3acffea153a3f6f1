/**
 * The cache's operations: append, attend, seal. Each works on the runs of many sequences at once: all of them are tasks
 * of the same few jobs, so the threads synchronize as often for many sequences as for one.
 */
import type { AttendOptions, Block, KvRun, KvView, SealRequest, Tensor } from '../device.ts';
import { floatBits } from '../float.ts';
import { tracksError } from '../page-layout.ts';
import {
  firstCodedRow,
  firstVisible,
  pageBlock,
  pagesOf,
  skippedTokens,
  tailBlockTokens,
  visibleSinks,
} from '../visibility.ts';
import { type CodecModules, createCodecModules } from './codec-modules.ts';
import { type AttentionShape, PAGES_PER_SPLIT } from './kernels/attend.ts';
import type { CodecModule } from './kernels/codec-module.ts';
import { F16_TO_F32, F32_TO_F16_HEADS } from './kernels/norm-rope-gate.ts';
import { stateBytes } from './kernels/online-softmax.ts';
import { addressOf, type Memories } from './memories.ts';
import type { MemoryLimits } from './memory.ts';
import { createPageRopeTables, type PageRopeTables } from './page-rope.ts';
import type { Pool } from './pool.ts';
import { type Task, task } from './task.ts';

/** From this many rows on, the f16 sinks and tail are converted to f32 once before all rows read them. */
const MIN_MULTI_ROWS = 8;

/** The attention states of the rows that are processed together take at most 1 / this of the main memory. */
const STATES_DIVISOR = 32;

/** Min rows and max number of attention tasks of a run: each task unpacks every page again. */
const MIN_TASK_ROWS = 64;
const MAX_RUN_TASKS = 4;

/** Before all positions, also relative to the last page. */
const NO_WINDOW = -(2 ** 30);

/** Factor and softcap of the scores as the bits of f32, and the address of the sink logits. */
type ScoreArgs = Record<keyof AttendOptions, number>;

/** Rows of a run that attend together, and what they need. */
interface RunPart extends KvRun {
  module: CodecModule;
  /** The page that the first split begins with, and the number of pages from there on. */
  firstPage: number;
  pages: number;
  /** The first of these pages, which are before the windows of all rows. */
  unreadPages: number;
  /** The first position in the window of the first row. */
  windowStart: number;
  splits: number;
  multiRow: boolean;
  /** Blocks of the tail that the rows read. */
  tailBlocks: number;
  /** Bytes per row: transformed queries, and states. */
  queryBytes: number;
  stateBytes: number;
  /** Bytes of sinks and tail in f32. */
  floatBytes: number;
}

export class Attention {
  readonly codecModules: CodecModules;
  private readonly pageRope: PageRopeTables;

  constructor(
    private readonly memories: Memories,
    private readonly pool: Pool,
    private readonly shape: AttentionShape,
    limits: MemoryLimits,
  ) {
    this.codecModules = createCodecModules(memories.main, pool, shape, limits);
    this.pageRope = createPageRopeTables(memories.main, shape.headDim, shape.pageTokens);
  }

  append(layer: number, k: Tensor, v: Tensor, runs: readonly KvRun[]): void {
    const tasks: Task[] = [];
    let rows = 0;
    for (const { view, row, count, position } of runs) {
      const { headDim, kvHeads, sinks, tailTokens, pageTokens } = view.shape;
      const blockTokens = tailBlockTokens(pageTokens);
      const store = (block: Block, capacity: number, first: number, n: number, index: number) => {
        const offset = 4 * (row + first) * k.cols;
        const to = this.f16Address(view, block, layer, 0, capacity) + 2 * headDim * index;
        const from = { keys: addressOf(k) + offset, values: addressOf(v) + offset };
        const args = { ...from, out: to, capacity, tokens: n, n: headDim, heads: kvHeads };
        tasks.push(task(F32_TO_F16_HEADS, 2 * kvHeads, args));
      };
      for (let done = 0; done < count; ) {
        const index = (position + done) % tailTokens;
        const n = Math.min(count - done, blockTokens - (index % blockTokens));
        store(view.tail[Math.floor(index / blockTokens)]!, blockTokens, done, n, index % blockTokens);
        done += n;
      }
      const newSinks = Math.min(count, sinks - position);
      if (newSinks > 0) store(view.sinkBlock, sinks, 0, newSinks, position);
      rows += count;
    }
    this.pool.runSmall(2 * rows * k.cols, tasks);
  }

  /** The address of one layer's keys (side 0) or values (side 1) in a tail or sink block. */
  private f16Address({ shape }: KvView, block: Block, layer: number, side: number, tokens: number): number {
    return addressOf(block) + 2 * shape.kvHeads * tokens * shape.headDim * (2 * layer + side);
  }

  attend(layer: number, q: Tensor, out: Tensor, runs: readonly KvRun[], options: AttendOptions): void {
    const score = {
      scale: floatBits(options.scale),
      softcap: floatBits(options.softcap ?? 0),
      sinkLogits: options.sinkLogits ? addressOf(options.sinkLogits) : 0,
    };
    const limit = this.memories.main.capacity / STATES_DIVISOR;
    let parts: RunPart[] = [];
    let bytes = 0;
    const attendParts = () => {
      if (parts.length > 0) this.attendParts(layer, q, out, parts, score);
      parts = [];
      bytes = 0;
    };
    // The longest first, so that no thread begins a long chunk when the others are done.
    const all = runs.flatMap(run => this.splitRun(layer, run, limit)).sort((a, b) => b.count - a.count);
    for (const part of all) {
      const more = part.count * part.stateBytes + part.floatBytes;
      if (bytes + more > limit) attendParts();
      parts.push(part);
      bytes += more;
    }
    attendParts();
  }

  /** Parts whose states fit: each row has a state per head and split, and a long context has many splits. */
  private splitRun(layer: number, run: KvRun, limit: number): RunPart[] {
    const { view, sealedPages } = run;
    const { layers, kvHeads, headDim, sinks, pageTokens } = view.shape;
    const { keys, values, window } = layers[layer];
    const module = this.codecModules.moduleOf(keys.layout, values.layout);
    // Splits begin at the same pages for all rows, so that a row's sums do not depend on its run.
    const skippedPages = Math.max(0, Math.floor(firstVisible(run.position, window) / pageTokens) - view.firstLeaf);
    const firstPage = view.firstLeaf + PAGES_PER_SPLIT * Math.floor(skippedPages / PAGES_PER_SPLIT);
    const pages = Math.max(0, sealedPages - firstPage);
    const splits = Math.ceil(pages / PAGES_PER_SPLIT);
    const rowStateBytes = kvHeads * splits * this.shape.group * stateBytes(values.layout.codedDim);
    const maxRows = Math.max(1, Math.min(run.count, Math.floor(limit / rowStateBytes)));
    const parts: RunPart[] = [];
    for (let done = 0; done < run.count; done += maxRows) {
      const count = Math.min(maxRows, run.count - done);
      const position = run.position + done;
      const multiRow = count >= MIN_MULTI_ROWS;
      const blockTokens = tailBlockTokens(pageTokens);
      const tailBlocks = Math.ceil((position + count - sealedPages * pageTokens) / blockTokens);
      parts.push({
        ...run,
        row: run.row + done,
        position,
        count,
        tailBlocks,
        module,
        firstPage,
        pages,
        unreadPages: skippedPages % PAGES_PER_SPLIT,
        windowStart: window ? position + 1 - window : NO_WINDOW,
        splits,
        multiRow,
        queryBytes: pages > 0 ? kvHeads * module.queryBytes : 0,
        stateBytes: rowStateBytes,
        floatBytes: multiRow ? 8 * kvHeads * (sinks + tailBlocks * blockTokens) * headDim : 0,
      });
    }
    return parts;
  }

  /** In three jobs: transform the queries, attend to the pages, combine their splits with the sinks and the tail. */
  private attendParts(layer: number, q: Tensor, out: Tensor, parts: readonly RunPart[], score: ScoreArgs): void {
    const total = { rows: 0, queries: 0, states: 0, floats: 0, tables: 0 };
    for (const { view, firstPage, sealedPages, count, queryBytes, stateBytes, floatBytes } of parts) {
      total.rows += count;
      total.queries += count * queryBytes;
      total.states += count * stateBytes;
      total.floats += floatBytes;
      total.tables += view.leaves.length + view.tail.length;
      // Growing a table moves it: no address is used before all have grown.
      this.ropeAddress(layer, view, firstPage, sealedPages);
    }
    let queries = this.memories.scratch('queries', total.queries);
    let states = this.memories.scratch('states', total.states);
    let floats = this.memories.scratch('sinks and tails as f32', total.floats);
    const putTable = this.tableWriter(total.tables);
    const leafTables = new Map<KvView, number>();
    const leafTableOf = (view: KvView): number => {
      const table = leafTables.get(view) ?? putTable(pagesOf(view, layer).map(block => (block ? addressOf(block) : 0)));
      leafTables.set(view, table);
      return table;
    };
    const jobs: Record<'prepare' | 'attend' | 'combine', Task[]> = { prepare: [], attend: [], combine: [] };
    for (const part of parts) {
      const { view, row, count, position, sealedPages, module, pages, multiRow } = part;
      const { pageTokens, sinks, tailTokens, kvHeads, headDim } = view.shape;
      const blockTokens = tailBlockTokens(pageTokens);
      const rows = addressOf(q) + 4 * row * q.cols;
      if (pages > 0) {
        const args = { q: rows, qStride: 4 * q.cols, out: queries, rows: count, scale: score.scale };
        jobs.prepare.push(task(module.transformQuery, Math.min(count, 4 * this.pool.threads), args));
        this.pushPageTasks(jobs.attend, layer, part, queries, states, leafTableOf(view), score.softcap);
      }
      /** A block of f16 as the kernel expects them: f16, or f32 for many rows. */
      const unsealed = (block: Block, tokens: number, to: number) => {
        const from = this.f16Address(view, block, layer, 0, tokens);
        if (!multiRow || tokens === 0) return from;
        const values = 2 * kvHeads * tokens * headDim;
        jobs.prepare.push(task(F16_TO_F32, kvHeads, { x: from, out: to, values }));
        return to;
      };
      const firstBlock = ((sealedPages * pageTokens) % tailTokens) / blockTokens;
      const tail = Array<number>(view.tail.length).fill(0);
      for (let i = 0; i < part.tailBlocks; i++) {
        const place = (firstBlock + i) % tail.length;
        const to = floats + 8 * kvHeads * (sinks + i * blockTokens) * headDim;
        tail[place] = unsealed(view.tail[place]!, blockTokens, to);
      }
      const combine = multiRow ? module.combineSplitsMultiRow : module.combineSplits;
      jobs.combine.push(
        task(combine, count * kvHeads, {
          q: rows,
          qStride: 4 * q.cols,
          states,
          pages,
          sinks: unsealed(view.sinkBlock, sinks, floats),
          sinkTokens: sinks,
          sinkCount: visibleSinks(sealedPages, view.shape),
          tail: putTable(tail),
          tailTokens,
          tailStart: sealedPages * pageTokens,
          position,
          windowStart: part.windowStart,
          out: addressOf(out) + 4 * row * out.cols,
          outStride: 4 * out.cols,
          rows: count,
          ...score,
        }),
      );
      queries += count * part.queryBytes;
      states += count * part.stateBytes;
      floats += part.floatBytes;
    }
    // Rotating a query costs about as much as four norms.
    this.pool.runSmall(4 * total.rows * q.cols, jobs.prepare);
    this.pool.runAll(jobs.attend);
    this.pool.runAll(jobs.combine);
  }

  /** Heads x splits may be too few chunks to keep all threads busy: rows are divided into tasks too. */
  private pushPageTasks(
    tasks: Task[],
    layer: number,
    part: RunPart,
    queries: number,
    states: number,
    leafTable: number,
    softcap: number,
  ): void {
    const { view, count, sealedPages, module, firstPage, pages, splits, multiRow } = part;
    const { layers, kvHeads, pageTokens } = view.shape;
    const { keyOffset, valueOffset } = layers[layer];
    const taskRows = Math.max(MIN_TASK_ROWS, 4 * Math.ceil(count / (4 * MAX_RUN_TASKS)));
    for (let done = 0; done < count; done += taskRows) {
      tasks.push(
        task(multiRow ? module.attendPagesMultiRow : module.attendPages, splits * kvHeads, {
          queries: queries + done * part.queryBytes,
          states: states + done * part.stateBytes,
          leaves: leafTable + 4 * (firstPage - view.firstLeaf),
          keyOffset,
          valueOffset,
          rows: Math.min(taskRows, count - done),
          pages,
          firstPage: part.unreadPages,
          skip: skippedTokens(firstPage * pageTokens, sealedPages, view.shape),
          windowStart: part.windowStart + done - firstPage * pageTokens,
          softcap,
          ropeTables: this.ropeAddress(layer, view, firstPage, sealedPages),
        }),
      );
    }
  }

  /** Writes tables of addresses, `entries` in all, and returns where each one begins. */
  private tableWriter(entries: number): (addresses: readonly number[]) => number {
    let at = this.memories.scratch('block tables', 4 * entries);
    return addresses => {
      const table = at;
      new Int32Array(this.memories.main.memory.buffer, table, addresses.length).set(addresses);
      at += 4 * addresses.length;
      return table;
    };
  }

  private ropeAddress(layer: number, { shape }: KvView, page: number, end: number): number {
    return this.pageRope.addressOf(shape.layers[layer].keys.layout.ropeFrequencies, page, end);
  }

  seal(layer: number, requests: readonly SealRequest[]): void {
    const { kvHeads } = this.shape;
    for (const { view, page } of requests) this.ropeAddress(layer, view, page, page + 1);
    const errors = this.memories.scratch('errors', 8 * kvHeads * requests.length);
    const putTable = this.tableWriter(requests.reduce((sum, { view }) => sum + 2 * view.tail.length, 0));
    const errorsOf = (request: number, side: number) => errors + 4 * kvHeads * (2 * request + side);
    const tasks = requests.flatMap(({ view, page }, i): Task[] => {
      const { pageTokens, tailTokens, layers } = view.shape;
      const { keys, values, keyOffset, valueOffset } = layers[layer];
      const module = this.codecModules.moduleOf(keys.layout, values.layout);
      const rope = this.ropeAddress(layer, view, page, page + 1);
      return [[module.sealKeys, keyOffset, rope] as const, [module.sealValues, valueOffset, 0] as const].map(
        ([kernel, offset, pageRope], side) => {
          const blocks = view.tail.map(block =>
            block ? this.f16Address(view, block, layer, side, tailBlockTokens(pageTokens)) : 0,
          );
          return task(kernel, kvHeads, {
            table: putTable(blocks),
            tailTokens,
            pageStart: (page * pageTokens) % tailTokens,
            firstCodedRow: firstCodedRow(view.shape, page),
            page: addressOf(pageBlock(view, layer, page)) + offset,
            pageRope,
            errors: errorsOf(i, side),
          });
        },
      );
    });
    this.pool.runAll(tasks);
    requests.forEach(({ view, page }, i) => {
      if (!view.errors) return;
      const { keys, values } = view.shape.layers[layer];
      const { rows, cols } = view.errors;
      const row = this.memories.floatsAt(addressOf(view.errors) + 4 * (page % rows) * cols, cols);
      [keys, values].forEach(({ layout }, side) => {
        const parts = this.memories.floatsAt(errorsOf(i, side), kvHeads);
        if (tracksError(layout.encoding)) row[2 * layer + side] = parts.reduce((total, error) => total + error, 0);
      });
    });
  }
}
