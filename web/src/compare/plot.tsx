/** The divergence of two answers, a bar per token. */
import type { ScoredToken } from '../engine/engine.ts';
import { formatSmall } from '../format.ts';
import type { Difference } from './difference.ts';

const HEIGHT = 120;
const MAX_BAR = 14;
const WIDTH = 720;

export function DivergencePlot({ difference, tokens }: { difference: Difference; tokens: readonly ScoredToken[] }) {
  const { nats, first } = difference;
  const max = Math.max(...nats);
  const mean = nats.reduce((sum, value) => sum + value, 0) / nats.length;
  const step = Math.min(MAX_BAR, WIDTH / nats.length);
  const end =
    first === undefined
      ? 'All tokens are the same.'
      : `The answers part at token ${first + 1}, “${tokens[first]!.text.trim()}”.`;
  const summary = `Mean ${formatSmall(mean)}, highest ${formatSmall(max)} nats. ${end}`;
  return (
    <figure class="plot card">
      <figcaption>
        <strong>Difference of log probabilities per token</strong>
        <span class="quiet">{summary}</span>
      </figcaption>
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label={summary}>
        {nats.map((value, i) => {
          const height = max > 0 ? Math.max(1, (value / max) * (HEIGHT - 4)) : 1;
          return (
            <rect
              key={i}
              class={i === first ? 'bar-first' : ''}
              x={i * step}
              y={HEIGHT - height}
              width={Math.max(1, step - 1.5)}
              height={height}
              rx={1}
            >
              <title>{`${tokens[i]!.text.trim()}: ${formatSmall(value)} nats`}</title>
            </rect>
          );
        })}
        <line x1={0} x2={WIDTH} y1={HEIGHT - 0.5} y2={HEIGHT - 0.5} />
      </svg>
    </figure>
  );
}
