/** A cell per token of the answer: how much its probability differs between the two caches. */
import { useSignal } from '@preact/signals';
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
  const chosen = useSignal<number | undefined>(undefined);
  const textOf = (i: number): string => {
    const [left, right] = probabilities[i]!;
    return texts.compare.token(tokens[i]!.text.trim(), percent(left), percent(right));
  };
  const isShown = chosen.value !== undefined && chosen.value < tokens.length;
  return (
    <>
      {/* For a pointer. By keyboard and touch, the slider below tells the same. */}
      <div class="strip" role="img" aria-label={summary}>
        {probabilities.map(([left, right], i) => (
          <span key={i} class={`level-${levelOf(left, right)}`} title={textOf(i)} />
        ))}
      </div>
      {tokens.length > 0 && (
        <label class="strip-token">
          <span class="hidden">{texts.compare.chooseToken}</span>
          <input
            type="range"
            max={tokens.length - 1}
            value={isShown ? chosen.value : 0}
            aria-valuetext={textOf(isShown ? chosen.value! : 0)}
            onInput={event => {
              chosen.value = event.currentTarget.valueAsNumber;
            }}
          />
          <span class="quiet" aria-hidden="true">
            {isShown && textOf(chosen.value!)}
          </span>
        </label>
      )}
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
