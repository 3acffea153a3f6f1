/**
 * Seeded random numbers, identical on every machine, because the bytes of pages depend on them (signs, rotations). A
 * 32-bit counter with a murmur-style finalizer; not cryptographic.
 */
export interface Random {
  /** An integer in [0, 2^32). */
  uint32(): number;
  /** In [0, 1). */
  uniform(): number;
  /** Standard normal. */
  normal(): number;
}

export function createRandom(seed: number): Random {
  let counter = Math.imul(seed, 0x9e3779b9) >>> 0;
  const uint32 = () => {
    counter = (counter + 0x6d2b79f5) >>> 0;
    let z = counter;
    z = Math.imul(z ^ (z >>> 15), z | 1);
    z ^= z + Math.imul(z ^ (z >>> 7), z | 61);
    return (z ^ (z >>> 14)) >>> 0;
  };
  const uniform = () => uint32() / 2 ** 32;
  // Box-Muller; 1 - uniform keeps the logarithm finite.
  const normal = () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());
  return { uint32, uniform, normal };
}

export function normals(random: Random, length: number): Float32Array {
  const values = new Float32Array(length);
  for (let i = 0; i < length; i++) values[i] = random.normal();
  return values;
}
