/** What is compared in numbers, for the bars of the page and of the picture. */
import { formatBytes } from '../format.ts';
import { texts } from '../texts/index.ts';
import type { Pane } from './comparison.ts';

export interface Measure {
  title: string;
  of(pane: Pane): number;
  format(value: number): string;
}

const orDash = (format: (value: number) => string) => (value: number) => (value > 0 ? format(value) : '–');

const MEMORY: Measure = { title: texts.compare.memory, of: pane => pane.bytes, format: orDash(formatBytes) };
const SPEEDS: readonly Measure[] = [
  { title: texts.compare.readingSpeed, of: pane => rateOf(pane.reading), format: orDash(texts.rate) },
  { title: texts.compare.answeringSpeed, of: pane => rateOf(pane.answering), format: orDash(texts.rate) },
];

/** Short prompts and answers have no speed. */
export const measuresOf = (panes: readonly Pane[]): readonly Measure[] => [
  MEMORY,
  ...SPEEDS.filter(({ of }) => panes.some(pane => of(pane) > 0)),
];

/** How many tokens took how long. */
export interface Pace {
  tokens: number;
  seconds: number;
}

/** A few tokens tell nothing of the speed. */
const MIN_TOKENS = 16;

/** Tokens per second; 0: not known. */
export const rateOf = ({ tokens, seconds }: Pace): number =>
  tokens >= MIN_TOKENS && seconds > 0 ? tokens / seconds : 0;

/** Values on one scale: their share of the largest one. */
export const shareOf = (values: readonly number[], i: number): number => {
  const largest = Math.max(...values);
  return largest > 0 ? values[i]! / largest : 0;
};
