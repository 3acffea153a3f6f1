/** The feed-forward network of a layer: dense, or a mixture of experts of which each row uses a few. */
import type { Device, ExpertWeighting, Projection, Routing, Tensor, Weights } from '../kernel/device.ts';
import type { Yielder } from '../platform/event-loop.ts';
import type { ExpertsConfig, ModelConfig } from './model-config.ts';

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
  /** The expert that all rows use; its router has one row. */
  shared?: FeedForwardWeights;
}

export interface FeedForwardTensors {
  /** With experts: one row per row and expert. */
  gate: Tensor;
  up: Tensor;
  routerLogits?: Tensor;
  experts?: Tensor;
  expertWeights?: Tensor;
  expertOutputs?: Tensor;
}

export interface FeedForwardScratch extends FeedForwardTensors {
  shared?: FeedForwardTensors;
}

/** The arrays are created once, so that a device can cache state per array. */
export interface FeedForwardProjections {
  router?: readonly Projection[];
  gateUp: readonly Projection[];
  down: readonly Projection[];
  shared?: FeedForwardProjections;
}

export function createFeedForwardScratch(
  device: Device,
  { width, ffn, experts }: { width: number; ffn: number; experts?: Pick<ExpertsConfig, 'count' | 'used' | 'shared'> },
  rows: number,
): FeedForwardScratch {
  const sharedShape = experts?.shared && { width, ffn: experts.shared, experts: { count: 1, used: 1 } };
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
    ...(sharedShape && { shared: createFeedForwardScratch(device, sharedShape, rows) }),
  };
}

/** `output`: where the down projection of a dense network goes. */
export function feedForwardProjections(
  { gate, up, routerLogits, expertOutputs, shared }: FeedForwardScratch,
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
    shared: w.shared && shared && feedForwardProjections(shared, w.shared, output),
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

/** Gate and up projections, their gated product, and the down projection; of the chosen and the shared experts, if there are any. */
export async function feedForward(
  { device, config, scratch, rows, prefillRows, yielder }: Pass,
  input: Tensor,
  projections: FeedForwardProjections,
): Promise<void> {
  const { experts, activation } = config;
  const dense = async ({ gate, up }: FeedForwardTensors, { gateUp, down }: FeedForwardProjections) => {
    device.project(input, rows, gateUp, prefillRows);
    device.gate(gate, up, rows, activation);
    if (yielder.isDue()) await yielder.yieldNow();
    device.project(gate, rows, down, prefillRows);
  };
  const { router, gateUp, down, shared } = projections;
  if (!experts || !router) return dense(scratch, projections);
  const route = (own: FeedForwardTensors, router: readonly Projection[], weighting: ExpertWeighting): Routing => {
    const routing = { experts: own.experts!, weights: own.expertWeights! };
    // Never as prefill rows: a rounded logit could choose another expert.
    device.project(input, rows, router);
    device.route(own.routerLogits!, rows, routing, weighting);
    return routing;
  };
  const routing = route(scratch, router, `softmax of ${experts.softmaxOver}`);
  device.projectExperts(input, rows, routing, gateUp);
  device.gate(scratch.gate, scratch.up, rows * experts.used, activation);
  if (yielder.isDue()) await yielder.yieldNow();
  device.projectExperts(scratch.gate, rows, routing, down);
  device.addExperts(scratch.expertOutputs!, rows, routing, scratch.x);
  if (!shared?.router || !scratch.shared) return;
  const sharedRouting = route(scratch.shared, shared.router, 'sigmoid');
  await dense(scratch.shared, shared);
  device.addExperts(scratch.shared.expertOutputs!, rows, sharedRouting, scratch.x);
}
