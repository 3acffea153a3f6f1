/** The feed-forward network of a layer: dense, or a mixture of experts of which each row uses a few. */
import type { Device, Projection, Routing, RoutingRule, Tensor, Weights } from '../kernel/device.ts';
import type { Yielder } from '../platform/event-loop.ts';
import type { ModelConfig } from './model-config.ts';

export interface FeedForwardWeights {
  /** One row per expert; only in mixtures of experts, whose other matrices hold those of all experts. */
  router?: Weights;
  /** For the choice of experts, one per expert. */
  selectionBias?: Tensor;
  gate: Weights;
  up: Weights;
  down: Weights;
  routerBias?: Tensor;
  gateBias?: Tensor;
  upBias?: Tensor;
  downBias?: Tensor;
  /** The expert that all rows use; its router, if it has one, has one row. */
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
  /** Of layers with a dense network, if others have experts. */
  dense?: FeedForwardTensors;
}

/** The arrays are created once, so that a device can cache state per array. */
export interface FeedForwardProjections {
  /** Where the results are. */
  tensors: FeedForwardTensors;
  router?: readonly Projection[];
  selectionBias?: Tensor;
  gateUp: readonly Projection[];
  down: readonly Projection[];
  shared?: FeedForwardProjections;
}

export function createFeedForwardScratch(
  device: Device,
  { width, ffn, experts }: Pick<ModelConfig, 'width' | 'ffn' | 'experts'>,
  rows: number,
): FeedForwardScratch {
  const create = (ffn: number, experts?: { count: number; used: number }): FeedForwardTensors => {
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
  };
  if (!experts) return create(ffn);
  const { shared, denseLayers } = experts;
  return {
    ...create(experts.ffn, experts),
    ...(shared && { shared: create(shared.ffn, shared.gated ? { count: 1, used: 1 } : undefined) }),
    ...(denseLayers > 0 && { dense: create(ffn) }),
  };
}

/** `output`: where the down projection of a dense network goes. */
export function feedForwardProjections(
  scratch: FeedForwardScratch,
  w: FeedForwardWeights,
  output: Omit<Projection, 'weights'>,
): FeedForwardProjections {
  const tensors = w.router ? scratch : (scratch.dense ?? scratch);
  const { gate, up, routerLogits, expertOutputs } = tensors;
  return {
    tensors,
    router: w.router && [{ weights: w.router, bias: w.routerBias, out: routerLogits! }],
    selectionBias: w.selectionBias,
    gateUp: [
      { weights: w.gate, bias: w.gateBias, out: gate },
      { weights: w.up, bias: w.upBias, out: up },
    ],
    down: [{ weights: w.down, bias: w.downBias, ...(w.router ? { out: expertOutputs! } : output) }],
    shared: w.shared && scratch.shared && feedForwardProjections(scratch.shared, w.shared, output),
  };
}

interface Pass {
  device: Device;
  config: ModelConfig;
  scratch: { x: Tensor };
  rows: number;
  prefillRows: number;
  yielder: Yielder;
}

const SHARED_ROUTING: RoutingRule = { scores: 'sigmoid', normalized: false, scale: 1 };

/** Gate and up projections, their gated product, and the down projection; of the chosen and the shared experts, if there are any. */
export async function feedForward(
  { device, config, scratch, rows, prefillRows, yielder }: Pass,
  input: Tensor,
  projections: FeedForwardProjections,
): Promise<void> {
  const { experts, activation } = config;
  const dense = async ({ tensors: { gate, up }, gateUp, down }: FeedForwardProjections) => {
    device.project(input, rows, gateUp, prefillRows);
    device.gate(gate, up, rows, activation);
    if (yielder.isDue()) await yielder.yieldNow();
    device.project(gate, rows, down, prefillRows);
  };
  const { tensors, router, gateUp, down, shared } = projections;
  if (!experts || !router) return dense(projections);
  const route = (
    { tensors, selectionBias }: FeedForwardProjections,
    router: readonly Projection[],
    rule: RoutingRule,
  ) => {
    const routing: Routing = { experts: tensors.experts!, weights: tensors.expertWeights! };
    // Never as prefill rows: a rounded logit could choose another expert.
    device.project(input, rows, router);
    device.route(tensors.routerLogits!, rows, routing, rule, selectionBias);
    return routing;
  };
  const routing = route(projections, router, experts.routing);
  device.projectExperts(input, rows, routing, gateUp);
  device.gate(tensors.gate, tensors.up, rows * experts.used, activation);
  if (yielder.isDue()) await yielder.yieldNow();
  device.projectExperts(tensors.gate, rows, routing, down);
  device.addExperts(tensors.expertOutputs!, rows, routing, scratch.x);
  if (!shared) return;
  if (!shared.router) return dense(shared);
  const sharedRouting = route(shared, shared.router, SHARED_ROUTING);
  await dense(shared);
  device.addExperts(shared.tensors.expertOutputs!, rows, sharedRouting, scratch.x);
}
