/**
 * Mixtures of experts. The rows of a batch are grouped by expert, so that each expert's weights are read once, by the same
 * kernels as other weights: a row gets the same bits alone and in any batch.
 */
import type { ExpertProjection, Routing, RoutingRule, Tensor } from '../device.ts';
import { chooseExperts } from '../experts.ts';
import { type ActivationType, activationBytes, TILE_ROWS } from './kernels/quantize-activations.ts';
import { addressOf, type Memories } from './memories.ts';
import type { Pool } from './pool.ts';
import type { Input, Projections, WasmWeights } from './projections.ts';

/** Rows of the input that one expert multiplies. They are gathered, and begin at a whole tile of activations. */
interface Group {
  expert: number;
  /** Row x experts per row + index of the expert. */
  choices: number[];
  /** Of its first row among the gathered rows. */
  row: number;
}

export class Experts {
  constructor(
    private readonly memories: Memories,
    private readonly pool: Pool,
    private readonly projections: Projections,
  ) {}

  route(logits: Tensor, rows: number, { experts, weights }: Routing, rule: RoutingRule, bias?: Tensor): void {
    const biases = bias && this.row(bias, 0);
    for (let r = 0; r < rows; r++) {
      const [row, ids, shares] = [logits, experts, weights].map(x => this.row(x, r));
      chooseExperts(row, ids, shares, rule, biases);
    }
  }

  project(x: Tensor, rows: number, { experts }: Routing, projections: readonly ExpertProjection[]): void {
    const used = experts.cols;
    const chosen = this.memories.floatsAt(addressOf(experts), rows * used);
    const { groups, gatheredRows } = groupByExpert(chosen);
    const perChoice = x.rows === projections[0].out.rows;
    const gathered = this.memories.scratch('expert rows', 4 * gatheredRows * x.cols);
    for (const { choices, row } of groups)
      choices.forEach((choice, i) => {
        const to = this.memories.floatsAt(gathered + 4 * (row + i) * x.cols, x.cols);
        to.set(this.row(x, perChoice ? choice : Math.floor(choice / used)));
      });
    const inputs = { f32: { address: gathered, bytes: 4 * gatheredRows * x.cols } } as Record<string, Input>;
    const tasks = projections.flatMap((projection, i) => {
      const { input } = projection.weights as WasmWeights;
      inputs[input] ??= this.quantize(input as ActivationType, groups, gathered, gatheredRows, x.cols);
      return this.groupTasks(`expert ${i}`, groups, inputs[input], gatheredRows, projection);
    });
    this.pool.runAll(tasks.map(({ task }) => task));
    for (const { copyOutputs } of tasks) copyOutputs();
  }

  /** One task per group. Inputs, outputs and biases are in the memory of the weights. */
  private groupTasks(
    name: string,
    groups: readonly Group[],
    input: Input,
    gatheredRows: number,
    { weights, out, bias }: ExpertProjection,
  ) {
    const { type, cols, memory, address } = weights as WasmWeights;
    const rowBytes = 4 * out.cols;
    const copyIn = (name: string, from: number, bytes: number) => {
      if (!memory) return from;
      const to = this.memories.scratch(name, bytes, memory);
      this.memories.bytesAt(to, bytes, memory).set(this.memories.bytesAt(from, bytes));
      return to;
    };
    const x = copyIn(`${name} input`, input.address, input.bytes);
    const outputs = this.memories.scratch(`${name} output`, gatheredRows * rowBytes, memory);
    return groups.map(({ expert, choices, row }, g) => {
      const own = { ...(weights as WasmWeights), rows: out.cols };
      own.address = address + this.projections.matrixBytes(type, expert * out.cols, cols);
      const task = this.projections.matmulTask(choices.length === 1 ? 'gemv' : 'gemm', choices.length, own, {
        x: x + (row / gatheredRows) * input.bytes,
        out: outputs + row * rowBytes,
        bias: bias ? copyIn(`${name} bias ${g}`, addressOf(bias) + expert * rowBytes, rowBytes) : 0,
        accumulate: 0,
      });
      const copyOutputs = () =>
        choices.forEach((choice, i) => {
          const from = this.memories.bytesAt(outputs + (row + i) * rowBytes, rowBytes, memory);
          this.memories.bytesAt(addressOf(out) + choice * rowBytes, rowBytes).set(from);
        });
      return { task, copyOutputs };
    });
  }

  private quantize(
    type: ActivationType,
    groups: readonly Group[],
    gathered: number,
    rows: number,
    cols: number,
  ): Input {
    const bytes = activationBytes(type, rows, cols);
    const address = this.memories.scratch(`expert ${type}`, bytes);
    const tasks = groups.map(({ choices, row }) =>
      this.projections.quantizeTask(type, {
        x: gathered + 4 * row * cols,
        out: address + activationBytes(type, row, cols),
        rows: choices.length,
        cols,
      }),
    );
    this.pool.runSmall(rows * cols, tasks);
    return { address, bytes };
  }

  private row(tensor: Tensor, row: number): Float32Array {
    return this.memories.floatsAt(addressOf(tensor) + 4 * row * tensor.cols, tensor.cols);
  }
}

function groupByExpert(chosen: Float32Array): { groups: Group[]; gatheredRows: number } {
  const byExpert = new Map<number, number[]>();
  chosen.forEach((expert, choice) => {
    const choices = byExpert.get(expert);
    if (choices) choices.push(choice);
    else byExpert.set(expert, [choice]);
  });
  let gatheredRows = 0;
  const groups = Array.from(byExpert, ([expert, choices]) => {
    const row = gatheredRows;
    gatheredRows += Math.ceil(choices.length / TILE_ROWS) * TILE_ROWS;
    return { expert, choices, row };
  });
  return { groups, gatheredRows };
}
