/** Matrices: how weights come into memory, and products with them. */
import { ShapeError } from '../../errors.ts';
import type { Projection, Tensor, Weights } from '../device.ts';
import { isInteger } from '../weights/split.ts';
import { type WeightType, weightBytes } from '../weights/types.ts';
import { at, type Banks, type Placed } from './banks.ts';
import { activationBytes, quantize, quantizeName, type Width } from './kernels/activations.ts';
import { arithmeticOf, floatMatmul, matmul, matmulName } from './kernels/matmul.ts';
import { MATMUL_SCRATCH, matmulMany } from './kernels/matmul-many.ts';
import type { Kernel } from './module.ts';
import { packedBytes, packedFormats, packMatrix, unpackRow } from './pack-weights.ts';
import type { Pool, Task } from './pool.ts';

type WasmWeights = Weights &
  Placed & {
    /** How activations must come, and the kernels that multiply them. */
    input: Width | 'floats';
    one: string;
    many: string;
  };

/** Activations of a product. */
interface Input {
  address: number;
  bytes: number;
}

/** Names of kernels. */
const QUANTIZE = {
  bytes: { one: quantizeName('bytes', 'one'), many: quantizeName('bytes', 'many') },
  words: { one: quantizeName('words', 'one'), many: quantizeName('words', 'many') },
};

/** Most bytes of a matrix that are held twice while it is loaded, but for at least four heads of rows. */
const LOAD_BYTES = 2 * 2 ** 20;

export interface Arithmetic {
  relaxed: boolean;
  precise: boolean;
}

/** Kernels of all types of weights. */
export function productKernels({ relaxed, precise }: Arithmetic): Kernel[] {
  const integer = new Map(
    Object.values(packedFormats)
      .filter(({ bits }) => bits < 16)
      .map(format => [matmulName(format, 'one'), format]),
  );
  return [
    ...(['bytes', 'words'] as const).flatMap(width =>
      (['one', 'many'] as const).map(rows => quantize(width, rows, precise)),
    ),
    ...[...integer.values()].flatMap(format => {
      const arithmetic = arithmeticOf(format, relaxed, precise);
      return [matmul(format, arithmetic), matmulMany(format, arithmetic)];
    }),
    ...(['F32', 'F16', 'BF16'] as const).map(floatMatmul),
  ];
}

export class Products {
  /** Room for weights on their way, one for all: garbage of this size is collected late. */
  private loading = new Uint8Array();

  constructor(
    private readonly banks: Banks,
    private readonly pool: Pool,
    private readonly headDim: number,
    private readonly arithmetic: Arithmetic,
    /** Pieces of a product. */
    private readonly chunks: number,
    /** Runs a small operation on so many rows. */
    private readonly run: (rows: number, kernel: string, ...args: number[]) => void,
  ) {}

  async loadWeights(
    type: WeightType,
    rows: number,
    cols: number,
    fill: (into: Uint8Array, start: number) => Promise<void>,
  ): Promise<WasmWeights> {
    if (cols % (isInteger(type) ? 32 : 4) !== 0)
      throw new ShapeError(`The wasm device cannot take ${type} rows of ${cols} values. Use device: 'js'.`);
    const { address, bank } = this.banks.placeWeights(packedBytes(type, rows, cols));
    const rowBytes = weightBytes(type, cols);
    const heads = 4 * this.headDim;
    const piece = Math.max(1, Math.floor(LOAD_BYTES / (rowBytes * heads))) * heads;
    const size = Math.min(rows, piece) * rowBytes;
    const source = this.loading.length < size ? new Uint8Array(size) : this.loading;
    this.loading = new Uint8Array();
    for (let row = 0; row < rows; row += piece) {
      const bytes = source.subarray(0, Math.min(piece, rows - row) * rowBytes);
      await fill(bytes, row * rowBytes);
      const taken = packedBytes(type, row, cols);
      const out = this.banks.raw(address + taken, packedBytes(type, row + bytes.length / rowBytes, cols) - taken, bank);
      if (isInteger(type)) packMatrix(type, bytes, cols, out);
      else out.set(bytes);
    }
    this.loading = source;
    return { type, rows, cols, address, bank, ...this.productOf(type, bank) };
  }

  private productOf(type: WeightType, bank: number): Pick<WasmWeights, 'input' | 'one' | 'many'> {
    const named = (kernel: string) => this.banks.kernel(kernel, bank);
    if (!isInteger(type)) return { input: 'floats', one: named(`matmul${type}`), many: named(`matmul${type}`) };
    const format = packedFormats[type];
    const { relaxed, precise } = this.arithmetic;
    const [one, many] = (['one', 'many'] as const).map(rows => named(matmulName(format, rows)));
    return { input: arithmeticOf(format, relaxed, precise).width, one, many };
  }

  embed(table: Weights, ids: ArrayLike<number>, out: Tensor): void {
    const { type, rows, cols } = table;
    const packed = this.banks.raw(at(table), packedBytes(type, rows, cols), (table as WasmWeights).bank);
    for (let r = 0; r < ids.length; r++)
      unpackRow(type, packed, ids[r], cols, this.banks.floats(at(out) + 4 * r * cols, cols));
  }

  project(x: Tensor, rows: number, projections: readonly Projection[]): void {
    const count = rows === 1 ? 'one' : 'many';
    const inputs = { floats: { address: at(x), bytes: 4 * rows * x.cols } } as Record<WasmWeights['input'], Input>;
    const products = projections.map(({ weights, out, bias, add }) => {
      const { input } = weights as WasmWeights;
      inputs[input] ??= this.quantized(input as Width, x, rows);
      return this.product(count, rows, inputs[input], weights as WasmWeights, out, bias, add ?? false);
    });
    this.pool.runAll(products.map(({ task }) => task));
    for (const { fetch } of products) fetch();
  }

  private quantized(width: Width, x: Tensor, rows: number): Input {
    const bytes = activationBytes(width, rows, x.cols);
    const address = this.banks.room(width, bytes);
    this.run(rows, QUANTIZE[width][rows === 1 ? 'one' : 'many'], at(x), address, rows, x.cols);
    return { address, bytes };
  }

  /** A product where the weights lie: in another memory it is given a copy of its input, and its output is fetched. */
  private product(
    count: 'one' | 'many',
    rows: number,
    input: Input,
    weights: WasmWeights,
    out: Tensor,
    bias: Tensor | undefined,
    add: boolean,
  ): { task: Task; fetch(): void } {
    const { bank = 0 } = weights;
    const outBytes = 4 * rows * weights.rows;
    const there = (name: string, from: number, bytes: number) => {
      if (bank === 0) return from;
      // One of a kind for each product of a step: several may be under way.
      const to = this.banks.room(`${name} ${at(out)}`, bytes, bank);
      this.banks.raw(to, bytes, bank).set(this.banks.raw(from, bytes));
      return to;
    };
    const x = there('input', input.address, input.bytes);
    const to = there('output', at(out), outBytes);
    const scratch = this.banks.room('matmul', this.pool.threads * MATMUL_SCRATCH, bank);
    const biasAt = bias ? there('bias', at(bias), 4 * weights.rows) : 0;
    return {
      task: {
        kernel: weights[count],
        chunks: Math.min(this.chunks, Math.ceil(weights.rows / 64)),
        args: [x, weights.address, to, biasAt, add ? 1 : 0, rows, weights.rows, weights.cols, scratch],
      },
      fetch: () => {
        if (bank !== 0) this.banks.raw(at(out), outBytes).set(this.banks.raw(to, outBytes, bank));
      },
    };
  }
}
