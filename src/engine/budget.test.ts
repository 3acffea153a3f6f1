import { describe, expect, it } from 'vitest';
import { parseSpec } from '../codec/spec.ts';
import { createJsDevice } from '../kernel/js/device.ts';
import { packedBytes } from '../kernel/wasm/pack-weights.ts';
import type { TensorInfo } from '../model/gguf.ts';
import type { ModelConfig } from '../model/model-config.ts';
import { createPlan, planBytes } from '../plan/plan.ts';
import { platform } from '../platform/node.ts';
import { CapacityError } from '../util/errors.ts';
import { formatBytes, parseBytes } from '../util/units.ts';
import { type BudgetRequest, checkBudget } from './budget.ts';

const config = {
  layers: 3,
  width: 64,
  heads: 4,
  kvHeads: 2,
  headDim: 16,
  ffn: 128,
  vocab: 256,
  rope: { dims: 16 },
} as ModelConfig;
const shape = { layers: 3, kvHeads: 2, headDim: 16, pageTokens: 16 };
const plans = Object.fromEntries(['f16', 'tq4', 'tq3', 'tq2'].map(spec => [spec, createPlan(parseSpec(spec), shape)]));
const tensors = new Map(
  [
    { name: 'a', type: 'Q4_0', shape: [64, 256] },
    { name: 'b', type: 'F32', shape: [64] },
  ].map(tensor => [tensor.name, tensor as unknown as TensorInfo]),
);
const wasm: BudgetRequest['device'] = {
  name: 'wasm',
  matrixBytes: (type, rows, cols) => packedBytes(type, rows, cols, false),
};
const request = (parts: Partial<BudgetRequest> = {}): BudgetRequest => ({
  config,
  tensors,
  device: wasm,
  plan: plans.tq4,
  context: 1000,
  rows: 8,
  ...parts,
});
const unlimited = Number.POSITIVE_INFINITY;
/** x, normed, q, k, v, attention, gate, up and RoPE angles per row; the gathered row and its logits. */
const scratch = 4 * 8 * (64 + 64 + 64 + 32 + 32 + 64 + 128 + 128 + 16 + 64 + 256);

describe('the memory budget', () => {
  it('counts weights, one cache of the whole context, and scratch', () => {
    const { plan, context } = request();
    const cache = planBytes(plan, context);
    // Nibbles, and f16 scales and minima per 32 of them.
    const weights = (256 * 64 * 20) / 32 + 4 * 64;
    expect(checkBudget(request(), unlimited)).toEqual({ weights, cache, scratch, total: weights + cache + scratch });
  });

  it('counts matrices as float32 on the js device', () => {
    const { weights } = checkBudget(request({ device: createJsDevice() }), unlimited);
    expect(weights).toBe(4 * (64 * 256 + 64));
  });

  it('is refused one byte above the limit, and names every part', () => {
    const { weights, cache, total } = checkBudget(request(), unlimited);
    expect(checkBudget(request(), total).total).toBe(total);
    const ask = () => checkBudget(request(), total - 1);
    expect(ask).toThrow(CapacityError);
    for (const part of [weights, cache, scratch]) expect(ask).toThrow(formatBytes(part));
    expect(ask).toThrow('1,000 tokens of tq4');
  });

  it('extra bytes count against the limit, not against the device', () => {
    const reserved: number[] = [];
    const reserve = (bytes: number) => {
      reserved.push(bytes);
      return bytes;
    };
    const { cache, total } = checkBudget(request(), unlimited);
    const budget = checkBudget(request({ extra: 5000, device: { ...wasm, reserve } }), unlimited);
    expect(budget.total).toBe(total + 5000);
    expect(reserved).toEqual([cache + scratch]);
  });

  it('caches of compared plans are on the device', () => {
    const reserved: number[] = [];
    const reserve = (bytes: number) => {
      reserved.push(bytes);
      return bytes;
    };
    const compared = [plans.tq3, plans.tq2];
    const { cache } = checkBudget(request({ compared, device: { ...wasm, reserve } }), unlimited);
    expect(cache).toBe([plans.tq4, ...compared].reduce((sum, plan) => sum + planBytes(plan, 1000), 0));
    expect(reserved).toEqual([cache + scratch]);
    const full = { ...wasm, reserve: (bytes: number) => bytes - 1 };
    expect(messageOf(() => checkBudget(request({ compared, device: full }), unlimited))).toMatch(
      /1,000 tokens of tq4, tq3, tq2.* Use a smaller context, or compare fewer codecs at a time\.$/,
    );
  });

  it.each([
    ['the device', 3.5 * 2 ** 30, unlimited],
    ['the memory', unlimited, 3 * 2 ** 30],
    ['the device, if that has less than the memory', 3.5 * 2 ** 30, 3.9 * 2 ** 30],
  ])('suggests a size of the shared cache that fits %s', (_, held, limit) => {
    const device = { ...wasm, reserve: (bytes: number) => Math.min(bytes, held) };
    const message = messageOf(() => checkBudget(request({ device, kvMemory: 4 * 2 ** 30 }), limit));
    const [, size] = message.match(/With this model, kvMemory fits up to ([\d.]+ \wiB)\.$/) ?? [];
    const kvMemory = parseBytes(size);
    expect(checkBudget(request({ device, kvMemory }), limit).cache).toBe(kvMemory);
    expect(() => checkBudget(request({ device, kvMemory: kvMemory + 0.011 * 2 ** 30 }), limit)).toThrow(CapacityError);
  });

  it('suggests no shared cache that is too small', () => {
    const device = { ...wasm, reserve: () => scratch + 1000 };
    const ask = () => checkBudget(request({ device, kvMemory: 2 ** 30 }), unlimited);
    expect(ask).toThrow(/Use a smaller model, or one with fewer bits per weight\.$/);
  });

  it('suggests the largest context, in whole pages, that fits', () => {
    const { total } = checkBudget(request({ context: 400 }), unlimited);
    const message = messageOf(() => checkBudget(request(), total));
    const context = Number(message.match(/a context of ([\d,]+) fits/)![1].replaceAll(',', ''));
    expect(checkBudget(request({ context }), total).total).toBeLessThanOrEqual(total);
    // Pages are sealed one token late, so the next larger suggestion would be a page and a token more.
    expect(() => checkBudget(request({ context: context + 17 }), total)).toThrow(CapacityError);
  });

  it('suggests the best codec that fits at this context', () => {
    const limit = (kv: string) => checkBudget(request({ plan: plans[kv] }), unlimited).total;
    const suggested = (bytes: number) =>
      messageOf(() => checkBudget(request({ plan: plans.f16 }), bytes)).match(/kv: '(\w+)' fits/)?.[1];
    expect([limit('tq4'), limit('tq3'), limit('tq2')].map(suggested)).toEqual(['tq4', 'tq3', 'tq2']);
    expect(suggested(limit('tq4') - 1)).toBe('tq3');
    expect(suggested(limit('tq2') - 1)).toBeUndefined();
  });

  it('suggests a smaller model if the weights leave no room', () => {
    expect(() => checkBudget(request(), 1000)).toThrow(/Use a smaller model, or one with fewer bits per weight\.$/);
  });

  it('is refused if the device cannot reserve cache and scratch', () => {
    const { cache } = checkBudget(request(), unlimited);
    const reserve = (bytes: number) => bytes - 1;
    const ask = () => checkBudget(request({ device: { ...wasm, name: 'webgpu', reserve } }), unlimited);
    expect(ask).toThrow(CapacityError);
    expect(ask).toThrow(/^The webgpu device can hold .*With this model, a context of \d+ fits/);
    expect(ask).toThrow(formatBytes(cache));
  });
});

it('the default limit is at most nine tenths of the memory', async () => {
  const { totalmem } = await import('node:os');
  const limit = platform.memoryLimit();
  expect(limit).toBeGreaterThan(0);
  expect(limit).toBeLessThanOrEqual(0.9 * totalmem());
});

function messageOf(run: () => unknown): string {
  try {
    run();
  } catch (error) {
    return (error as Error).message;
  }
  return '';
}
