/**
 * Sealing: transforms pages of tails into the codec's domain, quantizes them, and packs them into leaves. The pages of all
 * sequences share the dispatches of a layer.
 */

import type { PageCodec, SealRequest } from '../device.ts';
import { type PageLayout, tracksError } from '../page-layout.ts';
import { firstCodedRow, pageBlock } from '../visibility.ts';
import type { GpuCodec } from './codecs.ts';
import type { Gpu } from './gpu.ts';
import type { Kernel } from './kernel.ts';
import { pack, WORDS_PER_REQUEST, wordsPerPage } from './kernels/pack.ts';
import { quantizeKernels, tokensPerWorkgroup, transformVectors } from './kernels/seal.ts';
import { sumErrors } from './kernels/seal-learned.ts';
import type { PageShape } from './kernels/shape.ts';
import { cosSin } from './kernels/snippets.ts';
import { meanWorkgroups, storeMeans } from './kernels/store-means.ts';
import { bufferForWriting, gpuBlock, tailPool, tailSlots } from './tensor.ts';

interface Steps {
  transform: Kernel;
  /** For centered pages. */
  storeMeans?: Kernel;
  quantize: ReturnType<typeof quantizeKernels>;
  pack: Kernel;
}

/** Pages per dispatch, which bounds the scratch buffers. */
const MAX_PAGES = 16;

/** Keys or values of a layer. `offset`: their place in a part of a leaf. */
interface Side {
  codec: PageCodec;
  side: 0 | 1;
  part: number;
  offset: number;
}

export class Sealing {
  private readonly steps = new Map<GpuCodec, Steps>();
  private readonly sumErrors: Kernel;

  constructor(
    private readonly gpu: Gpu,
    private readonly shape: PageShape,
    private readonly codecOf: (layout: PageLayout) => GpuCodec,
  ) {
    this.sumErrors = sumErrors(shape);
  }

  seal(layer: number, requests: readonly SealRequest[]): void {
    for (const group of groupRequests(layer, requests)) {
      const { keys, values, part, keyOffset, valueOffset } = group[0].view.shape.layers[layer];
      this.sealSide(layer, group, { codec: keys, side: 0, part, offset: 0 });
      this.sealSide(layer, group, { codec: values, side: 1, part, offset: valueOffset - keyOffset });
    }
  }

  private stepsOf(gpuCodec: GpuCodec, { pageBytes }: PageCodec): Steps {
    const { layout, name } = gpuCodec;
    const steps = this.steps.get(gpuCodec) ?? {
      transform: transformVectors(layout, this.shape),
      quantize: quantizeKernels(name, layout, this.shape),
      storeMeans: layout.meansOffset === undefined ? undefined : storeMeans(layout, this.shape),
      pack: pack(name, layout, bytesToPack(layout, pageBytes), this.shape),
    };
    this.steps.set(gpuCodec, steps);
    return steps;
  }

  /** The requests have the same pools and the same plan. */
  private sealSide(layer: number, requests: readonly SealRequest[], { codec, side, part, offset }: Side): void {
    const { gpu } = this;
    const { kvHeads, pageTokens } = this.shape;
    const gpuCodec = this.codecOf(codec.layout);
    const { layout } = gpuCodec;
    const steps = this.stepsOf(gpuCodec, codec);
    const words = wordsPerPage(layout, this.shape);
    const y = gpu.scratch('vectors to seal', 4 * words.y * requests.length);
    const codes = gpu.scratch('codes', 4 * words.codes * requests.length);
    const scalars = gpu.scratch('scalars', 4 * words.scalars * requests.length);
    const table = this.writeTable(layer, requests, layout, part, offset);
    const [{ view, page }] = requests;
    const tail = tailPool(view)!;
    const tables = [gpuCodec.encode, gpuCodec.mean].filter(buffer => buffer !== undefined);
    const transformGroups = [pageTokens / tokensPerWorkgroup(this.shape), kvHeads, requests.length];
    const transformBuffers = [gpu.arena, tail.buffers[layer], ...tables, y];
    const transformParams = [table, tail.strides[layer], side, view.shape.tailTokens];
    gpu.run(steps.transform, transformParams, transformBuffers, transformGroups);
    const leafPool = gpuBlock(pageBlock(view, layer, page)).pool.buffers[part];
    if (steps.storeMeans)
      gpu.run(
        steps.storeMeans,
        [table],
        [gpu.arena, y, leafPool],
        [meanWorkgroups(this.shape), kvHeads, requests.length],
      );
    const more = [gpuCodec.residual, gpuCodec.tables].filter(buffer => buffer !== undefined);
    for (const { kernel, groups } of steps.quantize)
      gpu.run(kernel, [0], [y, codes, scalars, ...more], [groups[0], groups[1] ?? 1, requests.length]);
    const columnTable = steps.pack.buffers.length > 4 ? [gpuCodec.tables!] : [];
    const packBuffers = [gpu.arena, codes, scalars, ...columnTable, leafPool];
    const packWords = Math.ceil(bytesToPack(layout, codec.pageBytes) / 4);
    gpu.run(steps.pack, [table], packBuffers, [Math.ceil(packWords / 64), 1, requests.length]);
    if (!tracksError(layout.encoding)) return;
    // Every sequence has its own buffer for errors.
    requests.forEach(({ view: { shape, errors }, page }, i) => {
      if (!errors) return;
      const column = (page % errors.rows) * errors.cols + 2 * layer + side;
      const params = [i * words.scalars, firstCodedRow(shape, page), column];
      gpu.run(this.sumErrors, params, [scalars, bufferForWriting(errors)], [1]);
    });
  }

  /**
   * WORDS_PER_REQUEST words per page; the rotations of page-relative keys and the slots of the tails are before them.
   * Returns its place in the arena.
   */
  private writeTable(
    layer: number,
    requests: readonly SealRequest[],
    layout: PageLayout,
    part: number,
    offset: number,
  ): number {
    const { gpu } = this;
    const starts = requests.map(({ page }) => page * this.shape.pageTokens);
    const frequencies = [...(layout.ropeFrequencies ?? [])];
    const rotations = Float32Array.from(
      starts.flatMap(start => frequencies.flatMap(frequency => cosSin(frequency * start))),
    );
    const lists = requests.map(({ view }) => tailSlots(view));
    const [{ length }] = lists;
    // All tables, and the parameters of all dispatches, go into one submission.
    gpu.reserveArena(rotations.byteLength + 4 * (WORDS_PER_REQUEST + length) * requests.length + 512 * requests.length);
    const rotation = rotations.length > 0 ? gpu.writeToArena(rotations).word : 0;
    const { word: list } = gpu.writeToArena(lists.flat());
    const words = requests.flatMap(({ view, page }, i) => {
      const { pool, slot } = gpuBlock(pageBlock(view, layer, page));
      const first = firstCodedRow(view.shape, page);
      const rotationAt = rotation + 2 * frequencies.length * i;
      return [list + length * i, starts[i], first, rotationAt, slot * pool.strides[part] + offset];
    });
    return gpu.writeToArena(words).word;
  }
}

/** The means of a page, which are after its other fields, are already there. */
const bytesToPack = ({ meansOffset }: PageLayout, pageBytes: number) => meansOffset ?? pageBytes;

/** Requests of one plan whose blocks are in the same pools, at most MAX_PAGES together. */
function groupRequests(layer: number, requests: readonly SealRequest[]): SealRequest[][] {
  const groups: SealRequest[][] = [];
  const poolOf = ({ view, page }: SealRequest) => gpuBlock(pageBlock(view, layer, page)).pool;
  for (const request of requests) {
    const { view } = request;
    const group = groups.find(
      ([first, ...rest]) =>
        rest.length + 1 < MAX_PAGES &&
        first.view.shape.layers === view.shape.layers &&
        first.view.shape.tailTokens === view.shape.tailTokens &&
        tailPool(first.view) === tailPool(view) &&
        poolOf(first) === poolOf(request),
    );
    if (group) group.push(request);
    else groups.push([request]);
  }
  return groups;
}
