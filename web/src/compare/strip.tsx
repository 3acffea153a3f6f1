/** A cell per token of the answer: how much its probability differs between the two caches. */
import type { ScoredToken } from '../engine/engine.ts';
import { texts } from '../texts/index.ts';
import { LEVELS, levelOf } from './difference.ts';

interface StripProps {
  probabilities: readonly (readonly [number, number])[];
  tokens: readonly ScoredToken[];
  /** In words, for those who do not see it. */
  summary: string;
}

export function Strip({ probabilities, tokens, summary }: StripProps) {
  return (
    <>
      <div class="strip" role="img" aria-label={summary}>
        {probabilities.map(([left, right], i) => (
          <span
            key={i}
            class={`level-${levelOf(left, right)}`}
            title={texts.compare.token(tokens[i]!.text.trim(), percent(left), percent(right))}
          />
        ))}
      </div>
      <ul class="legend">
        {LEVELS.map(({ label }, level) => (
          <li key={label}>
            <span class={`swatch level-${level}`} /> {label}
          </li>
        ))}
      </ul>
    </>
  );
}

const percent = (probability: number): string => `${(100 * probability).toFixed(1)} %`;
