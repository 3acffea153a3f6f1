/** Random numbers for sampling: the generator of the codecs, with any integer as its seed. */
import { createRandom as createWords } from '../codec/parts/random.ts';

export interface Random {
  readonly seed: number;
  /** A number in [0, 1) with 53 random bits. */
  next(): number;
}

export function createRandom(seed: number = randomSeed()): Random {
  // The generator takes a seed of 32 bits; the higher bits are mixed in.
  const words = createWords((seed >>> 0) ^ Math.imul(Math.floor(seed / 2 ** 32), 0x85ebca6b));
  return { seed, next: () => ((words.uint32() >>> 5) * 2 ** 26 + (words.uint32() >>> 6)) / 2 ** 53 };
}

export function randomSeed(): number {
  return crypto.getRandomValues(new Uint32Array(1))[0]!;
}
