/** Weight matrices: loading them, and multiplying activations by them. */
import { ShapeError } from '../../util/errors.ts';
import type { Projection, Tensor, Weights } from '../device.ts';
import { isQuantized } from '../weights/split.ts';
import { type WeightType, weightBytes } from '../weights/types.ts';
import { GEMM_SCRATCH, gemm } from './kernels/gemm.ts';
import {
  type ArithmeticOptions,
  type GemmSignature,
  gemmArithmetic,
  gemmFloat,
  gemmKernelName,
  gemmSignature,
  gemv,
} from './kernels/gemv.ts';
import {
  type ActivationType,
  activationBytes,
  quantizeActivations,
  quantizeSignature,
} from './kernels/quantize-activations.ts';
import { type Allocation, addressOf, type Memories } from './memories.ts';
import type { Kernel } from './module.ts';
import { packedBytes, packedFormats, packWeights, unpackRow } from './pack-weights.ts';
import type { Pool } from './pool.ts';
import { type Task, task } from './task.ts';

export type WasmWeights = Weights &
  Allocation & {
    /** The activations that its kernels take. */
    input: ActivationType | 'f32';
    /** For one row and for several. */
    gemv: GemmSignature;
    gemm: GemmSignature;
  };

/** Activations, quantized or not. */
export interface Input {
  address: number;
  bytes: number;
}

/** Weights are read from the file in pieces of at most this size, but of at least four heads' rows. */
const MAX_LOAD_BYTES = 2 * 2 ** 20;

/** Rows of weights that are worth a chunk. */
const MIN_CHUNK_ROWS = 64;

/** Kernels for all weight types. */
export function projectionKernels(options: ArithmeticOptions): Kernel[] {
  const integerFormats = new Map(
    Object.values(packedFormats)
      .filter(({ bits }) => bits < 16)
      .map(format => [gemmKernelName(format, 'gemv'), format]),
  );
  return [
    ...(['int8', 'offset8', 'int16'] as const).flatMap(type =>
      (['gemv', 'gemm'] as const).map(kernel => quantizeActivations(type, kernel, options.precise)),
    ),
    ...[...integerFormats.values()].flatMap(format => {
      const arithmetic = gemmArithmetic(format, options);
      return [gemv(format, arithmetic, GEMM_SCRATCH), gemm(format, arithmetic)];
    }),
    ...(['F32', 'F16', 'BF16'] as const).map(gemmFloat),
  ];
}

export class Projections {
  /** Reused for all weights: garbage of this size is collected late. */
  private loadBuffer = new Uint8Array();

  constructor(
    private readonly memories: Memories,
    private readonly pool: Pool,
    private readonly headDim: number,
    private readonly arithmetic: ArithmeticOptions,
    /** Max chunks per projection. */
    private readonly chunks: number,
  ) {}

  /** The size of a matrix, or of its first rows: of whole tiles. */
  matrixBytes = (type: WeightType, rows: number, cols: number): number =>
    packedBytes(type, rows, cols, this.arithmetic.wide);

  async loadWeights(
    type: WeightType,
    rows: number,
    cols: number,
    fill: (into: Uint8Array, start: number) => Promise<void>,
  ): Promise<WasmWeights> {
    const multiple = isQuantized(type) ? 32 : 4;
    if (cols % multiple !== 0)
      throw new ShapeError(
        option =>
          `The wasm device needs ${type} rows of a multiple of ${multiple} values, not ${cols}. Use ${option('device', 'js')}.`,
      );
    const { address, memory } = await this.memories.allocateWeights(this.matrixBytes(type, rows, cols));
    const rowBytes = weightBytes(type, cols);
    const fourHeads = 4 * this.headDim;
    const pieceRows = Math.max(1, Math.floor(MAX_LOAD_BYTES / (rowBytes * fourHeads))) * fourHeads;
    const size = Math.min(rows, pieceRows) * rowBytes;
    const buffer = this.loadBuffer.length < size ? new Uint8Array(size) : this.loadBuffer;
    this.loadBuffer = new Uint8Array();
    for (let row = 0; row < rows; row += pieceRows) {
      const piece = buffer.subarray(0, Math.min(pieceRows, rows - row) * rowBytes);
      await fill(piece, row * rowBytes);
      const offset = this.matrixBytes(type, row, cols);
      const end = this.matrixBytes(type, row + piece.length / rowBytes, cols);
      const out = this.memories.bytesAt(address + offset, end - offset, memory);
      if (isQuantized(type)) packWeights(type, piece, cols, out, this.arithmetic.wide);
      else out.set(piece);
    }
    this.loadBuffer = buffer;
    return { type, rows, cols, address, memory, ...this.kernelsFor(type, memory) };
  }

  private kernelsFor(type: WeightType, memory: number): Pick<WasmWeights, 'input' | 'gemv' | 'gemm'> {
    const kernelOf = (name: string) => gemmSignature(this.memories.kernelName(name, memory));
    if (!isQuantized(type)) return { input: 'f32', gemv: kernelOf(`gemm${type}`), gemm: kernelOf(`gemm${type}`) };
    const format = packedFormats[type];
    const [gemv, gemm] = (['gemv', 'gemm'] as const).map(kernel => kernelOf(gemmKernelName(format, kernel)));
    return { input: gemmArithmetic(format, this.arithmetic).activations, gemv, gemm };
  }

  embed(table: Weights, ids: ArrayLike<number>, out: Tensor, scale: number): void {
    const { type, rows, cols } = table;
    const { memory } = table as WasmWeights;
    const packed = this.memories.bytesAt(addressOf(table), this.matrixBytes(type, rows, cols), memory);
    for (let r = 0; r < ids.length; r++) {
      const row = this.memories.floatsAt(addressOf(out) + 4 * r * cols, cols);
      unpackRow(type, packed, ids[r], cols, row, this.arithmetic.wide);
      if (scale !== 1) for (let i = 0; i < cols; i++) row[i] *= scale;
    }
  }

  project(x: Tensor, rows: number, projections: readonly Projection[]): void {
    const kernel = rows === 1 ? 'gemv' : 'gemm';
    const inputs = { f32: { address: addressOf(x), bytes: 4 * rows * x.cols } } as Record<WasmWeights['input'], Input>;
    const tasks = projections.map(({ weights, out, bias, accumulate }) => {
      const { input } = weights as WasmWeights;
      inputs[input] ??= this.quantizeInput(input as ActivationType, x, rows);
      return this.projectionTask(kernel, rows, inputs[input], weights as WasmWeights, out, bias, accumulate ?? false);
    });
    this.pool.runAll(tasks.map(({ task }) => task));
    for (const { copyOutput } of tasks) copyOutput();
  }

  private quantizeInput(type: ActivationType, x: Tensor, rows: number): Input {
    const bytes = activationBytes(type, rows, x.cols);
    const address = this.memories.scratch(type, bytes);
    const args = { x: addressOf(x), out: address, rows, cols: x.cols };
    this.pool.runSmall(rows * x.cols, [this.quantizeTask(type, args)]);
    return { address, bytes };
  }

  quantizeTask(type: ActivationType, args: { x: number; out: number; rows: number; cols: number }): Task {
    const kernel = quantizeSignature(type, args.rows === 1 ? 'gemv' : 'gemm');
    return task(kernel, Math.min(args.rows, this.chunks), args);
  }

  /** The addresses are in the memory of the weights. */
  matmulTask(
    kernel: 'gemv' | 'gemm',
    rows: number,
    weights: WasmWeights,
    addresses: { x: number; out: number; bias: number; accumulate: 0 | 1 },
  ): Task {
    return task(weights[kernel], Math.min(this.chunks, Math.ceil(weights.rows / MIN_CHUNK_ROWS)), {
      ...addresses,
      w: weights.address,
      rows,
      outputs: weights.rows,
      cols: weights.cols,
      // One per kernel: kernels of one job run at the same time.
      scratch: this.memories.scratch(weights[kernel].name, this.pool.threads * GEMM_SCRATCH, weights.memory),
    });
  }

  /** Runs in the memory of the weights. If that is not the main one, input and output are copied. */
  private projectionTask(
    kernel: 'gemv' | 'gemm',
    rows: number,
    input: Input,
    weights: WasmWeights,
    out: Tensor,
    bias: Tensor | undefined,
    accumulate: boolean,
  ): { task: Task; copyOutput(): void } {
    const { memory = 0 } = weights;
    const outBytes = 4 * rows * weights.rows;
    const copyIn = (name: string, from: number, bytes: number) => {
      if (memory === 0) return from;
      // One buffer per projection: several of them run at the same time.
      const to = this.memories.scratch(`${name} ${addressOf(out)}`, bytes, memory);
      this.memories.bytesAt(to, bytes, memory).set(this.memories.bytesAt(from, bytes));
      return to;
    };
    const to = copyIn('output', addressOf(out), outBytes);
    return {
      task: this.matmulTask(kernel, rows, weights, {
        x: copyIn('input', input.address, input.bytes),
        out: to,
        bias: bias ? copyIn('bias', addressOf(bias), 4 * weights.rows) : 0,
        accumulate: accumulate ? 1 : 0,
      }),
      copyOutput: () => {
        if (memory !== 0)
          this.memories.bytesAt(addressOf(out), outBytes).set(this.memories.bytesAt(to, outBytes, memory));
      },
    };
  }
}
