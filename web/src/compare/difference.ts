/** How two answers to the same question differ, token by token. */
import type { ScoredToken } from '../engine/engine.ts';
import { texts } from '../texts/index.ts';

export interface Difference {
  /** Index of the first token that differs; undefined if none does. */
  first?: number;
  /**
   * For each token of the left answer: its probability on the left and on the right. Ends with the first token that
   * differs: from there on, the two read different texts.
   */
  probabilities: readonly (readonly [number, number])[];
  /** Whether a token of the left, or of the right, is missing on the other side. */
  left: readonly boolean[];
  right: readonly boolean[];
}

/** How much two probabilities of a token differ at most, in plain words. */
export const LEVELS: readonly { below: number; label: string }[] = [
  { below: 0.01, label: texts.compare.levels.asSure },
  { below: 0.05, label: texts.compare.levels.within5 },
  { below: 0.2, label: texts.compare.levels.within20 },
  { below: Number.POSITIVE_INFINITY, label: texts.compare.levels.more },
];

export const levelOf = (left: number, right: number): number =>
  LEVELS.findIndex(({ below }) => Math.abs(left - right) < below);

export function differenceOf(left: readonly ScoredToken[], right: readonly ScoredToken[]): Difference {
  const length = Math.min(left.length, right.length);
  let first = 0;
  while (first < length && left[first]!.text === right[first]!.text) first++;
  const isDifferent = first < length;
  const compared = isDifferent ? first + 1 : length;
  const marks = markUnmatched(left, right);
  return {
    ...(isDifferent && { first }),
    probabilities: left
      .slice(0, compared)
      .map(({ text, logprob }, i) => [Math.exp(logprob), Math.exp(logprobOf(text, right[i]!))] as const),
    ...marks,
  };
}

/** If it is not among the most likely ones, it is at most as likely as the last of them. */
function logprobOf(text: string, { text: chosen, logprob, top }: ScoredToken): number {
  if (text === chosen) return logprob;
  return top.find(other => other.text === text)?.logprob ?? Math.min(logprob, ...top.map(other => other.logprob));
}

/** Tokens outside of the longest common subsequence. */
function markUnmatched(left: readonly ScoredToken[], right: readonly ScoredToken[]) {
  const width = right.length + 1;
  const lengths = new Uint16Array((left.length + 1) * width);
  for (let i = left.length - 1; i >= 0; i--)
    for (let j = right.length - 1; j >= 0; j--)
      lengths[i * width + j] =
        left[i]!.text === right[j]!.text
          ? lengths[(i + 1) * width + j + 1]! + 1
          : Math.max(lengths[(i + 1) * width + j]!, lengths[i * width + j + 1]!);
  const unmatched = { left: left.map(() => true), right: right.map(() => true) };
  for (let i = 0, j = 0; i < left.length && j < right.length; )
    if (left[i]!.text === right[j]!.text) {
      unmatched.left[i++] = false;
      unmatched.right[j++] = false;
    } else if (lengths[(i + 1) * width + j]! >= lengths[i * width + j + 1]!) i++;
    else j++;
  return unmatched;
}
