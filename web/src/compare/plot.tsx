/** The divergence of two answers on a logarithmic scale, a bar per token. */
import type { ScoredToken } from '../engine/engine.ts';
import { formatSmall } from '../format.ts';
import type { Difference } from './difference.ts';

const WIDTH = 720;
const HEIGHT = 130;
const MAX_BAR = 14;
/** Powers of ten, in nats: the bottom and the top of the plot. */
const [LOWEST, HIGHEST] = [-6, 1];
const LINES: readonly [number, string][] = [
  [-4, '.0001'],
  [-2, '.01'],
  [0, '1 nat'],
];

/** Distance from the top. */
const yOf = (exponent: number): number =>
  HEIGHT * (1 - (Math.min(HIGHEST, Math.max(LOWEST, exponent)) - LOWEST) / (HIGHEST - LOWEST));

export function DivergencePlot({ difference, tokens }: { difference: Difference; tokens: readonly ScoredToken[] }) {
  const { nats, first } = difference;
  const mean = nats.reduce((sum, value) => sum + value, 0) / nats.length;
  const step = Math.min(MAX_BAR, WIDTH / nats.length);
  const end =
    first === undefined
      ? 'All tokens are the same.'
      : `The answers part at token ${first + 1}, “${tokens[first]!.text.trim()}”.`;
  const summary = `Mean ${formatSmall(mean)}, highest ${formatSmall(Math.max(...nats))} nats. ${end}`;
  return (
    <figure class="plot card">
      <figcaption>
        <strong>Difference of log probabilities per token</strong>
        <span class="quiet">{summary}</span>
        <span class="quiet">Nothing differs before the first page is packed: its tokens are in f16.</span>
      </figcaption>
      <div class="plot-area">
        {/* Stretched to the width of the page, which texts must not be. */}
        <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={summary}>
          {nats.map((value, i) => {
            const y = Math.min(HEIGHT - 1, yOf(Math.log10(value)));
            return (
              <rect
                key={i}
                class={i === first ? 'bar-first' : ''}
                x={i * step}
                y={y}
                width={Math.max(1, step - 1)}
                height={HEIGHT - y}
              >
                <title>{`${tokens[i]!.text.trim()}: ${formatSmall(value)} nats`}</title>
              </rect>
            );
          })}
        </svg>
        {LINES.map(([exponent, label]) => (
          <span
            key={exponent}
            class="plot-line"
            aria-hidden="true"
            style={{ top: `${(100 * yOf(exponent)) / HEIGHT}%` }}
          >
            {label}
          </span>
        ))}
      </div>
    </figure>
  );
}
