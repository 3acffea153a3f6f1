/** The memory and the speed of both caches, as bars that grow while they answer. */
import { Bar } from '../ui/bar.tsx';
import type { Pane } from './comparison.ts';
import { type Measure, measuresOf, shareOf } from './measures.ts';

export function Race({ panes }: { panes: readonly [Pane, Pane] }) {
  return (
    <div class="race">
      {measuresOf(panes).map(measure => (
        <Bars key={measure.title} panes={panes} measure={measure} />
      ))}
    </div>
  );
}

function Bars({ panes, measure: { title, of, format } }: { panes: readonly [Pane, Pane]; measure: Measure }) {
  const values = panes.map(of);
  return (
    <div>
      <h3>{title}</h3>
      <dl class="bars">
        {panes.map(({ codec }, i) => (
          <Bar key={i} name={codec} share={shareOf(values, i)} text={format(values[i]!)} isAccent={i === 1} />
        ))}
      </dl>
    </div>
  );
}
