/** Operations on each row by itself: embedding, RMS norm, RoPE, gates. */
import type { Activation, Tensor } from '../device.ts';
import type { Gpu } from './gpu.ts';
import { gate, vec4Workgroups } from './kernels/activations.ts';
import { embed, rope, softcapRows, workgroupsFor } from './kernels/basic.ts';
import { norm } from './kernels/norm.ts';
import { bufferForWriting, bufferOf, int8ForWriting } from './tensor.ts';
import { BLOCK, type GpuWeights } from './weights.ts';

export class RowOperations {
  constructor(private readonly gpu: Gpu) {}

  /** `sampled`: the tokens that handles among the ids stand for. */
  embed(table: GpuWeights, ids: ArrayLike<number>, sampled: GPUBuffer, out: Tensor, scale: number): void {
    const { cols, format, pieces } = table;
    this.gpu.reserveArena(4 * ids.length);
    const { word } = this.gpu.writeToArena(ids);
    const kernel = this.gpu.kernel(`embed ${format.name}`, () => embed(format));
    for (const { codes, scales, firstRow, rows } of pieces) {
      const buffers = [this.gpu.arena, sampled, codes, ...(format.integer ? [scales] : []), bufferForWriting(out)];
      this.gpu.run(kernel, [cols / BLOCK, firstRow, rows, word, scale], buffers, [workgroupsFor(cols), ids.length]);
    }
  }

  norm(x: Tensor, rows: number, weight: Tensor, eps: number, out: Tensor, accumulate = false): void {
    const parts = (rows * x.cols) / weight.cols;
    const inPlace = x === out;
    const floats = [weight, x, ...(inPlace ? [] : [out])].map(bufferOf);
    bufferForWriting(out);
    const int8 = inPlace || accumulate || parts > rows ? [] : int8ForWriting(out);
    const fours = weight.cols % 4 === 0;
    const kernel = this.gpu.kernel(`norm ${inPlace} ${fours} ${int8.length} ${accumulate}`, () =>
      norm(inPlace, fours, int8.length > 0, accumulate),
    );
    const groups = [Math.min(parts, 65535), Math.ceil(parts / 65535)];
    this.gpu.run(kernel, [weight.cols, eps, parts], [...floats, ...int8], groups);
  }

  rope(tensors: readonly Tensor[], rows: number, headDim: number, angles: Tensor): void {
    const pairs = angles.cols / 2;
    const cols = tensors.map(x => x.cols);
    const kernel = this.gpu.kernel(`rope ${tensors.length}`, () => rope(tensors.length === 2 ? 2 : 1));
    const groups = [workgroupsFor((cols.reduce((a, b) => a + b) / headDim) * pairs), rows];
    const buffers = [bufferOf(angles), ...tensors.map(bufferForWriting)];
    this.gpu.run(kernel, [headDim, pairs, cols[0], cols[1] ?? 0], buffers, groups);
  }

  softcap(x: Tensor, rows: number, softcap: number): void {
    const kernel = this.gpu.kernel('softcap', () => softcapRows);
    this.gpu.run(kernel, [x.cols, softcap], [bufferForWriting(x)], [workgroupsFor(x.cols), rows]);
  }

  gate(gated: Tensor, up: Tensor, rows: number, activation: Activation): void {
    const floats = [bufferOf(up), bufferForWriting(gated)];
    const int8 = int8ForWriting(gated);
    const kernel = this.gpu.kernel(`gate ${activation} ${int8.length}`, () => gate(activation, int8.length > 0));
    const values = rows * gated.cols;
    this.gpu.run(kernel, [values / 4], [...floats, ...int8], vec4Workgroups(values));
  }
}
