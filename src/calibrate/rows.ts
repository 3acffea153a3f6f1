/** Divides texts into rows of tokens to calibrate on, and what is held out to measure the result. */
import { InputError } from '../errors.ts';
import type { TextSource } from '../plan/profile.ts';
import { formatCount } from '../units.ts';

export interface TokenizedText {
  name: string;
  ids: readonly number[];
}

/** A text of the package, and its share of the rows. */
export interface BuiltInText extends TokenizedText {
  share: number;
}

export interface CalibrationRows {
  rows: number[][];
  /** The end of every text: sensitivities are measured on all of them, divergences on the longest, which is a whole row. */
  heldOut: number[][];
  /** What the rows were taken from. */
  sources: TextSource[];
}

export interface RowOptions {
  /** Tokens per row. */
  context: number;
  /** The first token of every row, if the model needs one. */
  bos?: number;
  /** Max tokens of all rows; at most half of them from given texts, if there are others. */
  tokens?: number;
}

/** Defaults. Twice as much text reduces the divergence by 7 %. */
const BUILT_IN_TOKENS = 81920;
const GIVEN_TOKENS = 65536;

/**
 * Built-in texts are read by their shares, in rows that are spread over the text. Given texts are read from their start, one row of each in turn, so
 * that their later parts can be used to evaluate the result.
 */
export function createRows(
  builtIn: readonly BuiltInText[],
  given: readonly TokenizedText[],
  { context, bos, tokens }: RowOptions,
): CalibrationRows {
  const texts = [...builtIn, ...given];
  const start = bos === undefined ? [] : [bos];
  const length = context - start.length;
  const longest = texts.reduce((a, b) => (b.ids.length > a.ids.length ? b : a));
  const heldOutTokens = (text: TokenizedText) => (text === longest ? length : Math.floor(length / texts.length));
  const split = (text: TokenizedText) => splitText(text, length, heldOutTokens(text));
  const maxRows = (tokens: number) => Math.max(1, Math.round(tokens / context));
  const maxGiven = tokens === undefined ? GIVEN_TOKENS : builtIn.length > 0 ? tokens / 2 : tokens;
  const givenRows = inTurn(given.map(split)).slice(0, maxRows(maxGiven));
  const builtInRows = tokens === undefined ? maxRows(BUILT_IN_TOKENS) : maxRows(tokens) - givenRows.length;
  const counts = divide(
    builtInRows,
    builtIn.map(({ share }) => share),
  );
  const rows = [...builtIn.flatMap((text, i) => spread(split(text), counts[i])), ...givenRows];
  if (rows.length === 0)
    throw new InputError(
      `The text is too short: calibration needs two rows of ${formatCount(context)} tokens, one of them to measure the ` +
        'result. Use more text or a smaller context, or also use the built-in text.',
    );
  return {
    rows: rows.map(({ ids }) => [...start, ...ids]),
    heldOut: texts.map(text => [...start, ...text.ids.slice(-heldOutTokens(text))]),
    sources: texts.flatMap(text => {
      const count = rows.filter(row => row.text === text).length;
      return count > 0 ? [{ name: text.name, tokens: count * context }] : [];
    }),
  };
}

/** The rows of a text, without its last `heldOut` tokens. */
function splitText(text: TokenizedText, length: number, heldOut: number) {
  const rows = Math.max(0, Math.floor((text.ids.length - heldOut) / length));
  return Array.from({ length: rows }, (_, i) => ({ text, ids: text.ids.slice(i * length, (i + 1) * length) }));
}

/** `count` as a sum of integers that are proportional to the shares. */
function divide(count: number, shares: readonly number[]): number[] {
  const total = shares.reduce((sum, share) => sum + share, 0);
  let [sum, end] = [0, 0];
  return shares.map(share => {
    const start = end;
    sum += share;
    end = Math.round((Math.max(0, count) * sum) / total);
    return end - start;
  });
}

/** At most `count` items at equal distances. */
function spread<T>(items: readonly T[], count: number): T[] {
  const taken = Math.min(count, items.length);
  return Array.from({ length: taken }, (_, i) => items[Math.floor(((i + 0.5) * items.length) / taken)]);
}

/** The first item of every list, then the second of each, and so on. */
function inTurn<T>(lists: readonly (readonly T[])[]): T[] {
  const longest = Math.max(0, ...lists.map(({ length }) => length));
  return Array.from({ length: longest }, (_, i) => lists.flatMap(list => list.slice(i, i + 1))).flat();
}
