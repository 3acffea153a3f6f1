/** What a vector cache is given: calibrated codecs, shapes, and mistakes. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type KvLearned, learn } from '../src/codec/kv.ts';
import { gaussianSamples } from '../src/codec/learned.ts';
import { createRandom, normals } from '../src/codec/parts/random.ts';
import { createRopeFrequencies } from '../src/codec/parts/rope.ts';
import {
  type CacheOptions,
  CapacityError,
  createCache,
  decodeProfile,
  InputError,
  KvasirError,
  ShapeError,
  UnsupportedError,
  type VectorSequence,
} from '../src/index.ts';
import { fixedBytes } from '../src/plan/plan.ts';
import { encodeProfile } from '../src/plan/profile.ts';
import type { cacheRules } from '../src/vectors/vector-input.ts';
import { worstHeadError } from './support/attention.ts';
import { content } from './support/profile.ts';
import {
  append,
  exactAttention,
  headDim,
  heads,
  INT8_ATTENTION,
  inputs,
  kvHeads,
  layers,
  query,
  readAll,
  rowsOf,
  SHAPE,
  vectorLength,
} from './support/vectors.ts';

describe('calibrated codecs', () => {
  const shape = { ...SHAPE, ropeFrequencies: createRopeFrequencies(headDim) };
  const samples = gaussianSamples(shape, 512);
  const learnedFor = (spec: string): KvLearned[] =>
    inputs.map(() => learn(spec, shape, { key: samples, value: samples }));

  it.each(['mead2', 'vec-d4b8', 'tq35-v'])('%s takes what was learned of each layer', async spec => {
    const learned = learnedFor(spec);
    const [js, wasm] = await Promise.all(
      (['js', 'wasm'] as const).map(device => createCache(shape, spec, { device, threads: 2, learned })),
    );
    const outputs = await Promise.all(
      [js, wasm].map(async cache => {
        const sequence = cache.sequence();
        await append(sequence, 0, 100);
        const found = await sequence.attend(1, query);
        const exact = exactAttention(query, await sequence.decode(1));
        expect(worstHeadError(found, exact, headDim, inputs[1].values)).toBeLessThan(2 * INT8_ATTENTION);
        await cache.dispose();
        return found;
      }),
    );
    expect(worstHeadError(outputs[1], outputs[0], headDim, inputs[1].values)).toBeLessThan(2 * INT8_ATTENTION);
  });

  it('takes a profile of the same shape', async () => {
    const learned = learnedFor('tq35-v').map(({ key = {}, value = {} }) => ({ key, value }));
    const profileShape = { layers, kvHeads, headDim, ropeFrequencies: [...shape.ropeFrequencies] };
    const profile = await decodeProfile(await encodeProfile({ ...content, shape: profileShape, learned }));
    await using cache = await createCache(shape, 'tq35-v', { device: 'js', profile });
    await using same = await createCache(shape, 'tq35-v', { device: 'js', learned });
    const [a, b] = [cache.sequence(), same.sequence()];
    for (const sequence of [a, b]) await append(sequence, 0, 70);
    expect(await readAll(a)).toEqual(await readAll(b));
    await expect(createCache(SHAPE, 'tq35-v', { device: 'js', profile })).rejects.toThrow(
      /profile is for another model/,
    );
    await expect(createCache(shape, 'tq4', { profile, learned })).rejects.toThrow(/exclude each other/);
  });

  it('says what is missing', async () => {
    await expect(createCache(shape, 'mead2', { device: 'js' })).rejects.toThrow(UnsupportedError);
    const learned = learnedFor('tq35-v').slice(1);
    await expect(createCache(shape, 'tq35-v', { device: 'js', learned })).rejects.toThrow(
      /one entry per layer, 2; got 1/,
    );
  });
});

describe('one layer', () => {
  it('takes arrays as they are, and any scale', async () => {
    await using cache = await createCache({ headDim, kvHeads, heads }, 'f16', { device: 'js', scale: 1e-9 });
    await using sequence = cache.sequence();
    const { keys, values } = rowsOf(0, 0, 2);
    await sequence.append(keys, values);
    const output = await sequence.attend(0, query);
    // With almost equal weights: the average of the values.
    expect(output[0]).toBeCloseTo((values[0] + values[vectorLength]) / 2, 2);
    expect(cache.plan.bits).toBe(16);
  });

  it('takes more rows than fit into one batch', async () => {
    await using cache = await createCache({ headDim: 8, pageTokens: 1040 }, 'f16', { device: 'wasm', threads: 1 });
    const vectors = normals(createRandom(3), 1100 * 8);
    await using whole = cache.sequence();
    const expected = await whole.step(0, vectors, vectors, vectors);
    await using parts = cache.sequence();
    const found = new Float32Array(vectors.length);
    for (let done = 0; done < 1100; done += 100) {
      const rows = vectors.subarray(8 * done, 8 * (done + 100));
      found.set(await parts.step(0, rows, rows, rows), 8 * done);
    }
    expect(found).toEqual(expected);
    expect(await whole.attend(0, vectors)).toEqual(await parts.attend(0, vectors));
  });
});

describe('sessions', () => {
  /** The bytes that a sequence saves. */
  async function save(sequence: VectorSequence): Promise<Uint8Array<ArrayBuffer>> {
    const chunks: Uint8Array[] = [];
    await sequence.save(new WritableStream({ write: chunk => void chunks.push(chunk.slice()) }));
    return new Uint8Array(Buffer.concat(chunks));
  }

  it.each(['tq4', 'tq4+recent32', 'kivi2g32+sink40'])(
    '%s: a restored sequence continues as the saved one',
    async spec => {
      await using cache = await createCache(SHAPE, spec, { device: 'wasm', threads: 1 });
      await using other = await createCache(SHAPE, spec, { device: 'wasm', threads: 1 });
      for (const tokens of [0, 1, 31, 32, 33, 64, 100]) {
        const sequence = cache.sequence();
        if (tokens > 0) await append(sequence, 0, tokens);
        const restored = await other.restore(await save(sequence));
        expect(restored.length).toBe(tokens);
        expect(await readAll(restored)).toEqual(await readAll(sequence));
        for (const one of [sequence, restored]) await append(one, tokens, tokens + 50);
        expect(await readAll(restored)).toEqual(await readAll(sequence));
      }
    },
  );

  it('move to another device, and are refused by other shapes and codecs', async () => {
    await using cache = await createCache(SHAPE, 'tq4', { device: 'wasm', threads: 1 });
    await using js = await createCache(SHAPE, 'tq4', { device: 'js' });
    const sequence = cache.sequence();
    await append(sequence, 0, 100);
    const bytes = await save(sequence);
    const restored = await js.restore(new Blob([bytes]));
    expect(await restored.decode(1)).toEqual(await sequence.decode(1));
    await using other = await createCache(SHAPE, 'tq3', { device: 'js' });
    await expect(other.restore(bytes)).rejects.toThrow(/saved with another plan.*tq4.*here tq3/);
    await using larger = await createCache({ ...SHAPE, kvHeads: 4 }, 'tq4', { device: 'js' });
    await expect(larger.restore(bytes)).rejects.toThrow(/another plan/);
    await using full = await createCache(SHAPE, 'tq4', { device: 'js', kvMemory: js.plan.leaf.bytes });
    await expect(full.restore(bytes)).rejects.toThrow(CapacityError);
    expect([other.bytes, larger.bytes, full.bytes]).toEqual([0, 0, 0]);
  });

  it('that are damaged are refused, and nothing of them is kept', async () => {
    await using cache = await createCache(SHAPE, 'tq4', { device: 'js' });
    const sequence = cache.sequence();
    await append(sequence, 0, 40);
    const [bytes, { bytes: used }] = [await save(sequence), cache];
    await fc.assert(
      fc.asyncProperty(
        fc.nat(bytes.length - 1),
        fc.integer({ min: 1, max: 255 }),
        fc.boolean(),
        async (at, flip, cut) => {
          const damaged = bytes.slice(0, cut ? at : bytes.length);
          if (!cut) damaged[at] ^= flip;
          await expect(cache.restore(damaged)).rejects.toThrow(KvasirError);
          expect(cache.bytes).toBe(used);
        },
      ),
      { numRuns: 200 },
    );
  });
});

describe('mistakes', () => {
  const open = () => createCache(SHAPE, 'tq4', { device: 'js' });
  const { queries, keys, values } = rowsOf(0, 0, 3);

  it('of shapes and options are named', async () => {
    await expect(createCache({ ...SHAPE, heads: 3 }, 'tq4')).rejects.toThrow(ShapeError);
    await expect(createCache({ ...SHAPE, layers: 0 }, 'tq4')).rejects.toThrow(/layers must be an integer from 1/);
    await expect(createCache({ ...SHAPE, headDim: 2 }, 'tq4')).rejects.toThrow(ShapeError);
    await expect(createCache(SHAPE, 'tq9')).rejects.toThrow(/tq9/);
    await expect(createCache(SHAPE, 'tq4', { devcie: 'js' } as CacheOptions)).rejects.toThrow(/Did you mean device/);
    await expect(createCache(SHAPE, 'tq4', { kvMemory: -1 })).rejects.toThrow(InputError);
  });

  it('of arrays are named', async () => {
    await using cache = await open();
    await using sequence = cache.sequence();
    const wrong = keys.subarray(1);
    await expect(sequence.append([keys], [values])).rejects.toThrow(/one array per layer, 2/);
    await expect(sequence.append([keys, wrong], [values, values])).rejects.toThrow(
      /length of keys\[1\] must be a multiple/,
    );
    await expect(sequence.append([keys, keys], [values, rowsOf(0, 0, 2).values])).rejects.toThrow(
      /keys\[0\] and values\[1\] must have the same number of rows.*3 and 2/,
    );
    const text = 'keys' as unknown as Float32Array;
    await expect(sequence.append([text, keys], [values, values])).rejects.toThrow(/must be a Float32Array; got/);
    await expect(
      sequence.step(
        0,
        queries,
        keys,
        keys.map(() => Number.NaN),
      ),
    ).rejects.toThrow(/values\[0\] is NaN/);
    await expect(
      sequence.step(
        0,
        queries,
        keys.map(() => 1e6),
        values,
      ),
    ).rejects.toThrow(/from -65504 to 65504/);
    await expect(
      sequence.step(
        0,
        queries.map(() => 1 / 0),
        keys,
        values,
      ),
    ).rejects.toThrow(/must be finite/);
    await expect(sequence.attend(2, query)).rejects.toThrow(/layer must be an integer from 0 to 1; got the number 2/);
    await expect(sequence.attend(0, query)).rejects.toThrow(/sequence is empty/);
    await expect(sequence.decode(0, 0, 1)).rejects.toThrow(/to must be an integer from 0 to 0; got the number 1/);
    await expect(sequence.crop(-1)).rejects.toThrow(InputError);
    expect(sequence.length).toBe(0);
  });

  it('of order are named, and the step can go on', async () => {
    await using cache = await open();
    await using sequence = cache.sequence();
    await expect(sequence.step(1, queries, keys, values)).rejects.toThrow(/layer 0 is next; got 1/);
    await sequence.step(0, queries, keys, values);
    await expect(sequence.step(0, queries, keys, values)).rejects.toThrow(/layer 1 is next; got 0/);
    await expect(
      sequence.step(1, query, keys.subarray(0, vectorLength), values.subarray(0, vectorLength)),
    ).rejects.toThrow(/same number of rows in every layer: 3; got 1/);
    for (const call of [sequence.fork(), sequence.crop(0), sequence.attend(0, query), append(sequence, 0, 1)])
      await expect(call).rejects.toThrow(/has reached layer 1 of 2/);
    const rows = { sequence, queries, keys, values };
    await expect(cache.step(1, [rows, rows])).rejects.toThrow(/a sequence twice/);
    await expect(cache.step(0, [])).rejects.toThrow(InputError);
    await sequence.step(1, queries, keys, values);
    expect(sequence.length).toBe(3);
  });

  it('of lifetime are named', async () => {
    const cache = await open();
    const [sequence, other] = [cache.sequence(), cache.sequence()];
    // Calls that were made before are finished first.
    const appended = append(sequence, 0, 40);
    await sequence.dispose();
    await appended;
    await sequence.dispose();
    await expect(sequence.attend(0, query)).rejects.toThrow(/sequence was disposed/);
    expect(sequence.bytes).toBe(0);
    const last = append(other, 0, 40);
    await Promise.all([cache.dispose(), cache.dispose(), last]);
    await expect(other.attend(0, query)).rejects.toThrow(/cache was disposed/);
    expect(() => cache.sequence()).toThrow(InputError);
    await other.dispose();
    expect(cache.bytes).toBe(0);
  });

  it('a full cache rejects what does not fit, and goes on without it', async () => {
    const { plan } = await open();
    const kvMemory = fixedBytes(plan) + 2 * plan.leaf.bytes;
    await using cache = await createCache(SHAPE, 'tq4', { device: 'js', kvMemory });
    await using sequence = cache.sequence();
    await append(sequence, 0, 90);
    expect(() => cache.sequence()).toThrow(CapacityError);
    await expect(append(sequence, 90, 140)).rejects.toThrow(/Raise kvMemory/);
    await append(sequence, 90, 95);
    await expect(sequence.fork()).rejects.toThrow(CapacityError);
    await using fresh = await open();
    const expected = fresh.sequence();
    await append(expected, 0, 95);
    expect(await readAll(sequence)).toEqual(await readAll(expected));
    expect(await sequence.crop(40)).toBe(32);
    await append(sequence, 32, 95);
    expect(await readAll(sequence)).toEqual(await readAll(expected));
  });
});

type Names<Rules, Options> = [keyof Rules, keyof Options] extends [keyof Options, keyof Rules] ? true : never;
true satisfies Names<typeof cacheRules, CacheOptions>;
