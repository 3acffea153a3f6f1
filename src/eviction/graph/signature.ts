/** SimHash (Charikar, STOC 2002): vectors at a small angle have the same signature with high probability. */

const BITS = 12;

/** One bit per random direction. The directions are the same every time. */
export function signatureOf(vector: ArrayLike<number>): number {
  let bits = 0;
  for (let bit = 0; bit < BITS; bit++) {
    let sum = 0;
    for (let i = 0; i < vector.length; i++) sum += randomSign(bit, i) * vector[i];
    bits = (bits << 1) | Number(sum > 0);
  }
  return bits;
}

/** Directions with entries of 1 and -1, from a hash of the indices. */
function randomSign(bit: number, i: number): number {
  let x = Math.imul(i + 1, 0x9e3779b1) ^ Math.imul(bit + 1, 0x85ebca6b);
  x = Math.imul(x ^ (x >>> 15), 0xc2b2ae35);
  return (x ^ (x >>> 16)) & 1 ? 1 : -1;
}
