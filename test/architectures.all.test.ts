/**
 * Every architecture, as tiny models with random weights: the same distribution of the next token as llama.cpp, and the same
 * answers from the cache and from a session.
 */
import { describe, expect, it } from 'vitest';
import type { DeviceName } from '../src/kernel/open.ts';
import { findAdapter } from '../src/kernel/webgpu/adapter.ts';
import { supportedArchitectures } from '../src/model/architectures.ts';
import { answersThreeWays, architectureModels, divergencesFromLlamaCpp } from './support/architecture-models.ts';
import { LONG_CASES } from './support/matrix.ts';

/** Divergence per token, in nats. A wrong factor in a RoPE of these models makes .0005; our own rounding makes 1e-5. */
const MAX_DIVERGENCE = 1e-4;
const PAGE = 16;

/** On the GPU: those that take operations of their own. The others run the same kernels as llama, or as one of these. */
const ON_GPU = [
  'granite',
  'olmo2',
  'gemma2',
  'gpt-oss',
  'bailingmoe2',
  ...(LONG_CASES ? ['ernie4_5-moe', 'gemma3', 'qwen2moe', 'qwen3moe', 'olmoe'] : []),
];
const hasGpu = typeof (await findAdapter()) !== 'string';
const models = Object.entries(architectureModels);

it('all architectures have a model here', () =>
  expect(new Set(models.map(([, { architecture }]) => architecture))).toEqual(new Set(supportedArchitectures)));

describe('like llama.cpp', () => {
  it.each(models)('%s', { timeout: 240_000 }, async (name, options) => {
    const devices: DeviceName[] = ['js', 'wasm', ...(hasGpu && ON_GPU.includes(name) ? (['webgpu'] as const) : [])];
    const found = await divergencesFromLlamaCpp(options, devices);
    for (const device of devices) expect(Math.abs(found[device]), device).toBeLessThan(MAX_DIVERGENCE);
  });
});

describe('the same answer, bit for bit, from the cache and from a session', () => {
  it.each(models)('%s', async (_, options) => {
    const load = { device: 'wasm', threads: 1, kv: 'tq4', pageTokens: PAGE } as const;
    const { cold, hit, restored } = await answersThreeWays(options, load);
    expect(hit.tokens).toEqual(cold.tokens);
    expect(restored.tokens).toEqual(cold.tokens);
    // Of other requests, whole pages are found; a session has the incomplete one, too.
    expect(hit.read).toBeLessThan(3 + PAGE);
    expect(restored.read).toBe(3);
  });
});
