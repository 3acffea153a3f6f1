/**
 * The contract suite, which every codec must pass. The tests of a family cover only what is specific to it. The numbers at
 * the top are the tolerances; the budget of the round-trip error is the codec's.
 */

import { describe, expect, it } from 'vitest';
import { type Codec, SIDES, type Side } from '../../src/codec/codec.ts';
import { createCodec, type KvCodec, type KvLearned, type KvShape, learn } from '../../src/codec/kv.ts';
import { gaussianSamples, type Samples } from '../../src/codec/learned.ts';
import { createRandom, normals } from '../../src/codec/parts/random.ts';
import { applyRope, createRopeFrequencies } from '../../src/codec/parts/rope.ts';
import { norm } from '../../src/codec/parts/vector.ts';
import { familyOf, formatSide, parseSpec } from '../../src/codec/spec.ts';
import { lossBetween } from '../../src/codec/validate.ts';
import { ShapeError } from '../../src/util/errors.ts';

export const HEAD_DIMS = [64, 80, 96, 128, 256];
const KV_HEADS = 2;
const PAGE_TOKENS = 128;
/** Pages at different positions: page-relative keys must decode to their original positions. */
const PAGES = {
  'one token at 0': { tokens: 1, start: 0 },
  'a part of page 3': { tokens: 77, start: 3 * PAGE_TOKENS },
  'a full page at 4096': { tokens: PAGE_TOKENS, start: 4096 },
};
/** Relative to |q| |k|, and to the sum of |w| |v|. */
const DOT_TOLERANCE = 1e-4;
/** Share of a page's bytes that rounding may change if the page is at another position. */
const MOVED_TOLERANCE = 1e-2;
/** Number of vectors in the mean round-trip error. */
const VECTORS = 128;
const CANARY = 0xa5;
/** Number of vectors that codecs are trained on. */
const TRAINING_VECTORS = 1024;

export interface Contract {
  spec: string;
  /** Head dims that it must reject. */
  rejects?: number[];
  /** Head dims to test. Default: all. */
  dims?: number[];
}

export function contractSuite({ spec, rejects = [], dims = HEAD_DIMS }: Contract): void {
  describe(spec, () => {
    for (const headDim of dims) {
      const mean = normals(createRandom(9), KV_HEADS * headDim);
      const create = () =>
        createTrained(spec, { headDim, kvHeads: KV_HEADS, ropeFrequencies: createRopeFrequencies(headDim) }, mean);
      if (rejects.includes(headDim)) {
        it(`rejects head dim ${headDim}: ${errorMessage(create)}`, () => expect(create).toThrow(ShapeError));
        continue;
      }
      const codecs: [KvCodec, KvCodec] = [create(), create()];
      for (const [name, page] of Object.entries(PAGES)) {
        for (const side of SIDES) {
          describe(`head dim ${headDim}, ${side}s, ${name}`, () => testContract(codecs, side, page, mean));
        }
      }
    }
  });
}

const trained = new WeakMap<Samples, Map<string, KvLearned>>();
const trainingSamples = new Map<string, Samples>();

/** The same vectors for all codecs of a shape. */
function samplesFor(shape: KvShape & { kvHeads: number }): Samples {
  const name = `${shape.headDim} ${shape.kvHeads}`;
  const samples = trainingSamples.get(name) ?? gaussianSamples(shape, TRAINING_VECTORS);
  trainingSamples.set(name, samples);
  return samples;
}

/** What a spec learns from the same samples of keys and values. Families that share what they learn train once. */
export function learnOnce(spec: string, shape: KvShape, samples: Samples): KvLearned {
  const { key, value } = parseSpec(spec);
  const learners = [key, value].map(side => {
    const { title, sharesLearned } = familyOf(side).family;
    return sharesLearned ? title : formatSide(side);
  });
  const name = [...learners, shape.headDim, shape.kvHeads, shape.ropeFrequencies ? 'RoPE' : ''].join();
  const known = trained.get(samples) ?? new Map<string, KvLearned>();
  trained.set(samples, known);
  const learned = known.get(name) ?? learn(spec, shape, { key: samples, value: samples });
  known.set(name, learned);
  return learned;
}

/** A codec trained on Gaussian vectors, with this mean for centered keys. */
export function createTrained(spec: string, shape: KvShape & { kvHeads: number }, mean: Float32Array): KvCodec {
  const learned = learnOnce(spec, shape, samplesFor(shape));
  return createCodec(spec, shape, { ...learned, key: { ...learned.key, mean } });
}

function errorMessage(create: () => KvCodec): string {
  try {
    create();
    return 'no error';
  } catch (error) {
    return (error as Error).message;
  }
}

interface PageCase {
  tokens: number;
  /** Position of the first token. */
  start: number;
}

/** `other` was created like `pair`: it must write the same bytes. */
function testContract(
  [pair, other]: [KvCodec, KvCodec],
  side: Side,
  { tokens, start }: PageCase,
  mean: Float32Array,
): void {
  // The object implements both sides; only its own side is tested.
  const codec = (side === 'key' ? pair.keys : pair.values) as Codec;
  const { headDim, ropeFrequencies } = codec.shape;
  const random = createRandom(headDim * 1000 + tokens);
  const vector = KV_HEADS * headDim;
  /** Applies RoPE to the keys of a page that starts at `from`. */
  const ropedAt = (x: Float32Array, from: number) => {
    const rotated = Float64Array.from(x);
    for (let at = 0; at < x.length; at += headDim)
      applyRope(rotated.subarray(at, at + headDim), ropeFrequencies!, from + Math.floor(at / vector));
    return Float32Array.from(rotated);
  };
  const randomVectors = (offset: boolean) => {
    const normal = normals(random, tokens * vector);
    // Gaussian vectors stay Gaussian under RoPE, so only page-relative codecs need it.
    const x = codec.pageRelative ? ropedAt(normal, start) : normal;
    return offset ? x.map((value, i) => value + mean[i % vector]) : x;
  };
  const centered = codec.spec.includes('-c') && side === 'key';
  const page = new Uint8Array(codec.pageBytes + 16).fill(CANARY);
  const x = randomVectors(centered);
  const written = codec.encode(x, tokens, page, start);
  const decoded = new Float32Array(tokens * vector);
  codec.decode(page, tokens, decoded, start);

  it('writes the documented number of bytes and none past the page', () => {
    expect(written).toBeLessThanOrEqual(codec.pageBytes);
    // Only the fields at the end may be unused.
    const rest = codec.fields.reduce((sum, f) => sum + (f.per === 'rest' ? f.bytes : 0), 0);
    expect(written).toBeGreaterThanOrEqual(codec.pageBytes - rest);
    expect(page.subarray(written, codec.pageBytes).every(byte => byte === 0)).toBe(true);
    expect(codec.fields.reduce((sum, f) => sum + f.bytes * (f.per === 'head' ? KV_HEADS : 1), 0)).toBe(codec.pageBytes);
    expect([...page.subarray(codec.pageBytes)]).toEqual(Array(16).fill(CANARY));
  });

  it('writes the same bytes for the same input, whatever the page contained before', () => {
    const again = new Uint8Array(codec.pageBytes);
    other[side === 'key' ? 'keys' : 'values'].encode(x, tokens, again, start);
    expect(Buffer.compare(again, page.subarray(0, codec.pageBytes))).toBe(0);
  });

  it('has a round-trip error within its budget', () => {
    let [error, energy] = [0, 0];
    for (let seen = 0; seen < VECTORS; seen += tokens * KV_HEADS) {
      const vectors = randomVectors(false);
      const input = centered ? vectors.map((value, i) => value + mean[i % vector]) : vectors;
      const out = new Float32Array(input.length);
      codec.encode(input, tokens, page, start);
      codec.decode(page, tokens, out, start);
      error += lossBetween(input, out, headDim).mse * norm(input) ** 2;
      energy += norm(vectors) ** 2;
    }
    codec.encode(x, tokens, page, start);
    expect(error / energy).toBeLessThanOrEqual(codec.budget);
  });

  const head = tokens % KV_HEADS;
  const ofHead = (t: number) => decoded.subarray(t * vector + head * headDim, t * vector + (head + 1) * headDim);

  if (side === 'key') {
    it('computes the same dot products on packed and decoded keys', () => {
      const query = normals(random, headDim);
      const dots = new Float32Array(tokens);
      const transformed = codec.transformQuery(query, head, start);
      codec.dotKeys(transformed, page, head, tokens, dots);
      const errors = dots.map((dot, t) => {
        const key = ofHead(t);
        const expected = query.reduce((sum, q, i) => sum + q * key[i], 0);
        return Math.abs(dot + transformed.constant - expected) / (norm(query) * norm(key));
      });
      expect(Math.max(...errors)).toBeLessThanOrEqual(DOT_TOLERANCE);
    });
  } else {
    it('computes the same weighted sum of packed and decoded values', () => {
      const weights = Float32Array.from({ length: tokens }, random.uniform);
      const sum = new Float32Array(codec.codedDim);
      const out = new Float32Array(headDim);
      codec.accumulateValues(weights, page, head, tokens, sum);
      codec.transformOutput(
        sum,
        weights.reduce((a, b) => a + b, 0),
        head,
        out,
      );
      let size = 0;
      const expected = new Float64Array(headDim);
      weights.forEach((w, t) => {
        size += w * norm(ofHead(t));
        ofHead(t).forEach((v, i) => {
          expected[i] += w * v;
        });
      });
      const worst = Math.max(...out.map((o, i) => Math.abs(o - expected[i])));
      expect(worst).toBeLessThanOrEqual(DOT_TOLERANCE * size);
    });
  }

  if (codec.pageRelative) {
    it('writes the same bytes at every page position', () => {
      const normal = normals(random, tokens * vector);
      const [here, first] = [start, 0].map(from => {
        const bytes = new Uint8Array(codec.pageBytes);
        codec.encode(ropedAt(normal, from), tokens, bytes, from);
        return bytes;
      });
      const different = here.filter((byte, i) => byte !== first[i]).length;
      expect(different / codec.pageBytes).toBeLessThanOrEqual(MOVED_TOLERANCE);
    });
  }

  if (codec.isIdempotent) {
    it('encodes decoded vectors to the same bytes', () => {
      const again = new Uint8Array(codec.pageBytes);
      codec.encode(decoded, tokens, again, start);
      expect(Buffer.compare(again, page.subarray(0, codec.pageBytes))).toBe(0);
    });
  }
}
