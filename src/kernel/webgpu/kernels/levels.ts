/**
 * Levels of a code book as bytes, four codes at a time: level = (byte - zeroPoint) x scale. Uniform codes are bytes
 * already. Symmetric levels (tq2 to tq4) are sums of one term per bit and per product of bits: a few additions per word
 * instead of a lookup table.
 */
import type { PageEncoding } from '../../page-layout.ts';
import type { Side } from './names.ts';
import { repeatByte } from './snippets.ts';
import type { Word } from './strips.ts';

type Levels = PageEncoding & { kind: 'levels' };

/** Bytes of keys are signed, bytes of values unsigned. */
export interface LevelBytes {
  scale: number;
  zeroPoint: number;
  text: string;
  of(word: Word): string;
}

/** Bytes of a code book, from the bits of four codes as `Word` has them; both bits of 2-bit codes are in `low`. */
export interface TableBytes extends LevelBytes {
  join(low: string, high: string): string;
}

/** Undefined where magnitudes are not such sums. */
export function levelBytes(side: Side, { levels, uniform, codes: { bits } }: Levels): LevelBytes | undefined {
  if (!uniform) return tableBytes(side, levels);
  // Two's complement in the top bits: an int8 of 2^(8 - bits) times the code. Values are offset binary.
  const max = 2 ** (8 - bits);
  const zeroPoint = side === 'key' ? -max / 2 : 128 - max / 2;
  return { scale: (2 * levels[0]) / max, zeroPoint, text: '', of: ({ top }) => top };
}

export function tableBytes(side: Side, levels: Float32Array): TableBytes | undefined {
  const bytes =
    levels.length === 2 ? signs(levels) : levels.length === 4 ? bitSums(side, levels) : magnitudes(side, levels);
  return bytes && { ...bytes, of: ({ low, high }) => bytes.join(low, high) };
}

type JoinedBytes = Omit<TableBytes, 'of'>;

/** Allowed relative error of a level. */
const MAX_RELATIVE_ERROR = 0.02;

/** One bit: the zero point is halfway. */
const signs = (levels: Float32Array): JoinedBytes => ({
  scale: levels[1] - levels[0],
  zeroPoint: 0.5,
  text: '',
  join: (_, high) => high,
});

/**
 * Four symmetric levels: each bit adds a constant, the upper about twice the lower. Bytes are below 128, so signed and
 * unsigned agree.
 */
function bitSums(side: Side, levels: Float32Array): JoinedBytes | undefined {
  const ratio = (levels[2] - levels[0]) / (levels[1] - levels[0]);
  // code x `factor`, plus `extra` where the lower bit is set: one multiplication.
  let [factor, extra, bestError] = [1, 0, Number.POSITIVE_INFINITY];
  for (let n = 1; 3 * n + 1 < 128; n++)
    for (const one of [0, 1]) {
      const error = Math.abs((2 * n) / (n + one) - ratio);
      if (error < bestError) [factor, extra, bestError] = [n, one, error];
    }
  if (bestError > MAX_RELATIVE_ERROR * ratio) return undefined;
  const max = 3 * factor + extra;
  return {
    scale: (levels[3] - levels[0]) / max,
    zeroPoint: max / 2,
    text: `/** The bytes of four levels, from the bits of four codes: each bit adds a constant. */
fn ${side}_bytes2(x: u32) -> u32 { return (x & 0x03030303u) * ${factor}u${extra ? ' + (x & 0x01010101u)' : ''}; }`,
    join: low => `${side}_bytes2(${low})`,
  };
}

/** Eight or sixteen levels: the upper half are magnitudes, the lower half their mirror image. */
function magnitudes(side: Side, levels: Float32Array): JoinedBytes | undefined {
  const bits = Math.log2(levels.length);
  const fit = fitMagnitudes([...levels.subarray(levels.length / 2)]);
  if (!fit) return undefined;
  const { scale, first, step, extra } = fit;
  const rest = repeatByte(2 ** (bits - 1) - 1);
  const [base, zeroPoint] = side === 'key' ? [first, -0.5] : [first + 128, 127.5];
  // Selectors of the upper half of magnitudes and of its bits: the factors of `extra`.
  const selectors = bits === 3 ? ['b', '(b & m)'] : ['c', '(c & m)', '(c & b)', '(c & b & m)'];
  return {
    scale,
    zeroPoint,
    text: `/** The bytes of four levels, from the lower bits and the highest bit of four codes. The highest is the sign. */
fn ${side}_bytes${bits}(low: u32, high: u32) -> u32 {
  let sign = high * 255u;
  let m = (low ^ sign ^ ${rest}) & ${rest};
  ${bits === 3 ? 'let b = (m >> 1u) & 0x01010101u;' : 'let b = m >> 1u; let c = (m >> 2u) & 0x01010101u;'}
  let sum = m * ${step}u + ${repeatByte(base)} + ${extra.map((n, k) => `${selectors[k]} * ${n}u`).join(' + ')};
  return ~(sum ^ sign);
}`,
    join: (low, high) => `${side}_bytes${bits}(${low}, ${high})`,
  };
}

/**
 * Fits magnitudes to integers up to 127: `first` + n `step`, plus `extra` in the upper half (for all, for the lower
 * bit, for the upper bit, for both). The scale is the one that fits the lower half best; byte n stands for n + 1/2.
 */
function fitMagnitudes(magnitudes: readonly number[]) {
  const half = magnitudes.length / 2;
  const max = magnitudes[magnitudes.length - 1];
  let best: { scale: number; first: number; step: number; extra: number[] } | undefined;
  let bestError = Number.POSITIVE_INFINITY;
  for (let top = 127.5; top >= 90; top -= 1 / 16) {
    const scale = max / top;
    const exact = magnitudes.map(level => level / scale - 0.5);
    const step = Math.round((exact[half - 1] - exact[0]) / (half - 1));
    for (const first of [Math.floor(exact[0]), Math.ceil(exact[0])]) {
      const upper = exact.slice(half).map((x, n) => Math.round(x) - first - (half + n) * step);
      const [a, b, c, d] = upper;
      const extra = half === 2 ? [a, b - a] : [a, b - a, c - a, d + a - b - c];
      // Small magnitudes are more frequent.
      const error = exact.reduce((sum, x, n) => {
        const difference = first + n * step + (upper[n - half] ?? 0) - x;
        return sum + (difference * scale) ** 2 * Math.exp(-3.6 * (magnitudes[n] / max) ** 2);
      }, 0);
      if ([first, ...extra].every(x => x >= 0) && error < bestError) {
        best = { scale, first, step, extra };
        bestError = error;
      }
    }
  }
  return best;
}
