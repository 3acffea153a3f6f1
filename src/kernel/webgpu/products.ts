/** Matrix products: which kernel takes how many rows, and the activations that they share. */
import type { Projection, Tensor } from '../device.ts';
import type { AdapterInfo } from './adapter.ts';
import type { Gpu, Kernel } from './gpu.ts';
import { groupsOfFours, quantize } from './kernels/activations.ts';
import { type Matmul, matmulFew, nameOf, takesInt8 } from './kernels/matmul.ts';
import { MATRIX_OUT, matmulMatrices, matmulTile, suitsMatrices } from './kernels/tiles.ts';
import { bufferOf, changed, type GpuTensor } from './tensor.ts';
import { BLOCK, BUNDLE, type GpuWeights } from './weights.ts';

export interface ProductOptions {
  precise: boolean;
  /** Rows that an invocation takes at once. */
  unroll: number;
}

/** A kernel, and the weight rows and rows that a workgroup of it has. */
interface Chosen {
  kernel: Kernel;
  outs: number;
  rows: number;
}

/** Up to this many rows, each invocation has all of them. */
const FEW = 8;
/** Up to this many rows a matrix is read once for each few of them where there are no subgroup matrices; above, in tiles. */
const SOME = 16;
/** Blocks of weights on their way for one row. */
const AHEAD = 4;

export class Products {
  constructor(
    private readonly gpu: Gpu,
    private readonly info: AdapterInfo,
    private readonly options: ProductOptions,
  ) {}

  project(x: Tensor, rows: number, projections: readonly Projection[]): void {
    this.gpu.mayBegin();
    for (const { weights, out, bias, add } of projections) {
      const { pieces, format } = weights as GpuWeights;
      const matmul: Matmul = { format, precise: this.options.precise, bias: bias !== undefined };
      const input = takesInt8(matmul) ? this.int8Of(x as GpuTensor, rows) : [bufferOf(x)];
      const chosen = this.choose(matmul, rows);
      for (const { codes, scales, firstRow, rows: outs } of pieces) {
        const buffers = [
          ...input,
          codes,
          ...(format.integer ? [scales] : []),
          ...(bias ? [bufferOf(bias)] : []),
          changed(out),
        ];
        const params = [outs, rows, x.cols / BLOCK, firstRow, weights.rows, add ? 1 : 0];
        this.gpu.run(chosen.kernel, params, buffers, [Math.ceil(outs / chosen.outs), Math.ceil(rows / chosen.rows)]);
      }
    }
  }

  private choose(m: Matmul, rows: number): Chosen {
    const { unroll } = this.options;
    const matrices = this.info.matrices && suitsMatrices(m);
    const known = (kind: string, at: number, make: () => Kernel) => this.gpu.kernel(`${kind} ${at} ${nameOf(m)}`, make);
    if (matrices && rows > FEW) {
      const tile = rows <= 32 ? 32 : 64;
      return { kernel: known('matrices', tile, () => matmulMatrices(m, tile)), outs: MATRIX_OUT, rows: tile };
    }
    if (rows > SOME) {
      const roomy = this.info.limits.workgroupMemory >= 32768;
      const tile = { outs: unroll, rows: takesInt8(m) && rows > 64 && roomy ? 2 * unroll : unroll };
      const kernel = known('tile', tile.rows, () => matmulTile(m, tile));
      return { kernel, outs: 16 * tile.outs, rows: 16 * tile.rows };
    }
    const few = Math.min(2 ** Math.ceil(Math.log2(rows)), 2 * unroll);
    const { invocations } = this.info.limits;
    const ahead = unroll === 1 ? 1 : Math.max(1, AHEAD / few);
    return {
      kernel: known('few', few, () => matmulFew(m, { rows: few, invocations, ahead })),
      outs: BUNDLE,
      rows: few,
    };
  }

  /** The rows as int8, made now unless what wrote them made them too. */
  private int8Of(x: GpuTensor, rows: number): GPUBuffer[] {
    const values = x.rows * x.cols;
    x.int8 ??= {
      codes: this.gpu.buffer(values, 'int8 activations'),
      stats: this.gpu.buffer((8 * values) / BLOCK, 'scales of activations'),
      fresh: false,
    };
    const { codes, stats, fresh } = x.int8;
    if (!fresh) {
      this.gpu.run(quantize, [(rows * x.cols) / 4], [x.buffer, codes, stats], groupsOfFours(rows * x.cols));
      x.int8.fresh = true;
    }
    return [codes, stats];
  }
}
