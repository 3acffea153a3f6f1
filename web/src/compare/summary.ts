/** What a comparison shows, in a few words. */
import type { ScoredToken } from '../engine/engine.ts';
import { texts } from '../texts/index.ts';
import { type Difference, levelOf } from './difference.ts';

interface Compared {
  codec: string;
  bytes: number;
  answers: readonly (readonly ScoredToken[])[];
}

/** Factors closer to 1 are not worth a sentence. */
const WORTH_SAYING = 1.05;

export function summarize(sides: readonly [Compared, Compared], differences: readonly Difference[]): string {
  const [less, more] = [...sides].sort((a, b) => a.bytes - b.bytes) as [Compared, Compared];
  const ratio = more.bytes / less.bytes;
  const probabilities = differences.flatMap(difference => difference.probabilities);
  const asSure = probabilities.filter(([left, right]) => levelOf(left, right) === 0).length;
  return [
    ratio > WORTH_SAYING && texts.compare.lessMemory(less.codec, ratio, more.codec),
    differences.length > 1 ? describeAnswers(differences) : describeAnswer(sides, differences[0]!),
    texts.compare.asLikely(asSure, probabilities.length),
  ]
    .filter(Boolean)
    .join(' ');
}

function describeAnswers(differences: readonly Difference[]): string {
  const same = differences.filter(({ first }) => first === undefined).length;
  return texts.compare.sameAnswers(same, differences.length);
}

function describeAnswer([left, right]: readonly [Compared, Compared], { first, probabilities }: Difference): string {
  if (first === undefined) return texts.compare.sameTokens(probabilities.length);
  const word = ({ answers }: Compared) => answers[0]?.[first]?.text.trim() ?? '';
  return texts.compare.parts(first, left.codec, word(left), right.codec, word(right));
}
