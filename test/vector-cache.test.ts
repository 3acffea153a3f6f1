/** A cache for one's own vectors: the same on every device, and after any forks and crops. */
import fc from 'fast-check';
import { afterAll, describe, expect, it } from 'vitest';
import { f16BlockBytes } from '../src/cache/leaf.ts';
import { createCache, type DeviceName, type VectorCache } from '../src/index.ts';
import { tailBlockTokens } from '../src/kernel/visibility.ts';
import { worstHeadError } from './support/attention.ts';
import { ALL_CASES, itAll, LONG_CASES, matrix } from './support/matrix.ts';
import {
  append,
  exactAttention,
  FLOAT_ATTENTION,
  headDim,
  INT8_ATTENTION,
  inputs,
  layers,
  MAX_TOKENS,
  pageTokens,
  queryLength,
  readAll,
  rowsOf,
  SHAPE,
} from './support/vectors.ts';
import { describeGpu } from './webgpu/gpu.ts';

const SPECS = ['tq4+recent32', 'tq4', 'f16', 'kivi2g32', 'oscar2g32'];

const caches = new Map<string, Promise<VectorCache>>();
/** One cache per device and spec: compiling kernels takes most of the time. */
function cacheOf(device: DeviceName, spec: string): Promise<VectorCache> {
  const key = `${device} ${spec}`;
  const cache = caches.get(key) ?? createCache(SHAPE, spec, { device, threads: 2 });
  caches.set(key, cache);
  return cache;
}
afterAll(async () => {
  for (const cache of caches.values()) await (await cache).dispose();
});

/** The outputs of steps over the first tokens, [layer][token]; chunks are `sizes`, repeated. */
async function runSteps(cache: VectorCache, tokens: number, sizes: readonly number[]): Promise<Float32Array[]> {
  await using sequence = cache.sequence();
  const outputs = inputs.map(() => new Float32Array(tokens * queryLength));
  for (let done = 0, i = 0; done < tokens; i++) {
    const end = Math.min(tokens, done + sizes[i % sizes.length]);
    for (let layer = 0; layer < layers; layer++) {
      const { queries, keys, values } = rowsOf(layer, done, end);
      outputs[layer].set(await sequence.step(layer, queries, keys, values), done * queryLength);
    }
    done = end;
    expect(sequence.length).toBe(done);
  }
  return outputs;
}

/** More than three pages. */
const STEP_TOKENS = 105;
const jsSteps = new Map<string, Promise<Float32Array[]>>();
/** The outputs of the js device. */
const jsStepsOf = (spec: string): Promise<Float32Array[]> => {
  const steps = jsSteps.get(spec) ?? cacheOf('js', spec).then(cache => runSteps(cache, STEP_TOKENS, [STEP_TOKENS]));
  jsSteps.set(spec, steps);
  return steps;
};

interface Suite {
  device: DeviceName;
  specs: readonly string[];
  /** Runs per property. */
  numRuns: number;
  tolerance: number;
}

function suite({ device, specs, numRuns, tolerance }: Suite): void {
  describe.each(specs)('%s', spec => {
    it('step has the outputs of the js device, however the tokens are divided', async () => {
      const cache = await cacheOf(device, spec);
      const found = await runSteps(cache, STEP_TOKENS, [3, 29, 1, 50]);
      const expected = await jsStepsOf(spec);
      for (let layer = 0; layer < layers; layer++)
        expect(worstHeadError(found[layer], expected[layer], headDim, inputs[layer].values)).toBeLessThan(tolerance);
      const sizes = fc.array(fc.integer({ min: 5, max: 90 }), { minLength: 1, maxLength: 5 });
      await fc.assert(
        fc.asyncProperty(sizes, async sizes => {
          expect(await runSteps(cache, STEP_TOKENS, sizes)).toEqual(found);
        }),
        { numRuns: Math.ceil(numRuns / 4) },
      );
    });

    it('attend is exact attention over what decode returns, at any length', async () => {
      const cache = await cacheOf(device, spec);
      const lengths = fc.oneof(fc.integer({ min: 1, max: MAX_TOKENS }), fc.constantFrom(1, 31, 32, 33, 64, 65, 96));
      await fc.assert(
        fc.asyncProperty(lengths, fc.integer({ min: 1, max: 5 }), async (tokens, count) => {
          await using sequence = cache.sequence();
          await append(sequence, 0, tokens);
          for (let layer = 0; layer < layers; layer++) {
            const { queries } = rowsOf(layer, 0, count);
            const found = await sequence.attend(layer, queries);
            const vectors = await sequence.decode(layer);
            for (let i = 0; i < count; i++) {
              const row = [i * queryLength, (i + 1) * queryLength] as const;
              const expected = exactAttention(queries.subarray(...row), vectors);
              expect(worstHeadError(found.subarray(...row), expected, headDim, vectors.values)).toBeLessThan(tolerance);
            }
          }
        }),
        { numRuns },
      );
    });

    it('forks and crops continue as a fresh sequence with the same tokens', async () => {
      const cache = await cacheOf(device, spec);
      const operation = fc.oneof(
        { weight: 3, arbitrary: fc.record({ type: fc.constant('append'), by: fc.integer({ min: 1, max: 70 }) }) },
        { weight: 1, arbitrary: fc.record({ type: fc.constant('fork'), by: fc.nat(9) }) },
        { weight: 1, arbitrary: fc.record({ type: fc.constant('crop'), by: fc.integer({ min: 0, max: 90 }) }) },
        { weight: 1, arbitrary: fc.record({ type: fc.constant('dispose'), by: fc.constant(0) }) },
      );
      await fc.assert(
        fc.asyncProperty(fc.array(fc.tuple(operation, fc.nat(9)), { maxLength: 12 }), async operations => {
          const open = [cache.sequence()];
          for (const [{ type, by }, which] of operations) {
            const sequence = open[which % open.length];
            const { length } = sequence;
            if (type === 'append' && length + by <= MAX_TOKENS) await append(sequence, length, length + by);
            if (type === 'fork') open.push(await sequence.fork());
            if (type === 'crop') expect(await sequence.crop(Math.max(0, length - by))).toBeLessThanOrEqual(length);
            if (type === 'dispose' && open.length > 1) await open.splice(which % open.length, 1)[0].dispose();
          }
          for (const sequence of open) {
            await using fresh = cache.sequence();
            if (sequence.length > 0) await append(fresh, 0, sequence.length);
            expect(await readAll(sequence)).toEqual(await readAll(fresh));
          }
          await Promise.all(open.map(sequence => sequence.dispose()));
          expect(cache.bytes).toBe(0);
        }),
        { numRuns },
      );
    });
  });

  it('a step of several sequences has the outputs of separate steps', async () => {
    const cache = await cacheOf(device, specs[0]);
    // Of different lengths, which cross page boundaries in different rows.
    const parts = [
      [0, 40],
      [31, 1],
      [70, 33],
    ];
    const open = async () =>
      Promise.all(
        parts.map(async ([length]) => {
          const sequence = cache.sequence();
          if (length > 0) await append(sequence, 0, length);
          return sequence;
        }),
      );
    const [together, alone] = [await open(), await open()];
    for (let layer = 0; layer < layers; layer++) {
      const rows = parts.map(([length, count]) => rowsOf(layer, length, length + count));
      const found = await cache.step(
        layer,
        rows.map((row, i) => ({ sequence: together[i], ...row })),
      );
      for (const [i, { queries, keys, values }] of rows.entries())
        expect(found[i]).toEqual(await alone[i].step(layer, queries, keys, values));
    }
    expect(together.map(({ length }) => length)).toEqual(parts.map(([length, count]) => length + count));
    await Promise.all([...together, ...alone].map(sequence => sequence.dispose()));
  });

  // SwiftShader is slow.
  const itQuick = device === 'webgpu' ? itAll : it;
  itQuick('forks share pages', async () => {
    const cache = await cacheOf(device, specs[0]);
    await using sequence = cache.sequence();
    const { bytes: empty } = cache;
    await append(sequence, 0, 200);
    const { bytes } = cache;
    const pages = Math.floor((200 - cache.plan.window.recent) / pageTokens);
    const unsealed = 200 - pages * pageTokens;
    const tail = f16BlockBytes(
      { ...cache.plan.codecs[0].shape, layers: cache.plan.leaf.layers },
      Math.ceil(unsealed / tailBlockTokens(pageTokens)) * tailBlockTokens(pageTokens),
    );
    expect(bytes - empty).toBe(pages * cache.plan.leaf.bytes + tail);
    const expected = await readAll(sequence);
    // More than a device makes room for at first.
    const forks = await Promise.all(Array.from({ length: 9 }, () => sequence.fork()));
    expect(cache.bytes - bytes).toBe(forks.length * tail);
    expect(forks[0].bytes).toBe(sequence.bytes);
    for (const fork of forks) expect(await readAll(fork)).toEqual(expected);
    await Promise.all(forks.map(fork => fork.dispose()));
    expect(cache.bytes).toBe(bytes);
    expect(await readAll(sequence)).toEqual(expected);
  });
}

const WINDOW = { 'tq4+recent32': 'packed pages and a recent window' };
// The js device and SwiftShader are slow. `npm test` compares wasm with js.
describe.skipIf(!ALL_CASES)('js', () => {
  suite({ device: 'js', specs: SPECS, numRuns: 6, tolerance: FLOAT_ATTENTION });
});
describe('wasm', () => {
  const specs = matrix(SPECS, { ...WINDOW, oscar2g32: 'groups over tokens' });
  suite({ device: 'wasm', specs, numRuns: ALL_CASES ? 20 : 8, tolerance: INT8_ATTENTION });
});
describeGpu('webgpu', () => {
  const specs = matrix(LONG_CASES ? SPECS : ['tq4+recent32', 'f16', 'oscar2g32'], WINDOW);
  suite({ device: 'webgpu', specs, numRuns: ALL_CASES ? 4 : 1, tolerance: INT8_ATTENTION });
});
