/** Does it fit? Counted before a byte of the weights is read, so that the answer is advice and not a crash. */
import { CapacityError } from '../errors.ts';
import type { Device } from '../kernel/device.ts';
import type { ModelConfig } from '../model/config.ts';
import { createScratch } from '../model/forward.ts';
import type { TensorInfo } from '../model/gguf.ts';
import { type MemoryReport, memoryReport } from '../plan/memory.ts';
import { formatBytes, formatCount } from '../units.ts';

export interface BudgetRequest {
  config: ModelConfig;
  tensors: ReadonlyMap<string, TensorInfo>;
  device: Device['name'];
  kv: string;
  context: number;
  pageTokens?: number;
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

export function budgetOf(request: BudgetRequest): Budget {
  const { config, rows, extra = 0 } = request;
  const weights = weightBytes(request);
  const cache = reportOf(request).totalBytes;
  const scratch = scratchBytes(config, rows) + extra;
  return { weights, cache, scratch, total: weights + cache + scratch };
}

/** Throws where the budget exceeds the limit, and says what would not. */
export function checkBudget(request: BudgetRequest, limit: number): Budget {
  const budget = budgetOf(request);
  if (budget.total <= limit) return budget;
  const { weights, cache, scratch, total } = budget;
  throw new CapacityError(
    `This needs ${formatBytes(total)} (weights ${formatBytes(weights)}, cache ${formatBytes(cache)} for ` +
      `${formatCount(request.context)} tokens of ${request.kv}, scratch ${formatBytes(scratch)}), and ` +
      `${formatBytes(limit)} can be had. ${advice(request, limit - weights - scratch)}`,
  );
}

/** What one may take of this machine's memory: what is free, and no more than 9/10 of all of it. */
export async function memoryLimit(): Promise<number> {
  const { freemem, totalmem, platform } = await import('node:os');
  const most = 0.9 * Math.min(totalmem(), process.constrainedMemory() || Number.POSITIVE_INFINITY);
  // macOS calls memory free only when nothing ever touched it, so there it says nothing.
  return platform() === 'darwin' ? most : Math.min(most, freemem());
}

function advice(request: BudgetRequest, room: number): string {
  const { kv, context } = request;
  const report = reportOf(request);
  if (room < report.bytesPerToken) return 'Take a smaller model, or one of fewer bits a weight.';
  const fits = ['tq4', 'tq3', 'tq2'].find(
    spec => spec !== kv && reportOf({ ...request, kv: spec }).totalBytes <= Math.min(room, report.totalBytes - 1),
  );
  const tokens = contextWithin(report, room, request.pageTokens);
  const ways = [
    tokens > 0 && tokens < context && `a context of ${formatCount(tokens)} fits`,
    fits && `kv: '${fits}' fits at this context`,
  ].filter(way => way !== false && way !== undefined);
  return ways.length > 0 ? `Of this model, ${ways.join('; ')}.` : 'Take a smaller model, or close other programs.';
}

/** The largest context, in whole pages, that the room holds. */
function contextWithin(report: MemoryReport, room: number, pageTokens = 128): number {
  const tokens = report.context - (report.totalBytes - room) / report.bytesPerToken;
  return Math.max(0, Math.floor(tokens / pageTokens)) * pageTokens;
}

const reportOf = ({ config, kv, context, pageTokens }: BudgetRequest): MemoryReport =>
  memoryReport(kv, { ...config, pageTokens }, context);

/** The js device holds its matrices as floats; the others hold them as they are in the file. */
function weightBytes({ tensors, device }: BudgetRequest): number {
  let bytes = 0;
  for (const tensor of tensors.values())
    bytes += device === 'js' ? 4 * tensor.shape.reduce((a, b) => a * b, 1) : tensor.bytes;
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
