/**
 * The contract suite: what every codec must hold, whatever its family. A codec's own tests say only what is
 * particular to it. Numbers at the top are the budgets; a codec brings its own for the round trip.
 */
import { describe, expect, it } from 'vitest';
import { ShapeError } from '../errors.ts';
import { turnOf } from '../eval/vectors.ts';
import type { Codec, Side } from './codec.ts';
import { turnPairs } from './domain.ts';
import { createCodec, type KvCodec, type KvLearned, type KvShape, learn } from './kv.ts';
import { gaussianSamples } from './learned.ts';
import { createRandom, normals } from './parts/random.ts';
import { norm } from './parts/vector.ts';
import { compare } from './validate.ts';

const HEAD_DIMS = [64, 80, 96, 128, 256];
const KV_HEADS = 2;
const PAGE_TOKENS = 128;
/** Most pages are not the first: keys that are coded relative to their page's start must come back where they were. */
const PAGES = {
  'one token at 0': { tokens: 1, start: 0 },
  'a part of page 3': { tokens: 77, start: 3 * PAGE_TOKENS },
  'a full page at 4096': { tokens: PAGE_TOKENS, start: 4096 },
};
/** Of |q| |k|, and of the sum of |w| |v|. */
const DOT_TOLERANCE = 1e-4;
/** Share of a page's bytes that rounding may change when all of it moves to another position. */
const MOVED_TOLERANCE = 1e-2;
/** Vectors that a round trip is averaged over. */
const VECTORS = 256;
const CANARY = 0xa5;
/** Vectors that a codec learns from, where it does. */
const LEARNT_FROM = 1024;

export interface Contract {
  spec: string;
  /** Head dims that it must refuse. */
  refuses?: number[];
  /** Head dims to try, where another spec of the family has tried them all. */
  dims?: number[];
}

export function contractSuite({ spec, refuses = [], dims = HEAD_DIMS }: Contract): void {
  describe(spec, () => {
    for (const headDim of dims) {
      const mean = normals(createRandom(9), KV_HEADS * headDim);
      const create = () => createTrained(spec, { headDim, kvHeads: KV_HEADS, turn: turnOf(headDim) }, mean);
      if (refuses.includes(headDim)) {
        it(`refuses head dim ${headDim}: ${refusal(create)}`, () => expect(create).toThrow(ShapeError));
        continue;
      }
      for (const [name, page] of Object.entries(PAGES)) {
        for (const side of ['key', 'value'] as const) {
          describe(`head dim ${headDim}, ${side}s, ${name}`, () => honours(create, side, page, mean));
        }
      }
    }
  });
}

const trained = new Map<string, KvLearned>();

/** A codec that has learned what it needs from Gaussian vectors; keys are centred by the mean that is given. */
export function createTrained(spec: string, shape: KvShape & { kvHeads: number }, mean: Float32Array): KvCodec {
  const name = `${spec} ${shape.headDim} ${shape.kvHeads} ${shape.turn ? 'RoPE' : ''}`;
  let learned = trained.get(name);
  if (!learned) {
    const samples = gaussianSamples(shape, LEARNT_FROM);
    learned = learn(spec, shape, { key: samples, value: samples });
    trained.set(name, learned);
  }
  return createCodec(spec, shape, { ...learned, key: { ...learned.key, mean } });
}

function refusal(create: () => KvCodec): string {
  try {
    create();
    return 'it did not';
  } catch (error) {
    return (error as Error).message;
  }
}

interface PagePlace {
  tokens: number;
  /** Position of its first token. */
  start: number;
}

function honours(create: () => KvCodec, side: Side, { tokens, start }: PagePlace, mean: Float32Array): void {
  const pair = create();
  // Both halves of the contract are there on either side; only the one that the side promises is tested.
  const codec = (side === 'key' ? pair.keys : pair.values) as Codec;
  const { headDim, turn } = codec.shape;
  const random = createRandom(headDim * 1000 + tokens);
  const vector = KV_HEADS * headDim;
  /** Keys after RoPE, when their page starts at `from`. */
  const ropedAt = (x: Float32Array, from: number) => {
    const turned = Float64Array.from(x);
    for (let at = 0; at < x.length; at += headDim)
      turnPairs(turned.subarray(at, at + headDim), turn!, from + Math.floor(at / vector));
    return Float32Array.from(turned);
  };
  const fresh = (offset: boolean) => {
    const normal = normals(random, tokens * vector);
    // RoPE leaves Gaussian vectors Gaussian: only codecs that take it back see another input.
    const x = codec.pageRelative ? ropedAt(normal, start) : normal;
    return offset ? x.map((value, i) => value + mean[i % vector]) : x;
  };
  const centred = codec.spec.includes('-c') && side === 'key';
  const page = new Uint8Array(codec.pageBytes + 16).fill(CANARY);
  const x = fresh(centred);
  const written = codec.encode(x, tokens, page, start);
  const decoded = new Float32Array(tokens * vector);
  codec.decode(page, tokens, decoded, start);

  it('writes the bytes it promises and none past the page', () => {
    expect(written).toBeLessThanOrEqual(codec.pageBytes);
    // Only what comes last may be left empty.
    const rest = codec.fields.reduce((sum, f) => sum + (f.per === 'rest' ? f.bytes : 0), 0);
    expect(written).toBeGreaterThanOrEqual(codec.pageBytes - rest);
    expect(page.subarray(written, codec.pageBytes).every(byte => byte === 0)).toBe(true);
    expect(codec.fields.reduce((sum, f) => sum + f.bytes * (f.per === 'head' ? KV_HEADS : 1), 0)).toBe(codec.pageBytes);
    expect([...page.subarray(codec.pageBytes)]).toEqual(Array(16).fill(CANARY));
  });

  it('gives the same bytes for the same input, whatever the page held before', () => {
    const again = new Uint8Array(codec.pageBytes);
    create()[side === 'key' ? 'keys' : 'values'].encode(x, tokens, again, start);
    expect(Buffer.compare(again, page.subarray(0, codec.pageBytes))).toBe(0);
  });

  it('comes back within its budget', () => {
    let [error, energy] = [0, 0];
    for (let seen = 0; seen < VECTORS; seen += tokens * KV_HEADS) {
      const vectors = fresh(false);
      const input = centred ? vectors.map((value, i) => value + mean[i % vector]) : vectors;
      const out = new Float32Array(input.length);
      codec.encode(input, tokens, page, start);
      codec.decode(page, tokens, out, start);
      error += compare(input, out, headDim).mse * norm(input) ** 2;
      energy += norm(vectors) ** 2;
    }
    codec.encode(x, tokens, page, start);
    expect(error / energy).toBeLessThanOrEqual(codec.budget);
  });

  const head = tokens % KV_HEADS;
  const ofHead = (t: number) => decoded.subarray(t * vector + head * headDim, t * vector + (head + 1) * headDim);

  if (side === 'key') {
    it('dots packed keys as it would decoded ones', () => {
      const query = normals(random, headDim);
      const dots = new Float32Array(tokens);
      const prepared = codec.prepareQuery(query, head, start);
      codec.dots(prepared, page, head, tokens, dots);
      const off = dots.map((dot, t) => {
        const key = ofHead(t);
        const expected = query.reduce((sum, q, i) => sum + q * key[i], 0);
        return Math.abs(dot + prepared.constant - expected) / (norm(query) * norm(key));
      });
      expect(Math.max(...off)).toBeLessThanOrEqual(DOT_TOLERANCE);
    });
  } else {
    it('accumulates packed values as it would decoded ones', () => {
      const weights = Float32Array.from({ length: tokens }, random.uniform);
      const sum = new Float32Array(codec.sumLength);
      const out = new Float32Array(headDim);
      codec.accumulate(weights, page, head, tokens, sum);
      codec.finishOutput(
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
    it('gives the same bytes wherever the page starts', () => {
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

  if (codec.stable) {
    it('encodes what it decoded to the same bytes', () => {
      const again = new Uint8Array(codec.pageBytes);
      codec.encode(decoded, tokens, again, start);
      expect(Buffer.compare(again, page.subarray(0, codec.pageBytes))).toBe(0);
    });
  }
}
