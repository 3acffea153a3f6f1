/** Does it fit? Counted before a byte of the weights is read, so that the answer is advice and not a crash. */
import { CapacityError } from '../errors.ts';
import type { Device } from '../kernel/device.ts';
import type { ModelConfig } from '../model/config.ts';
import { createScratch } from '../model/forward.ts';
import type { TensorInfo } from '../model/gguf.ts';
import { type Plan, planBytes, planOf } from '../plan/plan.ts';
import { formatBytes, formatCount } from '../units.ts';

export interface BudgetRequest {
  config: ModelConfig;
  tensors: ReadonlyMap<string, TensorInfo>;
  device: Pick<Device, 'name' | 'reserve'>;
  plan: Plan;
  context: number;
  /** Of the scratch. */
  rows: number;
  /** Bytes in main memory beside these, such as held logits. */
  extra?: number;
}

export interface Budget {
  weights: number;
  /** One sequence of the whole context. */
  cache: number;
  scratch: number;
  total: number;
}

function budgetOf(request: BudgetRequest): Budget {
  const { config, rows, extra = 0 } = request;
  const weights = weightBytes(request);
  const cache = planBytes(request.plan, request.context);
  const scratch = scratchBytes(config, rows) + extra;
  return { weights, cache, scratch, total: weights + cache + scratch };
}

/**
 * Throws where the budget exceeds the limit, or where the device cannot keep enough for cache and scratch, and says what
 * would fit.
 */
export function checkBudget(request: BudgetRequest, limit: number): Budget {
  const { device, context, plan, extra = 0 } = request;
  const budget = budgetOf(request);
  const { weights, cache, scratch, total } = budget;
  const cacheText = `cache ${formatBytes(cache)} for ${formatCount(context)} tokens of ${plan.spec}`;
  if (total > limit)
    throw new CapacityError(
      `This needs ${formatBytes(total)} (weights ${formatBytes(weights)}, ${cacheText}, scratch ` +
        `${formatBytes(scratch)}), and ${formatBytes(limit)} is available. ${advice(request, limit - weights - scratch)}`,
    );
  const needed = cache + scratch - extra;
  const kept = device.reserve?.(needed) ?? needed;
  if (kept < needed)
    throw new CapacityError(
      `The ${device.name} device can hold ${formatBytes(kept)} beside the weights, and this needs ${formatBytes(needed)} ` +
        `(${cacheText}, scratch ${formatBytes(scratch - extra)}). ${advice(request, kept - scratch + extra)}`,
    );
  return budget;
}

/** What one may take of this machine's memory: what is free, and no more than 9/10 of all of it. */
export async function memoryLimit(): Promise<number> {
  const { freemem, totalmem, platform } = await import('node:os');
  const most = 0.9 * Math.min(totalmem(), process.constrainedMemory() || Number.POSITIVE_INFINITY);
  // macOS calls memory free only when nothing ever touched it, so there it says nothing.
  return platform() === 'darwin' ? most : Math.min(most, freemem());
}

function advice(request: BudgetRequest, room: number): string {
  const { plan, context, config } = request;
  const { pageTokens, leaf } = plan;
  if (room < leaf.bytes / pageTokens) return 'Take a smaller model, or one of fewer bits a weight.';
  const most = Math.min(room, planBytes(plan, context) - 1);
  const fits = ['tq4', 'tq3', 'tq2'].find(
    spec => spec !== plan.spec && planBytes(planOf(spec, { ...config, pageTokens }), context) <= most,
  );
  // The largest context, in whole pages, that the room holds.
  const pages = Math.floor((room - planBytes(plan, 1)) / leaf.bytes);
  const tokens = Math.max(0, pages) * pageTokens;
  const ways = [
    tokens > 0 && tokens < context && `a context of ${formatCount(tokens)} fits`,
    fits && `kv: '${fits}' fits at this context`,
  ].filter(way => way !== false && way !== undefined);
  return ways.length > 0 ? `Of this model, ${ways.join('; ')}.` : 'Take a smaller model, or close other programs.';
}

/** The js device holds its matrices as floats; the others hold them as they are in the file. */
function weightBytes({ tensors, device }: BudgetRequest): number {
  let bytes = 0;
  for (const tensor of tensors.values())
    bytes += device.name === 'js' ? 4 * tensor.shape.reduce((a, b) => a * b, 1) : tensor.bytes;
  return bytes;
}

/** Makes the scratch on a device that only counts. */
function scratchBytes(config: ModelConfig, rows: number): number {
  let bytes = 0;
  const counter = {
    tensor(rows: number, cols: number) {
      bytes += 4 * rows * cols;
      return { rows, cols };
    },
  };
  createScratch(counter as unknown as Device, config, rows);
  return bytes;
}
