/** Mixtures of experts. Routing stays on the GPU: the rows of a batch are grouped by expert there. */
import { UnsupportedError } from '../../util/errors.ts';
import type { ExpertProjection, Routing, RoutingRule, Tensor } from '../device.ts';
import type { Gpu } from './gpu.ts';
import { addExperts, expertGemv, groupByExpert, MAX_EXPERTS, route, routeName } from './kernels/experts.ts';
import { type MatmulVariant, usesInt8, variantName } from './kernels/gemv.ts';
import type { Projections } from './projections.ts';
import { bufferForWriting, bufferOf, type GpuTensor } from './tensor.ts';
import { BLOCK, type GpuWeights, ROW_TILE } from './weights.ts';

/** Choices with the same expert that share the weights which a workgroup loads; one: choices are not grouped. */
interface WorkItems {
  rowsPerItem: number;
  count: number;
  buffer: GPUBuffer;
}

export class Experts {
  /** By the tensor of chosen experts. */
  private readonly workItems = new WeakMap<Tensor, WorkItems>();

  constructor(
    private readonly gpu: Gpu,
    private readonly projections: Projections,
    private readonly precise: boolean,
  ) {}

  route(logits: Tensor, rows: number, routing: Routing, rule: RoutingRule, bias?: Tensor): void {
    const { cols: count } = logits;
    const { cols: used } = routing.experts;
    if (count > MAX_EXPERTS)
      throw new UnsupportedError(
        option => `The webgpu device runs up to ${MAX_EXPERTS} experts, not ${count}. Use ${option('device', 'wasm')}.`,
      );
    const [experts, weights] = [routing.experts, routing.weights].map(bufferForWriting);
    const variant = { ...rule, biased: bias !== undefined };
    const kernel = this.gpu.kernel(routeName(variant), () => route(variant));
    const params = [rows, count, used, rule.groups?.count ?? 0, rule.groups?.used ?? 0, rule.scale];
    const buffers = [bufferOf(logits), ...(bias ? [bufferOf(bias)] : []), experts, weights];
    this.gpu.run(kernel, params, buffers, spread(rows));
    this.workItems.set(routing.experts, this.group(experts, count, rows * used));
  }

  /** Grouping is worthwhile if the average expert has several rows. */
  private group(experts: GPUBuffer, count: number, choices: number): WorkItems {
    const { rows: rowsPerItem } = this.projections.gemvOptions(Math.max(1, Math.floor(choices / count)));
    if (rowsPerItem === 1) return { rowsPerItem, count: choices, buffer: experts };
    // Each expert may have one incomplete item.
    const items = Math.floor(choices / rowsPerItem) + Math.min(count, choices);
    const buffer = this.gpu.scratch('rows by expert', 4 * items * (rowsPerItem + 1));
    const kernel = this.gpu.kernel(`group by expert ${rowsPerItem}`, () => groupByExpert(rowsPerItem));
    this.gpu.run(kernel, [count, choices, items], [experts, buffer], [1]);
    return { rowsPerItem, count: items, buffer };
  }

  project(x: Tensor, rows: number, routing: Routing, projections: readonly ExpertProjection[]): void {
    const { rowsPerItem, count, buffer } = this.workItems.get(routing.experts)!;
    const used = routing.experts.cols;
    this.gpu.submitIfWorthwhile();
    for (const { weights, out, bias } of projections) {
      const { format, pieces } = weights as GpuWeights;
      const m: MatmulVariant = { format, precise: this.precise, bias: bias !== undefined };
      const choicesPerInput = x.rows === out.rows ? 1 : used;
      const inputRows = (rows * used) / choicesPerInput;
      const input = usesInt8(m) ? this.projections.int8Input(x as GpuTensor, inputRows) : [bufferOf(x)];
      const options = this.projections.gemvOptions(rowsPerItem);
      const kernel = this.gpu.kernel(`expert gemv ${rowsPerItem} ${variantName(m)}`, () => expertGemv(m, options));
      for (const { codes, scales, firstRow, rows: pieceRows } of pieces) {
        const buffers = [buffer, ...input, codes];
        if (format.integer) buffers.push(scales);
        if (bias) buffers.push(bufferOf(bias));
        buffers.push(bufferForWriting(out));
        const tiles = [firstRow / ROW_TILE, Math.ceil(pieceRows / ROW_TILE)];
        const params = [x.cols / BLOCK, out.cols, ...tiles, count, choicesPerInput];
        this.gpu.run(kernel, params, buffers, [out.cols / ROW_TILE, ...spread(count)]);
      }
    }
  }

  add(outputs: Tensor, rows: number, { weights }: Routing, out: Tensor): void {
    const buffers = [bufferOf(outputs), bufferOf(weights), bufferForWriting(out)];
    this.gpu.run(addExperts, [rows, out.cols, weights.cols], buffers, [Math.ceil(out.cols / 256), ...spread(rows)]);
  }
}

/** Workgroups for this many rows, in two dimensions. */
const spread = (rows: number): [number, number] => [Math.min(rows, 65535), Math.ceil(rows / 65535)];
