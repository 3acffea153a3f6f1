/** The feed-forward network of a layer: dense, or a mixture of experts of which each row uses a few. */
import type { Device, Projection, Tensor, Weights } from '../kernel/device.ts';
import type { Yielder } from '../platform/event-loop.ts';
import type { ModelConfig } from './model-config.ts';

export interface FeedForwardWeights {
  /** One row per expert; only in mixtures of experts, whose other matrices hold those of all experts. */
  router?: Weights;
  gate: Weights;
  up: Weights;
  down: Weights;
  routerBias?: Tensor;
  gateBias?: Tensor;
  upBias?: Tensor;
  downBias?: Tensor;
}

export interface FeedForwardScratch {
  /** With experts: one row per row and expert. */
  gate: Tensor;
  up: Tensor;
  routerLogits?: Tensor;
  experts?: Tensor;
  expertWeights?: Tensor;
  expertOutputs?: Tensor;
}

/** The arrays are created once, so that a device can cache state per array. */
export interface FeedForwardProjections {
  router?: readonly Projection[];
  gateUp: readonly Projection[];
  down: readonly Projection[];
}

export function createFeedForwardScratch(
  device: Device,
  { width, ffn, experts }: ModelConfig,
  rows: number,
): FeedForwardScratch {
  const innerRows = rows * (experts?.used ?? 1);
  return {
    gate: device.createTensor(innerRows, ffn),
    up: device.createTensor(innerRows, ffn),
    ...(experts && {
      routerLogits: device.createTensor(rows, experts.count),
      experts: device.createTensor(rows, experts.used),
      expertWeights: device.createTensor(rows, experts.used),
      expertOutputs: device.createTensor(innerRows, width),
    }),
  };
}

/** `output`: where the down projection of a dense network goes. */
export function feedForwardProjections(
  { gate, up, routerLogits, expertOutputs }: FeedForwardScratch,
  w: FeedForwardWeights,
  output: Omit<Projection, 'weights'>,
): FeedForwardProjections {
  return {
    router: w.router && [{ weights: w.router, bias: w.routerBias, out: routerLogits! }],
    gateUp: [
      { weights: w.gate, bias: w.gateBias, out: gate },
      { weights: w.up, bias: w.upBias, out: up },
    ],
    down: [{ weights: w.down, bias: w.downBias, ...(w.router ? { out: expertOutputs! } : output) }],
  };
}

interface Pass {
  device: Device;
  config: ModelConfig;
  scratch: FeedForwardScratch & { x: Tensor };
  rows: number;
  prefillRows: number;
  yielder: Yielder;
}

/** Gate and up projections, their gated product, and the down projection; of the chosen experts, if there are any. */
export async function feedForward(
  { device, config, scratch, rows, prefillRows, yielder }: Pass,
  input: Tensor,
  { router, gateUp, down }: FeedForwardProjections,
): Promise<void> {
  const { experts, activation } = config;
  const { gate, up } = scratch;
  if (!experts || !router) {
    device.project(input, rows, gateUp, prefillRows);
    device.gate(gate, up, rows, activation);
    if (yielder.isDue()) await yielder.yieldNow();
    device.project(gate, rows, down, prefillRows);
    return;
  }
  const routing = { experts: scratch.experts!, weights: scratch.expertWeights! };
  // Never as prefill rows: a rounded logit could choose another expert.
  device.project(input, rows, router);
  device.route(scratch.routerLogits!, rows, routing, experts.normalize);
  device.projectExperts(input, rows, routing, gateUp);
  device.gate(gate, up, rows * experts.used, activation);
  if (yielder.isDue()) await yielder.yieldNow();
  device.projectExperts(gate, rows, routing, down);
  device.addExperts(scratch.expertOutputs!, rows, routing, scratch.x);
}
