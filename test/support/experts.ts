/** A mixture of experts on a device, operation by operation, on random data. */
import { createRandom, normals } from '../../src/codec/parts/random.ts';
import type { Device, RoutingRule, Tensor } from '../../src/kernel/device.ts';
import type { WeightType } from '../../src/kernel/weights/types.ts';
import { randomWeights } from './quantize.ts';
import { seeded } from './random.ts';

export interface ExpertShape {
  type: WeightType;
  count: number;
  used: number;
  width: number;
  inner: number;
  rule?: Partial<RoutingRule>;
  /** Of the experts' scores. */
  selectionBias?: boolean;
  bias?: boolean;
}

/** Returns a function of the rows to run: `[first, end)` of a fixed batch. The result has one row of outputs per row. */
export async function loadExperts(device: Device, shape: ExpertShape) {
  const { type, count, used, width, inner, bias = false } = shape;
  const rule: RoutingRule = { scores: 'softmax', normalized: true, scale: 1, ...shape.rule };
  const matrix = (rows: number, cols: number, seed: number) => {
    const bytes = randomWeights(type, rows * cols, 1 / Math.sqrt(cols), seeded(seed));
    return device.loadWeights(type, rows, cols, async (into, start) =>
      into.set(bytes.subarray(start, start + into.length)),
    );
  };
  const vector = (length: number, seed: number) => {
    const tensor = device.createTensor(1, length);
    device.writeRows(tensor, 0, normals(createRandom(seed), length));
    return tensor;
  };
  const [gate, down] = [await matrix(count * inner, width, 1), await matrix(count * width, inner, 2)];
  const biases = bias ? { gate: vector(count * inner, 3), down: vector(count * width, 4) } : undefined;
  const selectionBias = shape.selectionBias ? vector(count, 7) : undefined;
  const all = normals(createRandom(5), 64 * width);
  const router = normals(createRandom(6), 64 * count);

  return async (first: number, end: number): Promise<Float32Array[]> => {
    const rows = end - first;
    // More rows than are used, as in the scratch of a model.
    const tensor = (cols: number, data: Float32Array = new Float32Array(), perRow = 1) => {
      const made = device.createTensor((rows + 3) * perRow, cols);
      device.writeRows(made, 0, data);
      return made;
    };
    const x = tensor(width, all.subarray(first * width, end * width));
    const logits = tensor(count, router.subarray(first * count, end * count));
    const routing = { experts: tensor(used), weights: tensor(used) };
    const [inside, outputs] = [tensor(inner, undefined, used), tensor(width, undefined, used)];
    device.route(logits, rows, routing, rule, selectionBias);
    device.projectExperts(x, rows, routing, [{ weights: gate, out: inside, bias: biases?.gate }]);
    device.projectExperts(inside, rows, routing, [{ weights: down, out: outputs, bias: biases?.down }]);
    device.addExperts(outputs, rows, routing, x);
    const read = (from: Tensor) => Promise.all(Array.from({ length: rows }, (_, r) => device.readRows(from, r)));
    const [experts, weights, sums] = [await read(routing.experts), await read(routing.weights), await read(x)];
    return sums.map((sum, r) => Float32Array.of(...experts[r], ...weights[r], ...sum));
  };
}
