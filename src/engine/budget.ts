/** Checks that a model fits in memory before any weights are read, so that the caller gets advice instead of a crash. */

import { pageBytes } from '../cache/leaf.ts';
import { specOf } from '../codec/spec.ts';
import type { Device } from '../kernel/device.ts';
import type { TensorInfo } from '../model/gguf.ts';
import type { ModelConfig } from '../model/model-config.ts';
import { createScratch } from '../model/scratch.ts';
import { createPlan, fixedBytes, maxPagesIn, type Plan, planBytes } from '../plan/plan.ts';
import { CapacityError, type OptionNames } from '../util/errors.ts';
import { formatBytes, formatBytesDown, formatCount } from '../util/units.ts';

export interface BudgetRequest {
  config: ModelConfig;
  tensors: ReadonlyMap<string, TensorInfo>;
  device: Pick<Device, 'name' | 'reserve' | 'matrixBytes'>;
  plan: Plan;
  context: number;
  /** Max bytes of a cache that sequences share; `auto`: chosen here. Default: one sequence of `context` tokens. */
  kvMemory?: number | 'auto';
  /** Plans that are compared with it: the device holds a cache of each at the same time. */
  compared?: readonly Plan[];
  /** Rows of the scratch tensors. */
  rows: number;
  /** Further bytes in main memory, such as stored logits. */
  extra?: number;
  /** Bytes of the guard, on the device. Default: none. */
  guard?: number;
}

export interface Budget {
  weights: number;
  /** The caches: one sequence of `context` tokens for each plan, or `kvMemory`. */
  cache: number;
  scratch: number;
  total: number;
}

function budgetOf(request: BudgetRequest): Budget {
  const { config, rows, extra = 0, guard = 0, kvMemory, plan, compared = [] } = request;
  const weights = weightBytes(request);
  const caches = [plan, ...compared].reduce((sum, one) => sum + cacheBytes(one, request), 0);
  const cache = typeof kvMemory === 'number' ? kvMemory : caches;
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
  const { device, context, plan, compared = [], kvMemory, extra = 0 } = request;
  const budget = budgetOf(request);
  const { weights, cache, scratch, total } = budget;
  checkCacheSize(request, cache);
  const ownScratch = scratch - extra;
  const reserve = (bytes: number) => (device.reserve?.(bytes + ownScratch) ?? bytes + ownScratch) - ownScratch;
  const available = limit - weights - scratch;
  const specs = [plan, ...compared].map(({ spec }) => spec).join(', ');
  const cacheText =
    `cache ${formatBytes(cache)}` +
    (typeof kvMemory === 'number' ? '' : ` for ${formatCount(context)} tokens of ${specs}`);
  if (total > limit) {
    const room = available > 0 ? reserve(available) : available;
    throw new CapacityError(
      option =>
        `This needs ${formatBytes(total)} (weights ${formatBytes(weights)}, ${cacheText}, scratch ` +
        `${formatBytes(scratch)}), and ${formatBytes(limit)} is available. ` +
        suggestions(request, room, option),
    );
  }
  const wanted = kvMemory === 'auto' ? Math.max(AUTO_CONTEXTS * cache, AUTO_BYTES) : cache;
  const chosen = Math.max(cache, Math.min(wanted, available));
  const room = reserve(chosen);
  if (room < cache)
    throw new CapacityError(
      option =>
        `The ${device.name} device can hold ${formatBytes(room + ownScratch)} in addition to the weights; this needs ` +
        `${formatBytes(cache + ownScratch)} (${cacheText}, scratch ${formatBytes(ownScratch)}). ` +
        suggestions(request, room, option),
    );
  return { ...budget, cache: Math.min(chosen, room) };
}

/** A shared cache must hold at least an empty sequence and one page. */
const minCacheBytes = (plan: Plan): number => planBytes(plan, plan.pageTokens + plan.window.recent + 1);

function checkCacheSize({ kvMemory, plan }: BudgetRequest, cache: number): void {
  const least = minCacheBytes(plan);
  if (typeof kvMemory === 'number' && cache < least)
    throw new CapacityError(
      option =>
        `A KV cache of ${formatBytes(cache)} is too small: one conversation with a sealed page of ${plan.spec} needs ` +
        `${formatBytes(least)}. Raise ${option('kvMemory')}, or use a codec with fewer bits.`,
      { option: 'kvMemory' },
    );
}

/** What would fit in `room` bytes for the cache. */
function suggestions(request: BudgetRequest, room: number, option: OptionNames): string {
  const { plan, context, config, compared = [], kvMemory } = request;
  const { pageTokens, leaf } = plan;
  const fixedSize = typeof kvMemory === 'number';
  if (room < (fixedSize ? minCacheBytes(plan) : pageBytes(leaf) / pageTokens))
    return 'Use a smaller model, or one with fewer bits per weight.';
  if (fixedSize) return `With this model, ${option('kvMemory')} fits up to ${formatBytesDown(room)}.`;
  if (compared.length > 0) return `Use a smaller ${option('context')}, or compare fewer codecs at a time.`;
  const maxBytes = Math.min(room, cacheBytes(plan, request) - 1);
  const fits = ['tq4', 'tq3', 'tq2'].find(
    codec =>
      codec !== plan.spec && cacheBytes(createPlan(specOf(codec), { ...config, pageTokens }), request) <= maxBytes,
  );
  // The largest context, in whole pages, that fits.
  const pages = maxPagesIn(plan, room - fixedBytes(plan) - passBytes(plan, request.rows));
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

/** One sequence of the whole context, and what a pass adds to it. */
const cacheBytes = (plan: Plan, { context, rows }: BudgetRequest): number =>
  planBytes(plan, context) + passBytes(plan, rows);

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
