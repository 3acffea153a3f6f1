/**
 * Synthetic keys, each with one trait of real ones that breaks some codec. Vectors are [token][dim], one head, and
 * come with others of the same kind, for codecs that learn from data.
 */
import { turnPairs } from '../codec/domain.ts';
import { createRandom, normals, type Random } from '../codec/parts/random.ts';

export interface VectorSet {
  x: Float32Array;
  /** To learn from. */
  others: Float32Array;
}

type Make = (random: Random, d: number) => (token: number) => Float32Array;

const OUTLIER_CHANNELS = 10;

export const vectorSets: Record<string, { about: string; make: Make }> = {
  gaussian: {
    about: 'unit Gaussian',
    make: (random, d) => () => normals(random, d),
  },
  outliers: {
    about: 'ten channels 10 times as large',
    make: (random, d) => {
      const gains = new Float32Array(d).fill(1);
      for (let i = 0; i < OUTLIER_CHANNELS; i++) gains[Math.floor(((i + 0.5) * d) / OUTLIER_CHANNELS)] = 10;
      return () => normals(random, d).map((x, i) => x * gains[i]);
    },
  },
  offset: {
    about: 'a constant offset of 4 times the spread (a key bias)',
    make: (random, d) => {
      const offset = normals(random, d).map(x => 4 * x);
      return () => normals(random, d).map((x, i) => x + offset[i]);
    },
  },
  sinks: {
    about: 'a token in 32 with a fiftieth of the norm, beside an offset',
    make: (random, d) => {
      const offset = normals(random, d);
      return token => normals(random, d).map((x, i) => (x + offset[i]) * (token % 32 === 0 ? 0.02 : 1));
    },
  },
  rope: {
    about: 'correlated channels with a mean, turned by RoPE',
    make: (random, d) => {
      const rank = Math.floor(d / 4);
      const factors = Array.from({ length: rank }, (_, r) => normals(random, d).map(x => (2 * x) / Math.sqrt(1 + r)));
      const mean = normals(random, d).map(x => 1.5 * x);
      return token => {
        const x = normals(random, d).map((noise, i) => 0.3 * noise + mean[i]);
        for (const factor of factors) {
          const amount = random.normal();
          factor.forEach((f, i) => {
            x[i] += amount * f;
          });
        }
        const turned = Float64Array.from(x);
        turnPairs(turned, turnOf(d), token);
        return Float32Array.from(turned);
      };
    },
  },
};

/** RoPE of `d` dims, base 10,000. */
export const turnOf = (d: number): Float64Array =>
  Float64Array.from({ length: Math.floor(d / 2) }, (_, i) => 10_000 ** ((-2 * i) / d));

/** `tokens` vectors of a set, and as many others. */
export function makeVectors(name: string, d: number, tokens: number, seed: number): VectorSet {
  const next = vectorSets[name].make(createRandom(seed), d);
  const take = () => {
    const vectors = new Float32Array(tokens * d);
    for (let t = 0; t < tokens; t++) vectors.set(next(t), t * d);
    return vectors;
  };
  const others = take();
  return { x: take(), others };
}
