/** Sealing: transforms a page of the tail into the codec's domain, quantizes it, and packs it into a leaf. */

import type { PageCodec, SealRequest } from '../device.ts';
import { type PageLayout, tracksError } from '../page-layout.ts';
import { firstCodedRow } from '../visibility.ts';
import type { GpuCodec } from './codecs.ts';
import type { Gpu } from './gpu.ts';
import type { Kernel } from './kernel.ts';
import { pack, scalarsPerHead } from './kernels/pack.ts';
import { quantizeKernels, tokensPerWorkgroup, transformVectors } from './kernels/seal.ts';
import { sumErrors } from './kernels/seal-learned.ts';
import type { PageShape } from './kernels/shape.ts';
import { cosSin } from './kernels/snippets.ts';
import { bufferForWriting, gpuBlock, tailPool, tailSlots } from './tensor.ts';

interface Steps {
  transform: Kernel;
  quantize: ReturnType<typeof quantizeKernels>;
  pack: Kernel;
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

  seal(layer: number, request: SealRequest): void {
    const { keys, values, keyOffset, valueOffset } = request.view.shape.layers[layer];
    this.sealSide(layer, request, { codec: keys, side: 0, offset: 0 });
    this.sealSide(layer, request, { codec: values, side: 1, offset: valueOffset - keyOffset });
  }

  private stepsOf(gpuCodec: GpuCodec, { pageBytes }: PageCodec): Steps {
    const { layout, name } = gpuCodec;
    const steps = this.steps.get(gpuCodec) ?? {
      transform: transformVectors(layout, this.shape),
      quantize: quantizeKernels(name, layout, this.shape),
      pack: pack(name, layout, pageBytes, this.shape),
    };
    this.steps.set(gpuCodec, steps);
    return steps;
  }

  private sealSide(
    layer: number,
    { view, page, leaf }: SealRequest,
    { codec, side, offset }: { codec: PageCodec; side: number; offset: number },
  ): void {
    const { gpu } = this;
    const { kvHeads, headDim, pageTokens } = this.shape;
    const gpuCodec = this.codecOf(codec.layout);
    const { layout } = gpuCodec;
    const steps = this.stepsOf(gpuCodec, codec);
    const values = kvHeads * pageTokens * headDim;
    const y = gpu.scratch('vectors to seal', 4 * values);
    const codes = gpu.scratch('codes', 8 * values);
    const scalars = gpu.scratch('scalars', 4 * kvHeads * scalarsPerHead(layout, this.shape));
    const start = page * pageTokens;
    const rotations = Float32Array.from(
      [...(layout.ropeFrequencies ?? [])].flatMap(frequency => cosSin(frequency * start)),
    );
    const slots = tailSlots(view);
    gpu.reserveArena(rotations.byteLength + 4 * slots.length);
    const rotation = rotations.length > 0 ? gpu.writeToArena(rotations).word : 0;
    const { word: list } = gpu.writeToArena(slots);
    const tail = tailPool(view)!;
    const tables = [gpuCodec.encode, gpuCodec.mean].filter(buffer => buffer !== undefined);
    const first = firstCodedRow(view.shape, page);
    const transformParams = [list, tail.strides[layer], side, view.shape.tailTokens, start, first, rotation];
    const transformBuffers = [gpu.arena, tail.buffers[layer], ...tables, y];
    gpu.run(steps.transform, transformParams, transformBuffers, [pageTokens / tokensPerWorkgroup(this.shape), kvHeads]);
    const more = [gpuCodec.residual, gpuCodec.tables].filter(buffer => buffer !== undefined);
    for (const { kernel, groups } of steps.quantize) gpu.run(kernel, [0], [y, codes, scalars, ...more], groups);
    const { pool, slot } = gpuBlock(leaf);
    const at = slot * pool.strides[layer] + offset;
    const words = Math.ceil(codec.pageBytes / 4);
    const columnTable = steps.pack.buffers.length > 3 ? [gpuCodec.tables!] : [];
    gpu.run(steps.pack, [at], [codes, scalars, ...columnTable, pool.buffers[layer]], [Math.ceil(words / 64)]);
    if (!view.errors || !tracksError(layout.encoding)) return;
    const { rows, cols } = view.errors;
    const column = (page % rows) * cols + 2 * layer + side;
    gpu.run(this.sumErrors, [first, column], [scalars, bufferForWriting(view.errors)], [1]);
  }
}
