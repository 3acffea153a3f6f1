/** Mixtures of experts on the js device: choosing experts, multiplying by their weights, and adding their outputs. */
import type { ExpertProjection, Routing, RoutingRule, Tensor } from '../device.ts';
import { chooseExperts } from '../experts.ts';
import { floats, matrix } from './handles.ts';

export function route(
  logits: Tensor,
  rows: number,
  { experts, weights }: Routing,
  rule: RoutingRule,
  bias?: Tensor,
): void {
  const used = experts.cols;
  const biases = bias && floats(bias);
  for (let r = 0; r < rows; r++) {
    const row = floats(logits).subarray(r * logits.cols, (r + 1) * logits.cols);
    const at = r * used;
    chooseExperts(row, floats(experts).subarray(at, at + used), floats(weights).subarray(at, at + used), rule, biases);
  }
}

export function projectExperts(
  x: Tensor,
  rows: number,
  { experts }: Routing,
  projections: readonly ExpertProjection[],
): void {
  const used = experts.cols;
  for (const { weights, out, bias } of projections) {
    const { cols } = weights;
    const [from, w, to] = [floats(x), matrix(weights), floats(out)];
    for (let choice = 0; choice < rows * used; choice++) {
      const row = x.rows === out.rows ? choice : Math.floor(choice / used);
      const expert = floats(experts)[choice];
      for (let o = 0; o < out.cols; o++) {
        const weightRow = expert * out.cols + o;
        let sum = 0;
        for (let i = 0, at = row * cols, wAt = weightRow * cols; i < cols; i++) sum += from[at + i] * w[wAt + i];
        to[choice * out.cols + o] = bias ? sum + floats(bias)[weightRow] : sum;
      }
    }
  }
}

export function addExperts(outputs: Tensor, rows: number, { experts, weights }: Routing, out: Tensor): void {
  const { cols } = out;
  for (let choice = 0; choice < rows * experts.cols; choice++) {
    const to = Math.floor(choice / experts.cols) * cols;
    for (let i = 0; i < cols; i++) floats(out)[to + i] += floats(weights)[choice] * floats(outputs)[choice * cols + i];
  }
}
