/** Sealing: a page of the tail into the codec's domain, to codes and scalars, into the bytes of a leaf. */

import type { Block, KvView, PageCodec } from '../device.ts';
import type { Fragment } from '../fragment.ts';
import { firstCodedRow } from '../visibility.ts';
import type { GpuCodec } from './codecs.ts';
import type { Gpu, Kernel } from './gpu.ts';
import { pack, scalarsOf } from './kernels/pack.ts';
import { code, rotate, rotatedAtOnce } from './kernels/seal.ts';
import type { PageShape } from './kernels/shape.ts';
import { turnOf } from './kernels/text.ts';
import { blockOf } from './tensor.ts';

interface Steps {
  rotate: Kernel;
  code: ReturnType<typeof code>;
  pack: Kernel;
}

export class Sealing {
  private readonly steps = new Map<GpuCodec, Steps>();

  constructor(
    private readonly gpu: Gpu,
    private readonly shape: PageShape,
    private readonly codecOf: (fragment: Fragment) => GpuCodec,
  ) {}

  seal(view: KvView, layer: number, page: number, leaf: Block): void {
    const { keys, values, keyOffset, valueOffset } = view.shape.layers[layer];
    this.side(view, layer, page, leaf, { codec: keys, number: 0, offset: 0 });
    this.side(view, layer, page, leaf, { codec: values, number: 1, offset: valueOffset - keyOffset });
  }

  private stepsOf(known: GpuCodec, { pageBytes }: PageCodec): Steps {
    const { fragment, name } = known;
    const steps = this.steps.get(known) ?? {
      rotate: rotate(fragment, this.shape),
      code: code(name, fragment, this.shape),
      pack: pack(name, fragment, pageBytes, this.shape),
    };
    this.steps.set(known, steps);
    return steps;
  }

  private side(
    view: KvView,
    layer: number,
    page: number,
    leaf: Block,
    { codec, number, offset }: { codec: PageCodec; number: number; offset: number },
  ): void {
    const { gpu } = this;
    const { kvHeads, headDim, pageTokens } = this.shape;
    const known = this.codecOf(codec.fragment);
    const { fragment } = known;
    const steps = this.stepsOf(known, codec);
    const values = kvHeads * pageTokens * headDim;
    const y = gpu.room('vectors to seal', 4 * values);
    const codes = gpu.room('codes', 8 * values);
    const scalars = gpu.room('scalars', 4 * kvHeads * scalarsOf(fragment, this.shape));
    const start = page * pageTokens;
    const turns = Float32Array.from([...(fragment.turn ?? [])].flatMap(angle => turnOf(angle * start)));
    gpu.makeRoom(turns.byteLength);
    const turn = turns.length > 0 ? gpu.place(turns).word : 0;
    const tail = blockOf(view.tail);
    const tables = [known.encode, known.mean].filter(buffer => buffer !== undefined);
    const first = firstCodedRow(view.shape, page);
    const rotateParams = [tail.slot, tail.pool.strides[layer], number, view.shape.tailTokens, start, first, turn];
    const rotateBuffers = [gpu.arena, tail.pool.buffers[layer], ...tables, y];
    gpu.run(steps.rotate, rotateParams, rotateBuffers, [pageTokens / rotatedAtOnce(this.shape), kvHeads]);
    const more = [known.residual, known.tables].filter(buffer => buffer !== undefined);
    for (const { kernel, groups } of steps.code) gpu.run(kernel, [0], [y, codes, scalars, ...more], groups);
    const { pool, slot } = blockOf(leaf);
    const at = slot * pool.strides[layer] + offset;
    const words = Math.ceil(codec.pageBytes / 4);
    const places = steps.pack.buffers.length > 3 ? [known.tables!] : [];
    gpu.run(steps.pack, [at], [codes, scalars, ...places, pool.buffers[layer]], [Math.ceil(words / 64)]);
  }
}
