/** Divides texts into rows of tokens to calibrate on, and what is held out to measure the result. */

import type { TextSource } from '../plan/profile.ts';
import { InputError } from '../util/errors.ts';
import { formatCount } from '../util/units.ts';

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
  /** Without `tokens`: max tokens of built-in texts, and as many of given ones. */
  defaultTokens: number;
  /** With less than two rows per built-in text, rows are mixed from this many parts, so that they have many kinds. Default: 1. */
  minParts?: number;
}

/**
 * Built-in texts are read by their shares, in parts of rows that are spread over the text. Given texts are read from their
 * start, one row of each in turn, so that their later parts can be used to evaluate the result.
 */
export function createRows(
  builtIn: readonly BuiltInText[],
  given: readonly TokenizedText[],
  { context, bos, tokens, defaultTokens, minParts = 1 }: RowOptions,
): CalibrationRows {
  const texts = [...builtIn, ...given];
  const start = bos === undefined ? [] : [bos];
  const length = context - start.length;
  const longest = texts.reduce((a, b) => (b.ids.length > a.ids.length ? b : a));
  const heldOutTokens = (text: TokenizedText) => (text === longest ? length : Math.floor(length / texts.length));
  const split = (text: TokenizedText, partLength = length) => splitText(text, partLength, heldOutTokens(text));
  const maxRows = (tokens: number) => Math.max(1, Math.round(tokens / context));
  const maxGiven = tokens === undefined ? defaultTokens : builtIn.length > 0 ? tokens / 2 : tokens;
  const givenRows = inTurn(given.map(text => split(text))).slice(0, maxRows(maxGiven));
  const builtInRows = Math.max(0, tokens === undefined ? maxRows(defaultTokens) : maxRows(tokens) - givenRows.length);
  const partsPerRow = builtInRows < 2 * builtIn.length ? Math.ceil(minParts / Math.max(1, builtInRows)) : 1;
  const partLength = Math.ceil(length / partsPerRow);
  const counts = divide(
    builtInRows * partsPerRow,
    builtIn.map(({ share }) => share),
  );
  const parts = builtIn.flatMap((text, i) => spread(split(text, partLength), counts[i]));
  const rows = [...combine(parts, partsPerRow), ...givenRows.map(row => [row])];
  if (rows.length === 0)
    throw new InputError(
      option =>
        `The text is too short: calibration needs two rows of ${formatCount(context)} tokens, one of them to measure the ` +
        `result. Use more text or a smaller ${option('context')}, or also use the built-in text.`,
    );
  return {
    rows: rows.map(parts => [...start, ...parts.flatMap(({ ids }) => ids).slice(0, length)]),
    heldOut: texts.map(text => [...start, ...text.ids.slice(-heldOutTokens(text))]),
    sources: texts.flatMap(text => {
      const share = (row: readonly TextPart[]) => row.filter(part => part.text === text).length / row.length;
      const count = rows.reduce((sum, row) => sum + share(row), 0);
      return count > 0 ? [{ name: text.name, tokens: Math.round(count * context) }] : [];
    }),
  };
}

interface TextPart {
  text: TokenizedText;
  ids: readonly number[];
}

/** The parts of a text, without its last `heldOut` tokens. */
function splitText(text: TokenizedText, length: number, heldOut: number): TextPart[] {
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
    end = Math.round((count * sum) / total);
    return end - start;
  });
}

/** At most `count` items at equal distances. */
function spread<T>(items: readonly T[], count: number): T[] {
  const taken = Math.min(count, items.length);
  return Array.from({ length: taken }, (_, i) => items[Math.floor(((i + 0.5) * items.length) / taken)]);
}

/** Rows of `size` items each, which are far apart in the list. */
function combine<T>(items: readonly T[], size: number): T[][] {
  const rows = Math.floor(items.length / size);
  return Array.from({ length: rows }, (_, row) => Array.from({ length: size }, (_, i) => items[row + i * rows]));
}

/** The first item of every list, then the second of each, and so on. */
function inTurn<T>(lists: readonly (readonly T[])[]): T[] {
  const longest = Math.max(0, ...lists.map(({ length }) => length));
  return Array.from({ length: longest }, (_, i) => lists.flatMap(list => list.slice(i, i + 1))).flat();
}
