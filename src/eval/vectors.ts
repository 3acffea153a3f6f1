/**
 * Synthetic keys, each with one trait of real ones that breaks some codec. Vectors are [token][dim], one head, and
 * come with the mean that a calibration on other tokens of the same kind would find.
 */
import { createRandom, normals, type Random } from '../codec/parts/random.ts';

export interface VectorSet {
  x: Float32Array;
  mean: Float32Array;
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
        return turn(x, token);
      };
    },
  },
};

/** RoPE on adjacent pairs, base 10,000. */
function turn(x: Float32Array, position: number): Float32Array {
  for (let i = 0; i + 1 < x.length; i += 2) {
    const angle = position * 10_000 ** (-i / x.length);
    const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
    [x[i], x[i + 1]] = [x[i] * cos - x[i + 1] * sin, x[i] * sin + x[i + 1] * cos];
  }
  return x;
}

/** `tokens` vectors of a set, and the mean of as many others. */
export function makeVectors(name: string, d: number, tokens: number, seed: number): VectorSet {
  const next = vectorSets[name].make(createRandom(seed), d);
  const mean = new Float32Array(d);
  for (let t = 0; t < tokens; t++) {
    next(t).forEach((x, i) => {
      mean[i] += x / tokens;
    });
  }
  const x = new Float32Array(tokens * d);
  for (let t = 0; t < tokens; t++) x.set(next(t), t * d);
  return { x, mean };
}
