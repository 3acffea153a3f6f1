/** Attention: work tables, dispatches over pages, tails and sinks, and the combination of their partial states. */

import type { AttendOptions, Block, KvLayer, KvRun, KvView, Tensor } from '../device.ts';
import type { PageLayout } from '../page-layout.ts';
import { pagesOf, tailBlockTokens } from '../visibility.ts';
import { type AttentionTable, type Batch, buildAttentionTable, type WorkItems } from './attention-table.ts';
import { type AttentionVariant, selectVariants, type VariantOptions, type Variants } from './attention-variant.ts';
import type { GpuCodec } from './codecs.ts';
import type { ArenaTable, Gpu } from './gpu.ts';
import type { Kernel } from './kernel.ts';
import { APPEND_WORDS, append } from './kernels/append.ts';
import type { AttendShape } from './kernels/attend.ts';
import { PAGE_MATRIX } from './kernels/attend-prompt.ts';
import { combineSplitsHadamard } from './kernels/four-subgroups/combine-splits.ts';
import { vectors } from './kernels/four-subgroups/names.ts';
import { queryVectorsPerPage } from './kernels/four-subgroups/page-relative.ts';
import { SUBGROUPS } from './kernels/four-subgroups/subgroup.ts';
import { fuseHorizontally } from './kernels/horizontal-fusion.ts';
import { LANES } from './kernels/one-subgroup/subgroup.ts';
import { fitsOneSubgroup, transformQueryOneSubgroup } from './kernels/one-subgroup/transform-query.ts';
import { PAGE_ROTATIONS } from './kernels/page-relative.ts';
import { cosSin } from './kernels/snippets.ts';
import {
  batchSizeOf,
  type CodecTransform,
  combineSplits,
  headsPerWorkgroup,
  stateFloats,
  TRANSFORM_WORKGROUP_SIZE,
  transformQuery,
} from './kernels/transform.ts';
import { fits } from './limits.ts';
import type { Pool } from './pool.ts';
import type { TailPosition } from './projections.ts';
import { bufferForWriting, bufferOf, gpuBlock, int8ForWriting, tailPool, tailSlots } from './tensor.ts';
import { BLOCK } from './weights.ts';

export interface AttentionOptions extends VariantOptions {
  heads: number;
  /** Whether independent kernels share a dispatch. */
  horizontalFusion: boolean;
  /** Bytes of the largest binding. */
  maxBindingBytes: number;
}

interface Dispatch {
  kernel: Kernel;
  params: number[];
  buffers: GPUBuffer[];
  groups: number[];
}

/** Largest dispatch that is fused: fused kernels need more workgroup memory, so fewer workgroups run at once. */
const MAX_FUSED_WORKGROUPS = 1024;

/** Bytes of partial states per batch. */
const MAX_STATE_BYTES = 64 << 20;

export class Attention {
  private readonly heads: number;
  /** By runs, then by pages per split and window. */
  private readonly tables = new WeakMap<
    readonly KvRun[],
    Map<string, { table: AttentionTable; placed?: ArenaTable }>
  >();
  /** RoPE cosines and sines of the first `pages` page starts, by codec. */
  private readonly pageAngles = new Map<GpuCodec, { pages: number; buffer: GPUBuffer }>();
  /** Undefined where the fused kernel exceeds the adapter's limits. */
  private readonly fusedKernels = new Map<Kernel, Map<Kernel, Kernel | undefined>>();
  private readonly variants = new Map<GpuCodec, Map<GpuCodec, Variants>>();
  /** Runs that share kernels. */
  private readonly groups = new WeakMap<readonly KvRun[], readonly (readonly KvRun[])[]>();
  private readonly kernels = new Map<GpuCodec, Map<GpuCodec, Map<string, Kernel>>>();

  constructor(
    private readonly gpu: Gpu,
    private readonly shape: AttendShape,
    private readonly codecOf: (layout: PageLayout) => GpuCodec,
    private readonly options: AttentionOptions,
  ) {
    this.heads = options.heads;
  }

  /** Generates a kernel for a pair of codecs once. */
  private cachedKernel(name: string, key: GpuCodec, value: GpuCodec, make: () => Kernel): Kernel {
    const byValue = this.kernels.get(key) ?? new Map<GpuCodec, Map<string, Kernel>>();
    this.kernels.set(key, byValue);
    const byName = byValue.get(value) ?? new Map<string, Kernel>();
    byValue.set(value, byName);
    const kernel = byName.get(name) ?? make();
    byName.set(name, kernel);
    return kernel;
  }

  /** Stores keys and values in tails and sinks. `rope`: also rotates keys and queries; the runs then cover all rows. */
  append(layer: number, k: Tensor, v: Tensor, runs: readonly KvRun[], rope?: { q: Tensor; angles: Tensor }): void {
    const { headDim, kvHeads, pageTokens } = this.shape;
    for (const group of groupBy(runs, isAlike)) {
      const { shape, sinkBlock } = group[0].view;
      const lists: number[] = [];
      const runWords = group.flatMap(({ view, row, count, position }) => {
        const list = APPEND_WORDS * group.length + lists.length;
        lists.push(...tailSlots(view));
        return [row, count, position, list, gpuBlock(view.sinkBlock).slot];
      });
      const words = [...runWords, ...lists];
      this.gpu.reserveArena(4 * words.length);
      const { word } = this.gpu.writeToArena(words);
      const maxRows = Math.max(...group.map(({ count }) => count));
      const store = (pool: Pool, tokens: number, sinks: boolean, rotate: typeof rope) => {
        const heads = rotate && this.heads;
        const kernel = this.gpu.kernel(`append ${sinks} ${heads}`, () =>
          append({ headDim, kvHeads, pageTokens, sinks, ropeHeads: heads }),
        );
        const more = rotate ? [bufferOf(rotate.angles), bufferForWriting(rotate.q)] : [];
        const buffers = [this.gpu.arena, bufferForWriting(k), bufferOf(v), pool.buffers[layer], ...more];
        const params = [word, pool.strides[layer], tokens, rotate ? rotate.angles.cols / 2 : 0];
        const pairs = ((2 * kvHeads + (heads ?? 0)) * headDim) / 2;
        this.gpu.run(kernel, params, buffers, [Math.ceil(pairs / TRANSFORM_WORKGROUP_SIZE), maxRows, group.length]);
      };
      store(tailPool(group[0].view)!, shape.tailTokens, false, rope);
      if (group.some(({ position }) => position < shape.sinks))
        store(gpuBlock(sinkBlock).pool, shape.sinks, true, undefined);
    }
  }

  /** Where the keys and values of one row are stored, if it is the only row and goes only into a tail. */
  tailPosition(layer: number, runs: readonly KvRun[]): TailPosition | undefined {
    const { headDim, pageTokens } = this.shape;
    const [{ view, count, position }] = runs;
    const { tailTokens, sinks } = view.shape;
    if (runs.length > 1 || count > 1 || position < sinks) return undefined;
    const tokens = tailBlockTokens(pageTokens);
    const index = position % tailTokens;
    const { pool, slot } = gpuBlock(view.tail[Math.floor(index / tokens)]!);
    const word = (slot * pool.strides[layer]) / 4 + ((index % tokens) * headDim) / 2;
    return { buffer: pool.buffers[layer], word, tokens };
  }

  attend(layer: number, q: Tensor, out: Tensor, runs: readonly KvRun[], options: AttendOptions): void {
    for (const group of this.groupsOf(runs)) {
      const { keys, values } = group[0].view.shape.layers[layer];
      const [key, value] = [this.codecOf(keys.layout), this.codecOf(values.layout)];
      const variants = this.variantsFor(key, value);
      const variant = group[0].prefill ? variants.prompt : variants.decoded;
      // Before the table is placed: an upload may submit, which clears the arena.
      const angles = key.layout.ropeFrequencies && this.pageAngleBuffer(key, group);
      // The blocks of all views are in the same pools, but a short sequence has no pages to find their pool by.
      const { view } = group.find(({ view }) => firstPage(view, layer)) ?? group[0];
      const { table } = this.placeTable(group, variant, layer);
      for (const batch of table.batches) {
        const { word } = this.placeTable(group, variant, layer);
        this.attendBatch(layer, q, out, view, { key, value, variant, angles }, batch, word, options);
      }
    }
  }

  /** Rows of prompts are apart from decoded ones if they use other kernels. */
  private groupsOf(runs: readonly KvRun[]): readonly (readonly KvRun[])[] {
    const { matrices } = this.options;
    const groups =
      this.groups.get(runs) ?? groupBy(runs, (a, b) => isAlike(a, b) && (!matrices || a.prefill === b.prefill));
    this.groups.set(runs, groups);
    return groups;
  }

  /** Only the general kernel, which reads all codecs as floats, has no loop bounds of its own. */
  unpacks({ keys, values }: KvLayer): boolean {
    const { decoded } = this.variantsFor(this.codecOf(keys.layout), this.codecOf(values.layout));
    return decoded.pageLoops.length === 0;
  }

  private variantsFor(key: GpuCodec, value: GpuCodec): Variants {
    const byValue = this.variants.get(key) ?? new Map<GpuCodec, Variants>();
    this.variants.set(key, byValue);
    const variants = byValue.get(value) ?? selectVariants(key, value, this.shape, this.options);
    byValue.set(value, variants);
    return variants;
  }

  private placeTable(
    runs: readonly KvRun[],
    { tile, pageTile, pagesPerSplit }: AttentionVariant,
    layer: number,
  ): { table: AttentionTable; word: number } {
    const cachedTables = this.tables.get(runs) ?? new Map<string, { table: AttentionTable; placed?: ArenaTable }>();
    this.tables.set(runs, cachedTables);
    const key = `${pagesPerSplit} ${runs[0].view.shape.layers[layer].window}`;
    let cached = cachedTables.get(key);
    if (!cached) {
      const stateBytes = 4 * this.heads * stateFloats(2 * this.shape.headDim);
      const maxStates = Math.floor(Math.min(MAX_STATE_BYTES, this.options.maxBindingBytes) / stateBytes);
      cached = { table: buildAttentionTable(runs, { tile, pageTile, pagesPerSplit, maxStates, layer }) };
      cachedTables.set(key, cached);
    }
    this.gpu.reserveArena(cached.table.words.byteLength);
    if (cached.placed?.generation !== this.gpu.generation) cached.placed = this.gpu.writeToArena(cached.table.words);
    return { table: cached.table, word: cached.placed.word };
  }

  private transformOf(codec: GpuCodec): CodecTransform {
    const { headDim, kvHeads } = this.shape;
    const { codedDim, queryMatrix, mean, meansOffset } = codec.layout;
    const flags = {
      matrix: queryMatrix !== undefined,
      signs: codec.signs !== undefined,
      perHead: codec.perHead,
      mean: mean !== undefined,
      centered: meansOffset !== undefined,
    };
    return { headDim, codedDim, heads: this.heads, kvHeads, ...flags };
  }

  private attendBatch(
    layer: number,
    q: Tensor,
    out: Tensor,
    view: KvView,
    { key, value, variant, angles }: { key: GpuCodec; value: GpuCodec; variant: AttentionVariant; angles?: GPUBuffer },
    batch: Batch,
    word: number,
    { scale, softcap = 0, sinkLogits }: AttendOptions,
  ): void {
    const { shape } = view;
    const { kvHeads, headDim } = this.shape;
    const { part, keyOffset, valueOffset } = shape.layers[layer];
    const stateBytes = (dim: number) => 4 * this.heads * stateFloats(dim);
    const states = this.gpu.scratch('page states', batch.pageStates * stateBytes(value.layout.codedDim));
    const f16States = this.gpu.scratch('f16 states', batch.f16States * stateBytes(headDim));
    const dispatches: Dispatch[] = [];
    const { tile, pageTile = tile } = variant;
    const each = (
      items: WorkItems,
      tile: number,
      parts: number,
      make: (rows: number, first: number) => Omit<Dispatch, 'groups'>,
    ) => {
      const heads = kvHeads * parts;
      if (items.singleRow.count > 0)
        dispatches.push({ ...make(1, items.singleRow.word), groups: [items.singleRow.count, heads] });
      if (items.rowTile.count > 0)
        dispatches.push({ ...make(tile, items.rowTile.word), groups: [items.rowTile.count, heads] });
    };
    const transform =
      batch.pageStates === 0 || key.layout.ropeFrequencies
        ? undefined
        : this.transformQuery(q, key, variant, batch, word, scale);
    const queries =
      transform?.queries ??
      (variant.pageQueries && batch.pageStates > 0
        ? this.transformPageQueries(q, key, variant.pageQueries, angles!, batch, word, scale)
        : bufferOf(q));
    const sinks = gpuBlock(view.sinkBlock).pool;
    const tails = tailPool(view) ?? sinks;
    each(batch.f16, tile, variant.f16Parts, (rows, first) => {
      const layouts = [tails.strides[layer], shape.tailTokens, sinks.strides[layer], Math.max(1, shape.sinks)];
      const buffers = [this.gpu.arena, bufferOf(q), tails.buffers[layer], sinks.buffers[layer], f16States];
      const kernel = this.gpu.kernel(`f16 ${rows} ${variant.f16Loops} ${variant.f16Parts}`, () => variant.f16(rows));
      return { kernel, params: [word, first, ...variant.f16Loops, ...layouts, scale, softcap], buffers };
    });
    if (batch.pageStates > 0) {
      const { pool } = gpuBlock(firstPage(view, layer)!);
      const bound: Record<string, GPUBuffer | undefined> = {
        data: this.gpu.arena,
        queries,
        pool: pool.buffers[part],
        pool2: pool.buffers[part],
        pool4: pool.buffers[part],
        keyTables: key.tables,
        valueTables: value.tables,
        [PAGE_ROTATIONS]: angles,
        [PAGE_MATRIX]: key.pageMatrix,
        states,
      };
      each(batch.pages, pageTile, variant.pageParts, (rows, first) => {
        const kernel = this.cachedKernel(`pages ${rows} ${variant.pageTile}`, key, value, () => variant.pages(rows));
        const offset = valueOffset - keyOffset;
        const params = [
          word,
          first,
          ...variant.pageLoops,
          pool.strides[part],
          offset,
          scale,
          softcap,
          key.columns,
          value.columns,
        ];
        const buffers = kernel.buffers.map(({ name }) => bound[name]!);
        return { kernel, params, buffers };
      });
    }
    const pair = batch.f16.rowTile.count + batch.pages.rowTile.count === 0 && dispatches.length === 2;
    const small = dispatches.every(({ groups: [items, heads] }) => items * heads <= MAX_FUSED_WORKGROUPS);
    const [f16, pages] = dispatches;
    // Tails and sinks are short but slow: run them with the pages, or with the query transform that the pages wait for.
    const both = pair && small ? this.fuse(f16, pages) : undefined;
    const before = transform && pair && !both ? this.fuse(transform, f16) : undefined;
    if (before) this.run(before, pages);
    else this.run(...(transform ? [transform] : []), ...(both ? [both] : dispatches));
    const tables = [value.signs ?? value.matrix, value.mean].filter(buffer => buffer !== undefined);
    // Quantized in the same kernel where heads are whole blocks.
    const floats = bufferForWriting(out);
    // With sink logits the kernel has no buffers left for that.
    const int8 = headDim % BLOCK === 0 && !sinkLogits ? int8ForWriting(out) : [];
    if (sinkLogits) tables.push(bufferOf(sinkLogits));
    const buffers = [this.gpu.arena, states, f16States, ...tables, floats, ...int8];
    const { group, subgroupSize } = this.shape;
    const { count } = batch.rows;
    const batchSize = batchSizeOf(count);
    const codecTransform = this.transformOf(value);
    const options = { int8: int8.length > 0, sinkLogits: sinkLogits !== undefined };
    const make = () =>
      value.signs
        ? combineSplitsHadamard(codecTransform, options, subgroupSize === LANES)
        : combineSplits(codecTransform, options, batchSize);
    const kernel = this.cachedKernel(`combine splits ${Object.values(options)} ${batchSize}`, value, value, make);
    const groups = [value.signs ? this.heads : this.heads / headsPerWorkgroup(group), count];
    this.gpu.run(kernel, [word, batch.rows.word], buffers, groups);
  }

  private run(...dispatches: readonly Dispatch[]): void {
    for (const { kernel, params, buffers, groups } of dispatches) this.gpu.run(kernel, params, buffers, groups);
  }

  /** Two dispatches as one, if the fused kernel fits the adapter. */
  private fuse(a: Dispatch, b: Dispatch): Dispatch | undefined {
    const cached = this.fusedKernels.get(a.kernel) ?? new Map<Kernel, Kernel | undefined>();
    this.fusedKernels.set(a.kernel, cached);
    if (!cached.has(b.kernel)) {
      const canFuse = this.options.horizontalFusion && a.kernel.size === b.kernel.size && a.groups[1] === b.groups[1];
      const both = canFuse ? fuseHorizontally(a.kernel, b.kernel) : undefined;
      cached.set(b.kernel, both && fits(both, this.options.limits) ? both : undefined);
    }
    const kernel = cached.get(b.kernel);
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

  /** Transforms queries into the domain of the keys. */
  private transformQuery(
    q: Tensor,
    key: GpuCodec,
    { words, int8 }: AttentionVariant,
    batch: Batch,
    word: number,
    scale: number,
  ): Dispatch & { queries: GPUBuffer } {
    const { group, kvHeads, subgroupSize } = this.shape;
    const queries = this.gpu.scratch('queries', 4 * q.rows * this.heads * words);
    const tables = [key.signs ?? key.transposed].filter(buffer => buffer !== undefined);
    const { count } = batch.rows;
    const batchSize = batchSizeOf(count);
    const codecTransform = this.transformOf(key);
    const lanes = fitsOneSubgroup(codecTransform);
    const make = () =>
      lanes
        ? transformQueryOneSubgroup(codecTransform, int8, subgroupSize === LANES)
        : transformQuery(codecTransform, int8, batchSize);
    return {
      kernel: this.cachedKernel(`transform query ${int8} ${batchSize}`, key, key, make),
      params: [word, batch.rows.word, scale],
      buffers: [this.gpu.arena, bufferOf(q), ...tables, queries],
      groups: lanes ? [count * group, kvHeads] : [this.heads / headsPerWorkgroup(group), count],
      queries,
    };
  }

  /** The same for keys that are relative to their page: one query per page. */
  private transformPageQueries(
    q: Tensor,
    key: GpuCodec,
    { words, kernel: make }: NonNullable<AttentionVariant['pageQueries']>,
    angles: GPUBuffer,
    batch: Batch,
    table: number,
    scale: number,
  ): GPUBuffer {
    const { group, kvHeads } = this.shape;
    const bytes = 16 * SUBGROUPS * kvHeads * queryVectorsPerPage(words.maxWords, group);
    const queries = this.gpu.scratch('page queries', batch.pageStates * bytes);
    const buffers = [this.gpu.arena, bufferOf(q), angles, key.tables!, queries];
    const kernel = this.cachedKernel('page queries', key, key, make);
    const { word: first, count } = batch.pageQueries;
    this.gpu.run(kernel, [table, first, scale, key.columns], buffers, [count, kvHeads, vectors(group)]);
    return queries;
  }

  /** RoPE cosines and sines at the start of each page, computed in f64, for twice the pages of the runs. */
  private pageAngleBuffer(codec: GpuCodec, runs: readonly KvRun[]): GPUBuffer {
    const { name, layout } = codec;
    const frequencies = layout.ropeFrequencies!;
    const pages = Math.max(...runs.map(({ view }) => view.firstLeaf + view.leaves.length));
    const cached = this.pageAngles.get(codec);
    if (cached && cached.pages >= pages && cached.buffer === this.gpu.scratch(name, cached.buffer.size))
      return cached.buffer;
    const { pageTokens } = runs[0].view.shape;
    const table = Array.from({ length: 2 * pages }, (_, page) =>
      [...frequencies].map(frequency => cosSin(frequency * page * pageTokens)),
    );
    const data = Float32Array.from(table.flat(2));
    const buffer = this.gpu.scratch(name, data.byteLength);
    this.gpu.upload(buffer, 0, new Uint8Array(data.buffer));
    this.pageAngles.set(codec, { pages: 2 * pages, buffer });
    return buffer;
  }
}

/** The first page of a layer that is there. */
const firstPage = (view: KvView, layer: number): Block | undefined => pagesOf(view, layer).find(page => page);

/** Whether the sequences of two runs share codecs and windows. */
const isAlike = ({ view: { shape: a } }: KvRun, { view: { shape: b } }: KvRun): boolean =>
  a.layers === b.layers && a.tailTokens === b.tailTokens && a.sinks === b.sinks;

function groupBy(runs: readonly KvRun[], same: (a: KvRun, b: KvRun) => boolean): readonly (readonly KvRun[])[] {
  if (runs.every(run => same(run, runs[0]))) return [runs];
  const kinds: KvRun[][] = [];
  for (const run of runs) {
    const kind = kinds.find(([first]) => same(first, run));
    if (kind) kind.push(run);
    else kinds.push([run]);
  }
  return kinds;
}
