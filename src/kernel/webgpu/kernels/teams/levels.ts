/**
 * Levels of a table as bytes, four codes at a time: level = (byte - middle) x unit. Evenly spaced codes are bytes already. Of
 * symmetric levels (tq2 to tq4), magnitudes are sums of what single bits and their products add, so that a word takes a few
 * additions and no table.
 */
import type { PageFragment } from '../../../fragment.ts';
import type { Word } from '../strips.ts';

type Levels = PageFragment & { kind: 'levels' };

/** How bytes stand for levels: of keys, which are signed, or of values, which are not. */
export interface Bytes {
  unit: number;
  middle: number;
  text: string;
  of(word: Word): string;
}

const fours = (byte: number) => `0x${byte.toString(16).padStart(2, '0').repeat(4)}u`;

/** None where magnitudes are not such sums. */
export function bytesOf(side: 'key' | 'value', { levels, uniform, codes: { bits } }: Levels): Bytes | undefined {
  const none = { text: '' };
  if (uniform) {
    const step = 2 * levels[0];
    const half = 2 ** (bits - 1);
    // Two's complement at the top of a byte: an int8 that is 2^(8 - bits) as large.
    return side === 'key'
      ? { ...none, unit: step / 2 ** (8 - bits), middle: -(2 ** (7 - bits)), of: ({ top }) => top }
      : { ...none, unit: step, middle: half - 0.5, of: ({ codes }) => `(${codes} ^ ${fours(half)})` };
  }
  return bits <= 2 ? bitSums(side, levels) : magnitudes(side, levels, bits);
}

/** Up to four symmetric levels: each bit adds its own. Bytes are below 128, so they are the same signed. */
function bitSums(side: string, levels: Float32Array): Bytes {
  const most = levels[levels.length - 1] - levels[0];
  const ratio = levels.length === 2 ? 0 : (levels[2] - levels[0]) / (levels[1] - levels[0]);
  // The upper bit's share is even, since the bit is left where it is.
  let [low, high, least] = [1, 0, Number.POSITIVE_INFINITY];
  for (let n = 30; n <= 60; n++) {
    const even = 2 * Math.round((n * ratio) / 2);
    const error = Math.abs(even / n - ratio);
    if (n + even < 128 && error < least) [low, high, least] = [n, even, error];
  }
  return {
    unit: most / (low + high),
    middle: (low + high) / 2,
    text: `fn ${side}_bytes(x: u32) -> u32 { return (x & 0x01010101u) * ${low}u${high > 0 ? ` + (x & 0x02020202u) * ${high / 2}u` : ''}; }`,
    of: ({ codes }) => `${side}_bytes(${codes})`,
  };
}

/** Eight or sixteen: codes from the middle on are magnitudes, the others are the same ones turned about. */
function magnitudes(side: 'key' | 'value', levels: Float32Array, bits: number): Bytes | undefined {
  const found = fitted([...levels.subarray(levels.length / 2)]);
  if (!found) return undefined;
  const { unit, first, step, more } = found;
  const low = fours(2 ** (bits - 1) - 1);
  const [base, middle] = side === 'key' ? [first, -0.5] : [first + 128, 127.5];
  // Whether a byte is in the upper half of magnitudes, and with which bits: what `more` is of.
  const bit = bits === 3 ? 'let b = (m >> 1u) & 0x01010101u;' : 'let b = m >> 1u; let c = (m >> 2u) & 0x01010101u;';
  const which = bits === 3 ? ['b', '(b & m)'] : ['c', '(c & m)', '(c & b)', '(c & b & m)'];
  return {
    unit,
    middle,
    text: `fn ${side}_bytes(x: u32) -> u32 {
  let sign = ((x >> ${bits - 1}u) & 0x01010101u) * 255u;
  let m = (x ^ sign ^ ${low}) & ${low};
  ${bit}
  let sum = m * ${step}u + ${fours(base)} + ${more.map((n, k) => `${which[k]} * ${n}u`).join(' + ')};
  return ~(sum ^ sign);
}`,
    of: ({ codes }) => `${side}_bytes(${codes})`,
  };
}

/**
 * Magnitudes as whole numbers up to 127: `first` + n `step`, and `more` in their upper half: all of them, those with the lower
 * bit, with the upper bit, with both. The unit is the one in which the lower half, which is nearly even, fits best; a byte of n
 * stands for n + 1/2.
 */
function fitted(magnitudes: readonly number[]) {
  const half = magnitudes.length / 2;
  const most = magnitudes[magnitudes.length - 1];
  let best: { unit: number; first: number; step: number; more: number[] } | undefined;
  let least = Number.POSITIVE_INFINITY;
  for (let top = 127.5; top >= 90; top -= 1 / 16) {
    const unit = most / top;
    const exact = magnitudes.map(level => level / unit - 0.5);
    const step = Math.round((exact[half - 1] - exact[0]) / (half - 1));
    for (const first of [Math.floor(exact[0]), Math.ceil(exact[0])]) {
      const upper = exact.slice(half).map((x, n) => Math.round(x) - first - (half + n) * step);
      const [a, b, c, d] = upper;
      const more = half === 2 ? [a, b - a] : [a, b - a, c - a, d + a - b - c];
      // Small ones are many.
      const error = exact.reduce((sum, x, n) => {
        const off = first + n * step + (upper[n - half] ?? 0) - x;
        return sum + (off * unit) ** 2 * Math.exp(-3.6 * (magnitudes[n] / most) ** 2);
      }, 0);
      if ([first, ...more].every(x => x >= 0) && error < least) {
        best = { unit, first, step, more };
        least = error;
      }
    }
  }
  return best;
}
