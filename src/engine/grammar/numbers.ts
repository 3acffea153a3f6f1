/** Numbers between bounds, as expressions over their digits. */
import { character, choice, type Expression, optional, repeat, sequence, text } from './expression.ts';
import type { Spend } from './work.ts';

export interface Bounds {
  minimum?: number;
  maximum?: number;
  exclusiveMinimum?: number;
  exclusiveMaximum?: number;
}

/** Doubles tell decimals of 15 digits apart, and integers up to that are exact. */
const MAX_DIGITS = 15;
const LARGEST = 10n ** BigInt(MAX_DIGITS) - 1n;
/** Integers of 64 bits: doubles round them, which does not take them beyond a bound. */
const MAX_INTEGER_DIGITS = 20;
const LARGEST_INTEGER = 10n ** BigInt(MAX_INTEGER_DIGITS) - 1n;
/** Decimal places of numbers with bounds. */
const MAX_PLACES = 6;
/** Steps of a number of decimal places, and of a digit of a bound. */
const PLACE_WORK = 50;
const DIGIT_WORK = 15;

const digits = (min: number, max = min): Expression => repeat(character([48, 57]), min, max);
const digit = (low: string, high: string): Expression => character([low.charCodeAt(0), high.charCodeAt(0)]);
const anyNatural = choice(text('0'), sequence(digit('1', '9'), digits(0, MAX_INTEGER_DIGITS - 1)));

export const anyInteger: Expression = choice(
  text('0'),
  sequence(optional(text('-')), digit('1', '9'), digits(0, MAX_INTEGER_DIGITS - 1)),
);

export const anyNumber: Expression = sequence(
  optional(text('-')),
  anyNatural,
  optional(sequence(text('.'), digits(1, MAX_DIGITS))),
  optional(sequence(character([69, 69], [101, 101]), optional(character([43, 43], [45, 45])), digits(1, 2))),
);

export const isBounded = ({ minimum, maximum, exclusiveMinimum, exclusiveMaximum }: Bounds): boolean =>
  [minimum, maximum, exclusiveMinimum, exclusiveMaximum].some(bound => bound !== undefined);

/** The decimal places of the multiples of 1, 0.1, 0.01 and so on; undefined for other steps, and very small ones. */
export function decimalPlaces(step: number): number | undefined {
  const places = Math.round(-Math.log10(step));
  return places >= 0 && places <= MAX_PLACES && Number(`1e-${places}`) === step ? places : undefined;
}

/** Numbers of up to `places` decimal places between the bounds; undefined if there are none. */
export function numbersBetween(bounds: Bounds, spend: Spend, places = MAX_PLACES): Expression | undefined {
  const items: Expression[] = [];
  for (let place = 0; place <= places; place++) {
    spend(PLACE_WORK);
    // Fewer digits before the point for more after it: doubles must tell them apart.
    const largest = place === 0 ? LARGEST_INTEGER : LARGEST / 10n;
    const low = max(lowest(bounds, place), -largest);
    const high = min(highest(bounds, place), largest);
    if (low > high) continue;
    if (low < 0n) {
      const [from, to] = [max(1n, -high), -low];
      if (from <= to) items.push(sequence(text('-'), decimalsBetween(from, to, place, spend)));
    }
    if (high >= 0n) items.push(decimalsBetween(max(0n, low), high, place, spend));
  }
  return items.length > 0 ? choice(...items) : undefined;
}

const lowest = ({ minimum, exclusiveMinimum }: Bounds, place: number): bigint => {
  const inclusive = minimum === undefined ? -LARGEST_INTEGER : scale(minimum, place).ceil;
  if (exclusiveMinimum === undefined) return inclusive;
  const exclusive = scale(exclusiveMinimum, place).floor + 1n;
  // What is next to a large bound may be rounded to it.
  return max(inclusive, exclusive < -LARGEST ? -LARGEST : exclusive > LARGEST ? LARGEST_INTEGER + 1n : exclusive);
};

const highest = ({ maximum, exclusiveMaximum }: Bounds, place: number): bigint => {
  const inclusive = maximum === undefined ? LARGEST_INTEGER : scale(maximum, place).floor;
  if (exclusiveMaximum === undefined) return inclusive;
  const exclusive = scale(exclusiveMaximum, place).ceil - 1n;
  return min(inclusive, exclusive > LARGEST ? LARGEST : exclusive < -LARGEST ? -LARGEST_INTEGER - 1n : exclusive);
};

/** A number times 10^place, rounded both ways. */
function scale(value: number, place: number): { floor: bigint; ceil: bigint } {
  const [, sign, whole, fraction = '', exponent = '0'] = /^(-?)(\d+)(?:\.(\d+))?(?:e([+-]\d+))?$/.exec(String(value))!;
  const shift = Number(exponent) - fraction.length + place;
  const unscaled = BigInt(sign + whole + fraction);
  if (shift >= 0) {
    const exact = unscaled * 10n ** BigInt(shift);
    return { floor: exact, ceil: exact };
  }
  const divisor = 10n ** BigInt(-shift);
  const quotient = unscaled / divisor;
  if (quotient * divisor === unscaled) return { floor: quotient, ceil: quotient };
  return unscaled < 0n ? { floor: quotient - 1n, ceil: quotient } : { floor: quotient, ceil: quotient + 1n };
}

/** Numbers from `low` to `high`, both in units of the last decimal place. */
function decimalsBetween(low: bigint, high: bigint, place: number, spend: Spend): Expression {
  if (place === 0) return naturalsBetween(low, high, spend);
  const unit = 10n ** BigInt(place);
  const split = (value: bigint) => ({ whole: value / unit, rest: String(value % unit).padStart(place, '0') });
  const [from, to] = [split(low), split(high)];
  const decimals = (whole: bigint, first: string, last: string) =>
    sequence(text(`${whole}.`), sameLengthBetween(first, last, spend));
  const [zeros, nines] = ['0'.repeat(place), '9'.repeat(place)];
  if (from.whole === to.whole) return decimals(from.whole, from.rest, to.rest);
  const items = [decimals(from.whole, from.rest, nines), decimals(to.whole, zeros, to.rest)];
  if (from.whole + 1n < to.whole)
    items.push(sequence(naturalsBetween(from.whole + 1n, to.whole - 1n, spend), text('.'), digits(place)));
  return choice(...items);
}

function naturalsBetween(low: bigint, high: bigint, spend: Spend): Expression {
  const items: Expression[] = [];
  const [first, last] = [String(low), String(high)];
  for (let length = first.length; length <= last.length; length++) {
    const from = length === first.length ? first : `1${'0'.repeat(length - 1)}`;
    const to = length === last.length ? last : '9'.repeat(length);
    items.push(sameLengthBetween(from, to, spend));
  }
  return choice(...items);
}

function sameLengthBetween(low: string, high: string, spend: Spend): Expression {
  spend(DIGIT_WORK);
  if (low === high) return text(low);
  const rest = low.length - 1;
  if (/^0*$/.test(low.slice(1)) && /^9*$/.test(high.slice(1))) return sequence(digit(low[0], high[0]), digits(rest));
  if (low[0] === high[0]) return sequence(text(low[0]), sameLengthBetween(low.slice(1), high.slice(1), spend));
  const next = (character: string, by: number) => String(Number(character) + by);
  const items = [
    sequence(text(low[0]), sameLengthBetween(low.slice(1), '9'.repeat(rest), spend)),
    sequence(text(high[0]), sameLengthBetween('0'.repeat(rest), high.slice(1), spend)),
  ];
  const [from, to] = [next(low[0], 1), next(high[0], -1)];
  if (from <= to) items.push(sequence(digit(from, to), digits(rest)));
  return choice(...items);
}

const max = (a: bigint, b: bigint): bigint => (a > b ? a : b);
const min = (a: bigint, b: bigint): bigint => (a < b ? a : b);
