/**
 * Levels of a table as bytes, four codes at a time: level = (byte - middle) x unit. Evenly spaced codes are bytes already. Of
 * symmetric levels (tq2 to tq4), magnitudes are sums of what single bits and their products add, so that a word takes a few
 * additions and no table.
 */
import type { PageFragment } from '../../fragment.ts';
import type { Word } from './strips.ts';
import { fours } from './text.ts';

type Levels = PageFragment & { kind: 'levels' };

/** How bytes stand for levels: of keys, which are signed, or of values, which are not. */
export interface Bytes {
  unit: number;
  middle: number;
  text: string;
  of(word: Word): string;
}

/** Those of a table, from the bits of four codes as `Word` has them; two bits are both in `low`. */
export interface TableBytes extends Bytes {
  join(low: string, high: string): string;
}

type Side = 'key' | 'value';

/** None where magnitudes are not such sums. */
export function bytesOf(side: Side, { levels, uniform, codes: { bits } }: Levels): Bytes | undefined {
  if (!uniform) return tableBytes(side, levels);
  // Two's complement at the top of a byte: an int8 that is 2^(8 - bits) as large. Values are counted from the least on.
  const most = 2 ** (8 - bits);
  const middle = side === 'key' ? -most / 2 : 128 - most / 2;
  return { unit: (2 * levels[0]) / most, middle, text: '', of: ({ top }) => top };
}

export function tableBytes(side: Side, levels: Float32Array): TableBytes | undefined {
  const made =
    levels.length === 2 ? signs(levels) : levels.length === 4 ? bitSums(side, levels) : magnitudes(side, levels);
  return made && { ...made, of: ({ low, high }) => made.join(low, high) };
}

type Joined = Omit<TableBytes, 'of'>;

/** A share of a level that bytes may be off by. */
const FAR = 0.02;

/** A bit, of which halfway is 0. */
const signs = (levels: Float32Array): Joined => ({
  unit: levels[1] - levels[0],
  middle: 0.5,
  text: '',
  join: (_, high) => high,
});

/**
 * Four symmetric levels: each bit adds its own, the upper one nearly twice as much as the lower. Bytes are below 128, so they are
 * the same signed.
 */
function bitSums(side: Side, levels: Float32Array): Joined | undefined {
  const ratio = (levels[2] - levels[0]) / (levels[1] - levels[0]);
  // A code times `by`, and one more where the lower bit is set: one multiplication.
  let [by, more, least] = [1, 0, Number.POSITIVE_INFINITY];
  for (let n = 1; 3 * n + 1 < 128; n++)
    for (const one of [0, 1]) {
      const error = Math.abs((2 * n) / (n + one) - ratio);
      if (error < least) [by, more, least] = [n, one, error];
    }
  if (least > FAR * ratio) return undefined;
  const most = 3 * by + more;
  return {
    unit: (levels[3] - levels[0]) / most,
    middle: most / 2,
    text: `fn ${side}_bytes2(x: u32) -> u32 { return (x & 0x03030303u) * ${by}u${more ? ' + (x & 0x01010101u)' : ''}; }`,
    join: low => `${side}_bytes2(${low})`,
  };
}

/** Eight or sixteen: codes from the middle on are magnitudes, the others are the same ones turned about. */
function magnitudes(side: Side, levels: Float32Array): Joined | undefined {
  const bits = Math.log2(levels.length);
  const found = fitted([...levels.subarray(levels.length / 2)]);
  if (!found) return undefined;
  const { unit, first, step, more } = found;
  const rest = fours(2 ** (bits - 1) - 1);
  const [base, middle] = side === 'key' ? [first, -0.5] : [first + 128, 127.5];
  // Whether a byte is in the upper half of magnitudes, and with which bits: what `more` is of.
  const which = bits === 3 ? ['b', '(b & m)'] : ['c', '(c & m)', '(c & b)', '(c & b & m)'];
  return {
    unit,
    middle,
    text: `fn ${side}_bytes${bits}(low: u32, high: u32) -> u32 {
  let sign = high * 255u;
  let m = (low ^ sign ^ ${rest}) & ${rest};
  ${bits === 3 ? 'let b = (m >> 1u) & 0x01010101u;' : 'let b = m >> 1u; let c = (m >> 2u) & 0x01010101u;'}
  let sum = m * ${step}u + ${fours(base)} + ${more.map((n, k) => `${which[k]} * ${n}u`).join(' + ')};
  return ~(sum ^ sign);
}`,
    join: (low, high) => `${side}_bytes${bits}(${low}, ${high})`,
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
