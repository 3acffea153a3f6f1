/**
 * Synthetic key vectors, each set with one property of real keys that is hard for some codec. Vectors are [token][dim] of one
 * head, with separate training vectors for codecs that learn from data.
 */

import { createRandom, normals, type Random } from '../codec/parts/random.ts';
import { applyRope, createRopeFrequencies } from '../codec/parts/rope.ts';

export interface VectorSet {
  x: Float32Array;
  /** For codecs that learn from data. */
  training: Float32Array;
}

type Make = (random: Random, d: number) => (token: number) => Float32Array;

const OUTLIER_CHANNELS = 10;

export const vectorSets: Record<string, { about: string; make: Make }> = {
  gaussian: {
    about: 'unit Gaussian',
    make: (random, d) => () => normals(random, d),
  },
  outliers: {
    about: 'ten channels scaled by 10',
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
    about: 'one token in 32 has 1/50 of the norm, with an offset',
    make: (random, d) => {
      const offset = normals(random, d);
      return token => normals(random, d).map((x, i) => (x + offset[i]) * (token % 32 === 0 ? 0.02 : 1));
    },
  },
  rope: {
    about: 'correlated channels with a mean, rotated by RoPE',
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
        const rotated = Float64Array.from(x);
        applyRope(rotated, createRopeFrequencies(d), token);
        return Float32Array.from(rotated);
      };
    },
  },
};

/** `tokens` vectors of a set, and as many training vectors. */
export function makeVectors(name: string, d: number, tokens: number, seed: number): VectorSet {
  const next = vectorSets[name].make(createRandom(seed), d);
  const generate = () => {
    const vectors = new Float32Array(tokens * d);
    for (let t = 0; t < tokens; t++) vectors.set(next(t), t * d);
    return vectors;
  };
  const training = generate();
  return { x: generate(), training };
}
