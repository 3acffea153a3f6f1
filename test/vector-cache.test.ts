/** A cache for one's own vectors: the same on every device, and after any forks and crops. */
import fc from 'fast-check';
import { afterAll, describe, expect, it } from 'vitest';
import { learn } from '../src/codec/kv.ts';
import { gaussianSamples } from '../src/codec/learned.ts';
import { createRandom, normals } from '../src/codec/parts/random.ts';
import { createRopeFrequencies } from '../src/codec/parts/rope.ts';
import {
  type CacheOptions,
  CapacityError,
  createCache,
  type DeviceName,
  InputError,
  ShapeError,
  UnsupportedError,
  type VectorCache,
  type VectorSequence,
  type Vectors,
} from '../src/index.ts';
import { worstHeadError } from './attention.ts';
import { seeded } from './random.ts';
import { describeGpu } from './webgpu/gpu.ts';

/** Small, because the js device and SwiftShader are slow. */
const SHAPE = { layers: 2, heads: 6, kvHeads: 2, headDim: 32, pageTokens: 32 };
const SPECS = ['f16', 'tq4', 'kivi2g32', 'tq4+recent32', 'oscar2g32'];
const MAX_TOKENS = 300;
/** Max error of outputs relative to the norm of a value: float arithmetic, and int8 queries and probabilities. */
const FLOAT_ATTENTION = 1e-3;
const INT8_ATTENTION = 1e-2;

const { layers, heads, kvHeads, headDim, pageTokens } = SHAPE;
const vectorLength = kvHeads * headDim;
const queryLength = heads * headDim;

const caches = new Map<string, Promise<VectorCache>>();
/** One cache per device and spec: compiling kernels takes most of the time. */
function cacheOf(device: DeviceName, spec: string, options: CacheOptions = {}): Promise<VectorCache> {
  const key = JSON.stringify([device, spec, options]);
  const cache = caches.get(key) ?? createCache(SHAPE, spec, { device, threads: 2, ...options });
  caches.set(key, cache);
  return cache;
}
afterAll(async () => {
  for (const cache of caches.values()) await (await cache).dispose();
});

/** Queries, keys and values of all tokens, by layer; token n has the same vectors in every test. */
const random = createRandom(7);
const inputs = Array.from({ length: layers }, () => ({
  queries: normals(random, MAX_TOKENS * queryLength),
  keys: normals(random, MAX_TOKENS * vectorLength),
  values: normals(random, MAX_TOKENS * vectorLength),
}));
/** Rows of tokens `from` to before `to`. */
const rowsOf = (layer: number, from: number, to: number) => ({
  queries: inputs[layer].queries.subarray(from * queryLength, to * queryLength),
  keys: inputs[layer].keys.subarray(from * vectorLength, to * vectorLength),
  values: inputs[layer].values.subarray(from * vectorLength, to * vectorLength),
});
const append = (sequence: VectorSequence, from: number, to: number) => {
  const rows = inputs.map((_, layer) => rowsOf(layer, from, to));
  return sequence.append(
    rows.map(({ keys }) => keys),
    rows.map(({ values }) => values),
  );
};
/** One query for the state of a sequence, in every layer. */
const query = inputs[0].queries.subarray(0, queryLength);

/** Everything that can be read of a sequence. */
async function readAll(sequence: VectorSequence): Promise<(Float32Array | Vectors)[]> {
  const all: (Float32Array | Vectors)[] = [];
  for (let layer = 0; layer < layers; layer++) {
    if (sequence.length > 0) all.push(await sequence.attend(layer, query));
    all.push(await sequence.decode(layer));
  }
  return all;
}

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

/** Softmax attention of one row of queries over vectors, in f64. */
function exactAttention(queries: Float32Array, { keys, values }: Vectors): Float32Array {
  const out = new Float32Array(queryLength);
  const tokens = keys.length / vectorLength;
  for (let head = 0; head < heads; head++) {
    const kvHead = Math.floor((head * kvHeads) / heads);
    const offset = (t: number) => t * vectorLength + kvHead * headDim;
    const dot = (t: number) => {
      let sum = 0;
      for (let j = 0; j < headDim; j++) sum += queries[head * headDim + j] * keys[offset(t) + j];
      return sum / Math.sqrt(headDim);
    };
    const scores = Array.from({ length: tokens }, (_, t) => dot(t));
    const max = Math.max(...scores);
    const weights = scores.map(score => Math.exp(score - max));
    const total = weights.reduce((a, b) => a + b, 0);
    for (let j = 0; j < headDim; j++)
      out[head * headDim + j] = weights.reduce((sum, w, t) => sum + w * values[offset(t) + j], 0) / total;
  }
  return out;
}

const chunkSizes = fc.array(fc.integer({ min: 1, max: 90 }), { minLength: 1, maxLength: 6 });

interface Suite {
  device: DeviceName;
  /** Runs per property. */
  numRuns: number;
  tolerance: number;
}

function suite({ device, numRuns, tolerance }: Suite): void {
  describe.each(SPECS)('%s', spec => {
    it('step has the outputs of the js device', async () => {
      const cache = await cacheOf(device, spec);
      const found = await runSteps(cache, 167, [3, 29, 1, 50, 20, 64]);
      const expected = await runSteps(await cacheOf('js', spec), 167, [167]);
      for (let layer = 0; layer < layers; layer++)
        expect(worstHeadError(found[layer], expected[layer], headDim, inputs[layer].values)).toBeLessThan(tolerance);
    });

    it('step does not depend on how the tokens are divided', async () => {
      const cache = await cacheOf(device, spec);
      const tokens = 150;
      const expected = await runSteps(cache, tokens, [tokens]);
      await fc.assert(
        fc.asyncProperty(chunkSizes, async sizes => expect(await runSteps(cache, tokens, sizes)).toEqual(expected)),
        { numRuns },
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
        { numRuns: 2 * numRuns },
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
    const cache = await cacheOf(device, 'tq4');
    // Of different lengths, which cross page boundaries in different rows; together more than one batch.
    const parts = [
      [0, 140],
      [31, 1],
      [64, 200],
      [100, 190],
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

  it('forks share pages', async () => {
    const cache = await cacheOf(device, 'tq4');
    await using sequence = cache.sequence();
    const { bytes: empty } = cache;
    await append(sequence, 0, 200);
    const { bytes } = cache;
    expect(bytes - empty).toBe(Math.floor(200 / pageTokens) * cache.plan.leaf.bytes);
    const expected = await readAll(sequence);
    // More than a device makes room for at first.
    const forks = await Promise.all(Array.from({ length: 12 }, () => sequence.fork()));
    expect(cache.bytes - bytes).toBeLessThanOrEqual(forks.length * empty);
    expect(forks[0].bytes).toBe(sequence.bytes);
    for (const fork of forks) expect(await readAll(fork)).toEqual(expected);
    await Promise.all(forks.map(fork => fork.dispose()));
    expect(cache.bytes).toBe(bytes);
    expect(await readAll(sequence)).toEqual(expected);
  });
}

describe('js', () => suite({ device: 'js', numRuns: 10, tolerance: FLOAT_ATTENTION }));
describe('wasm', () => suite({ device: 'wasm', numRuns: 25, tolerance: INT8_ATTENTION }));
describeGpu('webgpu', () => suite({ device: 'webgpu', numRuns: 3, tolerance: INT8_ATTENTION }));
