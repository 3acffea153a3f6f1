/** Ranges of code points as sequences of byte ranges: UTF-8 encodes ranges of equal length as products of byte ranges. */
import type { Range } from './expression.ts';

/** The last code point of each encoded length. */
const LAST = [0x7f, 0x7ff, 0xffff, 0x10ffff];
const SURROGATES: Range = [0xd800, 0xdfff];

export function utf8Ranges(ranges: readonly Range[]): Range[][] {
  return ranges.flatMap(([low, high]) => {
    const pieces: Range[] = [
      [low, Math.min(high, SURROGATES[0] - 1)],
      [Math.max(low, SURROGATES[1] + 1), high],
    ];
    return pieces.flatMap(([first, last]) => (first <= last ? splitByLength(first, last) : []));
  });
}

function splitByLength(low: number, high: number): Range[][] {
  const result: Range[][] = [];
  let first = low;
  for (const last of LAST) {
    if (first > last) continue;
    const end = Math.min(high, last);
    if (first <= end) result.push(...splitBytes(encode(first), encode(end)));
    first = Math.max(first, last + 1);
  }
  return result;
}

/** All byte sequences between two of equal length. */
function splitBytes(low: readonly number[], high: readonly number[]): Range[][] {
  const [a, ...lowRest] = low;
  const [b, ...highRest] = high;
  if (lowRest.length === 0) return [[[a, b]]];
  const full: Range[] = lowRest.map(() => [0x80, 0xbf]);
  if (a === b) return splitBytes(lowRest, highRest).map(rest => [[a, a], ...rest]);
  const result: Range[][] = [];
  const lowIsFull = lowRest.every(byte => byte === 0x80);
  const highIsFull = highRest.every(byte => byte === 0xbf);
  const lastBytes = lowRest.map(() => 0xbf);
  const firstBytes = lowRest.map(() => 0x80);
  if (!lowIsFull) result.push(...splitBytes(lowRest, lastBytes).map((rest): Range[] => [[a, a], ...rest]));
  const [from, to] = [lowIsFull ? a : a + 1, highIsFull ? b : b - 1];
  if (from <= to) result.push([[from, to], ...full]);
  if (!highIsFull) result.push(...splitBytes(firstBytes, highRest).map((rest): Range[] => [[b, b], ...rest]));
  return result;
}

function encode(code: number): number[] {
  if (code <= 0x7f) return [code];
  if (code <= 0x7ff) return [0xc0 | (code >> 6), 0x80 | (code & 63)];
  if (code <= 0xffff) return [0xe0 | (code >> 12), 0x80 | ((code >> 6) & 63), 0x80 | (code & 63)];
  return [0xf0 | (code >> 18), 0x80 | ((code >> 12) & 63), 0x80 | ((code >> 6) & 63), 0x80 | (code & 63)];
}
