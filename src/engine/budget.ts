/** Checks that a model fits in memory before any weights are read, so that the caller gets advice instead of a crash. */

import { pageBytes } from '../cache/leaf.ts';
import { specOf } from '../codec/spec.ts';
import type { Device } from '../kernel/device.ts';
import { createScratch } from '../model/forward.ts';
import type { TensorInfo } from '../model/gguf.ts';
import type { ModelConfig } from '../model/model-config.ts';
import { createPlan, fixedBytes, maxPagesIn, type Plan, planBytes } from '../plan/plan.ts';
import { CapacityError, type OptionNames } from '../util/errors.ts';
import { formatBytes, formatCount } from '../util/units.ts';

export interface BudgetRequest {
  config: ModelConfig;
  tensors: ReadonlyMap<string, TensorInfo>;
  device: Pick<Device, 'name' | 'reserve' | 'matrixBytes'>;
  plan: Plan;
  context: number;
  /** Max bytes of a cache that sequences share; `auto`: chosen here. Default: one sequence of `context` tokens. */
  kvMemory?: number | 'auto';
  /** Rows of the scratch tensors. */
  rows: number;
  /** Further bytes in main memory, such as stored logits. */
  extra?: number;
  /** Bytes of the guard, on the device. Default: none. */
  guard?: number;
}

export interface Budget {
  weights: number;
  /** The cache: one sequence of `context` tokens, or `kvMemory`. */
  cache: number;
  scratch: number;
  total: number;
}

function budgetOf(request: BudgetRequest): Budget {
  const { config, rows, extra = 0, guard = 0, kvMemory, plan, context } = request;
  const weights = weightBytes(request);
  const cache = typeof kvMemory === 'number' ? kvMemory : planBytes(plan, context) + passBytes(plan, rows);
  const scratch = scratchBytes(config, rows) + guard + extra;
  return { weights, cache, scratch, total: weights + cache + scratch };
}

/** An automatic cache holds a few conversations: this many full contexts, or this many bytes if that is more. */
const AUTO_CONTEXTS = 4;
const AUTO_BYTES = 2 ** 30;

/**
 * Throws a CapacityError if the budget exceeds `limit` bytes, or if the device cannot reserve the cache and scratch. The
 * message says what would fit. An automatic cache takes what is left, at least one full context.
 */
export function checkBudget(request: BudgetRequest, limit: number): Budget {
  const { device, context, plan, extra = 0 } = request;
  const budget = budgetOf(request);
  const { weights, cache, scratch, total } = budget;
  checkCacheSize(request, cache);
  const cacheText =
    `cache ${formatBytes(cache)}` +
    (typeof request.kvMemory === 'number' ? '' : ` for ${formatCount(context)} tokens of ${plan.spec}`);
  if (total > limit)
    throw new CapacityError(
      option =>
        `This needs ${formatBytes(total)} (weights ${formatBytes(weights)}, ${cacheText}, scratch ` +
        `${formatBytes(scratch)}), and ${formatBytes(limit)} is available. ` +
        suggestions(request, limit - weights - scratch, option),
    );
  const wanted = request.kvMemory === 'auto' ? Math.max(AUTO_CONTEXTS * cache, AUTO_BYTES) : cache;
  const chosen = Math.max(cache, Math.min(wanted, limit - weights - scratch));
  const reserved = device.reserve?.(chosen + scratch - extra) ?? chosen + scratch - extra;
  const needed = cache + scratch - extra;
  const kept = Math.max(reserved, needed);
  if (reserved < needed)
    throw new CapacityError(
      option =>
        `The ${device.name} device can hold ${formatBytes(reserved)} in addition to the weights; this needs ` +
        `${formatBytes(needed)} (${cacheText}, scratch ${formatBytes(scratch - extra)}). ` +
        suggestions(request, reserved - scratch + extra, option),
    );
  return { ...budget, cache: Math.min(chosen, kept - scratch + extra) };
}

/** A shared cache must hold at least an empty sequence and one page. */
function checkCacheSize({ kvMemory, plan }: BudgetRequest, cache: number): void {
  const least = planBytes(plan, plan.pageTokens + plan.window.recent + 1);
  if (typeof kvMemory === 'number' && cache < least)
    throw new CapacityError(
      option =>
        `A KV cache of ${formatBytes(cache)} is too small: one conversation with a sealed page of ${plan.spec} needs ` +
        `${formatBytes(least)}. Raise ${option('kvMemory')}, or use a codec with fewer bits.`,
      { option: 'kvMemory' },
    );
}

function suggestions(request: BudgetRequest, room: number, option: OptionNames): string {
  const { plan, context, config } = request;
  const { pageTokens, leaf } = plan;
  if (room < pageBytes(leaf) / pageTokens) return 'Use a smaller model, or one with fewer bits per weight.';
  const maxBytes = Math.min(room, planBytes(plan, context) - 1);
  const fits = ['tq4', 'tq3', 'tq2'].find(
    codec =>
      codec !== plan.spec && planBytes(createPlan(specOf(codec), { ...config, pageTokens }), context) <= maxBytes,
  );
  // The largest context, in whole pages, that fits.
  const pages = maxPagesIn(plan, room - fixedBytes(plan));
  const tokens = Math.max(0, pages) * pageTokens;
  const options = [
    tokens > 0 && tokens < context && `a context of ${formatCount(tokens)} fits`,
    fits && `${option('kv', fits)} fits at this context`,
  ].filter(text => text !== false && text !== undefined);
  return options.length > 0
    ? `With this model, ${options.join('; ')}.`
    : 'Use a smaller model, or close other programs.';
}

/** Norms and biases are float32; matrices take what the device makes of them. */
function weightBytes({ tensors, device }: BudgetRequest): number {
  let bytes = 0;
  for (const { type, shape } of tensors.values()) {
    const [cols, ...extents] = shape;
    const rows = extents.reduce((a, b) => a * b, 1);
    bytes += extents.length > 0 ? device.matrixBytes(type, rows, cols) : 4 * cols;
  }
  return bytes;
}

/** Pages of layers with a window that one pass seals, before it has left others behind. */
const passBytes = ({ leaf, pageTokens }: Plan, rows: number): number =>
  Math.ceil(rows / pageTokens) * (leaf.windowPage?.bytes ?? 0);

/** Creates the scratch on a device that only counts bytes. */
function scratchBytes(config: ModelConfig, rows: number): number {
  let bytes = 0;
  const counter: Pick<Device, 'createTensor'> = {
    createTensor(rows: number, cols: number) {
      bytes += 4 * rows * cols;
      return { rows, cols };
    },
  };
  createScratch(counter as Device, config, rows);
  return bytes;
}
