/** Attention: tables of who reads what, the dispatches over pages, tails and sinks, and the merging of their states. */
import type { Block, KvRun, KvView, Tensor } from '../device.ts';
import type { Fragment } from '../fragment.ts';
import type { GpuCodec } from './codecs.ts';
import { type Frame, type FrameOptions, frameOf } from './frames.ts';
import type { Gpu, Kernel, Placed } from './gpu.ts';
import type { AttendShape } from './kernels/attend.ts';
import { beside } from './kernels/beside.ts';
import {
  append,
  crowdOf,
  SIZE as DOMAIN_SIZE,
  type Domain,
  finish,
  headsAtOnce,
  prepare,
  stateFloats,
} from './kernels/domain.ts';
import { byLanes, prepareByLanes } from './kernels/lanes/prepare.ts';
import { LANES } from './kernels/lanes/talk.ts';
import { vectors } from './kernels/teams/attend.ts';
import { finishRotated } from './kernels/teams/finish.ts';
import { TEAMS } from './kernels/teams/talk.ts';
import { pageWords } from './kernels/teams/turned.ts';
import { turnOf } from './kernels/text.ts';
import { fits } from './limits.ts';
import type { Tail } from './products.ts';
import { attendTable, type Batch, type Items, type Table } from './table.ts';
import { blockOf, bufferOf, changed, renewed } from './tensor.ts';
import { BLOCK } from './weights.ts';

export interface AttentionOptions extends FrameOptions {
  heads: number;
  /** The largest binding. */
  binding: number;
}

interface Dispatch {
  kernel: Kernel;
  params: number[];
  buffers: GPUBuffer[];
  groups: number[];
}

/**
 * Workgroups up to which tails and sinks run beside the pages: together they take more workgroup memory, which leaves
 * fewer of them on a processor at once.
 */
const FEW = 1024;

/** Bytes that the partial states of attention may take. */
const STATES = 64 << 20;

export class Attention {
  private readonly heads: number;
  /** By the pages that a workgroup takes. */
  private readonly tables = new WeakMap<readonly KvRun[], Map<number, { table: Table; placed?: Placed }>>();
  /** Pages whose turns are on the GPU, by codec, and the buffer that has them. */
  private readonly turnedPages = new Map<GpuCodec, { pages: number; buffer: GPUBuffer }>();
  /** Kernels that run beside one another, where that fits. */
  private readonly pairs = new Map<Kernel, Map<Kernel, Kernel | undefined>>();
  private readonly frames = new Map<GpuCodec, Map<GpuCodec, Frame>>();
  private readonly kernels = new Map<GpuCodec, Map<GpuCodec, Map<string, Kernel>>>();

  constructor(
    private readonly gpu: Gpu,
    private readonly shape: AttendShape,
    private readonly codecOf: (fragment: Fragment) => GpuCodec,
    private readonly options: AttentionOptions,
  ) {
    this.heads = options.heads;
  }

  /** A kernel for a pair of codecs, whose text is made once. */
  private kernelOf(name: string, key: GpuCodec, value: GpuCodec, make: () => Kernel): Kernel {
    const byValue = this.kernels.get(key) ?? new Map<GpuCodec, Map<string, Kernel>>();
    this.kernels.set(key, byValue);
    const byName = byValue.get(value) ?? new Map<string, Kernel>();
    byValue.set(value, byName);
    const kernel = byName.get(name) ?? make();
    byName.set(name, kernel);
    return kernel;
  }

  /** `turn`: keys and queries that are turned on the way; the runs have all their rows. */
  append(layer: number, k: Tensor, v: Tensor, runs: readonly KvRun[], turn?: { q: Tensor; angles: Tensor }): void {
    const { headDim, kvHeads } = this.shape;
    for (const some of alike(runs)) {
      const { shape, tail, sinkBlock } = some[0].view;
      const words = some.flatMap(({ view, row, count, position }) => [
        row,
        count,
        position,
        blockOf(view.tail).slot,
        blockOf(view.sinkBlock).slot,
      ]);
      this.gpu.makeRoom(4 * words.length);
      const { word } = this.gpu.place(words);
      const most = Math.max(...some.map(({ count }) => count));
      const store = (block: Block, tokens: number, sinks: boolean, turned: typeof turn) => {
        const { pool } = blockOf(block);
        const heads = turned && this.heads;
        const kernel = this.gpu.kernel(`append ${sinks} ${heads}`, () =>
          append({ headDim, kvHeads, sinks, turned: heads }),
        );
        const more = turned ? [bufferOf(turned.angles), changed(turned.q)] : [];
        const buffers = [this.gpu.arena, changed(k), bufferOf(v), pool.buffers[layer], ...more];
        const params = [word, pool.strides[layer], tokens, sinks ? 4 : 3, turned ? turned.angles.cols / 2 : 0];
        const pairs = ((2 * kvHeads + (heads ?? 0)) * headDim) / 2;
        this.gpu.run(kernel, params, buffers, [Math.ceil(pairs / DOMAIN_SIZE), most, some.length]);
      };
      store(tail, shape.tailTokens, false, turn);
      if (some.some(({ position }) => position < shape.sinks)) store(sinkBlock, shape.sinks, true, undefined);
    }
  }

  /** Where one row goes, if it goes into a tail alone. */
  tailOf(layer: number, runs: readonly KvRun[]): Tail | undefined {
    const { headDim } = this.shape;
    const [{ view, count, position }] = runs;
    const { tailTokens, sinks } = view.shape;
    if (runs.length > 1 || count > 1 || position < sinks) return undefined;
    const { pool, slot } = blockOf(view.tail);
    const word = (slot * pool.strides[layer]) / 4 + ((position % tailTokens) * headDim) / 2;
    return { buffer: pool.buffers[layer], word, tokens: tailTokens };
  }

  attend(layer: number, q: Tensor, out: Tensor, runs: readonly KvRun[], scale: number): void {
    for (const some of alike(runs)) {
      const { keys, values } = some[0].view.shape.layers[layer];
      const [key, value] = [this.codecOf(keys.fragment), this.codecOf(values.fragment)];
      const frame = this.frameOf(key, value);
      // Before the table is placed: an upload may submit, and what was placed before is gone then.
      const turns = key.fragment.turn && this.turnsOf(key, some);
      const { table } = this.tableOf(some, frame);
      for (const batch of table.batches) {
        const { word } = this.tableOf(some, frame);
        this.attendBatch(layer, q, out, some[0].view, { key, value, frame, turns }, batch, word, scale);
      }
    }
  }

  private frameOf(key: GpuCodec, value: GpuCodec): Frame {
    const byValue = this.frames.get(key) ?? new Map<GpuCodec, Frame>();
    this.frames.set(key, byValue);
    const frame = byValue.get(value) ?? frameOf(key, value, this.shape, this.options);
    byValue.set(value, frame);
    return frame;
  }

  private tableOf(runs: readonly KvRun[], { tile, split }: Frame): { table: Table; word: number } {
    const bySplit = this.tables.get(runs) ?? new Map<number, { table: Table; placed?: Placed }>();
    this.tables.set(runs, bySplit);
    let known = bySplit.get(split);
    if (!known) {
      const stateBytes = 4 * this.heads * stateFloats(2 * this.shape.headDim);
      const mostStates = Math.floor(Math.min(STATES, this.options.binding) / stateBytes);
      known = { table: attendTable(runs, tile, split, mostStates) };
      bySplit.set(split, known);
    }
    this.gpu.makeRoom(known.table.words.byteLength);
    if (known.placed?.generation !== this.gpu.generation) known.placed = this.gpu.place(known.table.words);
    return { table: known.table, word: known.placed.word };
  }

  private domainOf(codec: GpuCodec): Domain {
    const { headDim, kvHeads } = this.shape;
    const { codedDim, matrix, mean } = codec.fragment;
    const flags = {
      matrix: matrix !== undefined,
      signs: codec.signs !== undefined,
      perHead: codec.perHead,
      mean: mean !== undefined,
    };
    return { headDim, codedDim, heads: this.heads, kvHeads, ...flags };
  }

  private attendBatch(
    layer: number,
    q: Tensor,
    out: Tensor,
    view: KvView,
    { key, value, frame, turns }: { key: GpuCodec; value: GpuCodec; frame: Frame; turns?: GPUBuffer },
    batch: Batch,
    word: number,
    scale: number,
  ): void {
    const { shape } = view;
    const { kvHeads, headDim } = this.shape;
    const { keyOffset, valueOffset } = shape.layers[layer];
    const stateBytes = (dim: number) => 4 * this.heads * stateFloats(dim);
    const states = this.gpu.room('states of pages', batch.pageStates * stateBytes(value.fragment.codedDim));
    const halfStates = this.gpu.room('states of halves', batch.halfStates * stateBytes(headDim));
    const dispatches: Dispatch[] = [];
    const each = (items: Items, parts: number, make: (rows: number, first: number) => Omit<Dispatch, 'groups'>) => {
      const heads = kvHeads * parts;
      if (items.one.count > 0) dispatches.push({ ...make(1, items.one.word), groups: [items.one.count, heads] });
      if (items.many.count > 0)
        dispatches.push({ ...make(frame.tile, items.many.word), groups: [items.many.count, heads] });
    };
    const prepared =
      batch.pageStates === 0 || key.fragment.turn ? undefined : this.prepare(q, key, frame, batch, word, scale);
    const queries =
      prepared?.queries ??
      (frame.turned && batch.pageStates > 0
        ? this.turn(q, key, frame.turned, turns!, batch, word, scale)
        : bufferOf(q));
    const [tails, sinks] = [blockOf(view.tail).pool, blockOf(view.sinkBlock).pool];
    each(batch.halves, frame.halfParts, (rows, first) => {
      const rooms = [tails.strides[layer], shape.tailTokens, sinks.strides[layer], Math.max(1, shape.sinks)];
      const buffers = [this.gpu.arena, bufferOf(q), tails.buffers[layer], sinks.buffers[layer], halfStates];
      const kernel = this.gpu.kernel(`halves ${rows} ${frame.halfLoops} ${frame.halfParts}`, () => frame.halves(rows));
      return { kernel, params: [word, first, ...frame.halfLoops, ...rooms, scale], buffers };
    });
    if (batch.pageStates > 0) {
      const { pool } = blockOf(view.leaves[0]);
      const bound: Record<string, GPUBuffer | undefined> = {
        data: this.gpu.arena,
        queries,
        pool: pool.buffers[layer],
        pool2: pool.buffers[layer],
        pool4: pool.buffers[layer],
        keyTables: key.tables,
        valueTables: value.tables,
        turns,
        states,
      };
      each(batch.pages, frame.pageParts, (rows, first) => {
        const kernel = this.kernelOf(`pages ${rows}`, key, value, () => frame.pages(rows));
        const offset = valueOffset - keyOffset;
        const params = [
          word,
          first,
          ...frame.pageLoops,
          pool.strides[layer],
          offset,
          scale,
          key.columns,
          value.columns,
        ];
        const buffers = kernel.buffers.map(text => bound[bufferName(text)]!);
        return { kernel, params, buffers };
      });
    }
    const pair = batch.halves.many.count + batch.pages.many.count === 0 && dispatches.length === 2;
    const few = dispatches.every(({ groups: [items, heads] }) => items * heads <= FEW);
    const [halves, pages] = dispatches;
    // Tails and sinks are few and slow: they begin first and run beside the pages, or beside what these wait for.
    const both = pair && few ? this.beside(halves, pages) : undefined;
    const before = prepared && pair && !both ? this.beside(prepared, halves) : undefined;
    if (before) this.run(before, pages);
    else this.run(...(prepared ? [prepared] : []), ...(both ? [both] : dispatches));
    const tables = [value.signs ?? value.matrix, value.mean].filter(buffer => buffer !== undefined);
    // Heads of whole blocks are rounded where they are made.
    const floats = changed(out);
    const int8 = headDim % BLOCK === 0 ? renewed(out) : [];
    const buffers = [this.gpu.arena, states, halfStates, ...tables, floats, ...int8];
    const { group, subgroups } = this.shape;
    const { count } = batch.finish;
    const crowd = crowdOf(count);
    const domain = this.domainOf(value);
    const make = () =>
      value.signs
        ? finishRotated(domain, int8.length > 0, subgroups === LANES)
        : finish(domain, int8.length > 0, crowd);
    const kernel = this.kernelOf(`finish ${int8.length} ${crowd}`, value, value, make);
    const groups = [value.signs ? this.heads : this.heads / headsAtOnce(group), count];
    this.gpu.run(kernel, [word, batch.finish.word], buffers, groups);
  }

  private run(...dispatches: readonly Dispatch[]): void {
    for (const { kernel, params, buffers, groups } of dispatches) this.gpu.run(kernel, params, buffers, groups);
  }

  /** Two dispatches as one, if that fits into one kernel. */
  private beside(a: Dispatch, b: Dispatch): Dispatch | undefined {
    const known = this.pairs.get(a.kernel) ?? new Map<Kernel, Kernel | undefined>();
    this.pairs.set(a.kernel, known);
    if (!known.has(b.kernel)) {
      const alike = a.kernel.size === b.kernel.size && a.groups[1] === b.groups[1];
      const both = alike ? beside(a.kernel, b.kernel) : undefined;
      known.set(b.kernel, both && fits(both, this.options.limits) ? both : undefined);
    }
    const kernel = known.get(b.kernel);
    const [split, heads] = a.groups;
    return (
      kernel && {
        kernel,
        params: [split, ...a.params, ...b.params],
        buffers: [...a.buffers, ...b.buffers.slice(1)],
        groups: [split + b.groups[0], heads],
      }
    );
  }

  /** Queries in the domain of the keys. */
  private prepare(
    q: Tensor,
    key: GpuCodec,
    { words, int8 }: Frame,
    batch: Batch,
    word: number,
    scale: number,
  ): Dispatch & { queries: GPUBuffer } {
    const { group, kvHeads, subgroups } = this.shape;
    const queries = this.gpu.room('queries', 4 * q.rows * this.heads * words);
    const tables = [key.signs ?? key.transposed, key.mean].filter(buffer => buffer !== undefined);
    const { count } = batch.finish;
    const crowd = crowdOf(count);
    const domain = this.domainOf(key);
    const lanes = byLanes(domain);
    const make = () => (lanes ? prepareByLanes(domain, int8, subgroups === LANES) : prepare(domain, int8, crowd));
    return {
      kernel: this.kernelOf(`prepare ${int8} ${crowd}`, key, key, make),
      params: [word, batch.finish.word, scale],
      buffers: [this.gpu.arena, bufferOf(q), ...tables, queries],
      groups: lanes ? [count * group, kvHeads] : [this.heads / headsAtOnce(group), count],
      queries,
    };
  }

  /** The same of keys that are relative to their page, page by page. */
  private turn(
    q: Tensor,
    key: GpuCodec,
    { words, kernel: make }: NonNullable<Frame['turned']>,
    turns: GPUBuffer,
    batch: Batch,
    table: number,
    scale: number,
  ): GPUBuffer {
    const { group, kvHeads } = this.shape;
    const bytes = 16 * TEAMS * kvHeads * pageWords(words.most, group);
    const queries = this.gpu.room('queries of pages', batch.pageStates * bytes);
    const buffers = [this.gpu.arena, bufferOf(q), turns, key.tables!, queries];
    const kernel = this.kernelOf('prepare pages', key, key, make);
    const { word: first, count } = batch.turned;
    this.gpu.run(kernel, [table, first, scale, key.columns], buffers, [count, kvHeads, vectors(group)]);
    return queries;
  }

  /** Cosine and sine of every pair where each page of the runs begins, made in f64: for twice the pages that are asked for. */
  private turnsOf(codec: GpuCodec, runs: readonly KvRun[]): GPUBuffer {
    const { name, fragment } = codec;
    const turn = fragment.turn!;
    const pages = Math.max(...runs.map(({ view }) => view.firstLeaf + view.leaves.length));
    const has = this.turnedPages.get(codec);
    if (has && has.pages >= pages && has.buffer === this.gpu.room(name, has.buffer.size)) return has.buffer;
    const { pageTokens } = runs[0].view.shape;
    const table = Array.from({ length: 2 * pages }, (_, page) =>
      [...turn].map(angle => turnOf(angle * page * pageTokens)),
    );
    const data = Float32Array.from(table.flat(2));
    const buffer = this.gpu.room(name, data.byteLength);
    this.gpu.upload(buffer, 0, new Uint8Array(data.buffer));
    this.turnedPages.set(codec, { pages: 2 * pages, buffer });
    return buffer;
  }
}

/** Of `write x: array<f32>`, x. */
const bufferName = (text: string) => text.replace('write ', '').split(':')[0];

/** Runs of sequences with the same codecs and windows go together. */
function alike(runs: readonly KvRun[]): readonly (readonly KvRun[])[] {
  const same = ({ view: a }: KvRun, { view: b }: KvRun) =>
    a.shape.layers === b.shape.layers && a.shape.tailTokens === b.shape.tailTokens && a.shape.sinks === b.shape.sinks;
  if (runs.every(run => same(run, runs[0]))) return [runs];
  const kinds: KvRun[][] = [];
  for (const run of runs) {
    const kind = kinds.find(([first]) => same(first, run));
    if (kind) kind.push(run);
    else kinds.push([run]);
  }
  return kinds;
}
