/** What a comparison shows, in a few words. */
import type { ScoredToken } from '../engine/engine.ts';
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
    ratio > WORTH_SAYING && `${less.codec} takes ${ratio.toFixed(1)} times less memory than ${more.codec}.`,
    differences.length > 1 ? describeAnswers(differences) : describeAnswer(sides, differences[0]!),
    `${asSure} of ${probabilities.length} tokens are as likely with both, within 1 %.`,
  ]
    .filter(Boolean)
    .join(' ');
}

function describeAnswers(differences: readonly Difference[]): string {
  const same = differences.filter(({ first }) => first === undefined).length;
  return same === differences.length
    ? `All ${same} answers are the same.`
    : `${same} of ${differences.length} answers are the same.`;
}

function describeAnswer([left, right]: readonly [Compared, Compared], { first, probabilities }: Difference): string {
  if (first === undefined) return `Both write the same ${probabilities.length} tokens.`;
  const word = ({ answers }: Compared) => `“${answers[0]?.[first]?.text.trim() ?? ''}”`;
  return `The same for ${first} tokens; then ${left.codec} writes ${word(left)} and ${right.codec} ${word(right)}.`;
}
