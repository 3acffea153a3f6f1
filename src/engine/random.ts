/**
 * Seeded random numbers that are the same on every machine: xoshiro128** (Blackman and Vigna), its state filled by
 * splitmix32 from the seed.
 */
export interface Random {
  readonly seed: number;
  /** A number in [0, 1), of 53 random bits. */
  next(): number;
}

export function createRandom(seed: number = randomSeed()): Random {
  let mix = seed >>> 0;
  const splitmix = () => {
    mix = (mix + 0x9e3779b9) | 0;
    let z = mix;
    z = Math.imul(z ^ (z >>> 16), 0x85ebca6b);
    z = Math.imul(z ^ (z >>> 13), 0xc2b2ae35);
    return z ^ (z >>> 16);
  };
  const state = Int32Array.of(splitmix(), splitmix(), 0, 0);
  // Two words know the seed's low half, two both halves: every whole number is a seed of its own.
  mix ^= Math.floor(seed / 2 ** 32);
  state.set([splitmix(), splitmix()], 2);

  const next32 = () => {
    const [a, b, c, d] = state as unknown as [number, number, number, number];
    const result = Math.imul(rotate(Math.imul(b, 5), 7), 9) >>> 0;
    state[2] = c ^ a;
    state[3] = d ^ b;
    state[1] = b ^ state[2]!;
    state[0] = a ^ state[3]!;
    state[2] = state[2]! ^ (b << 9);
    state[3] = rotate(state[3]!, 11);
    return result;
  };

  return { seed, next: () => ((next32() >>> 5) * 2 ** 26 + (next32() >>> 6)) / 2 ** 53 };
}

export function randomSeed(): number {
  return crypto.getRandomValues(new Uint32Array(1))[0]!;
}

function rotate(x: number, bits: number): number {
  return (x << bits) | (x >>> (32 - bits));
}
