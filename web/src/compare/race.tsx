/** The memory and the speed of both caches, as bars that grow while they answer. */
import { formatBytes, formatRate } from '../format.ts';
import { Bar } from '../ui/bar.tsx';
import { type Pane, shareOf } from './comparison.ts';

export function Race({ panes }: { panes: readonly [Pane, Pane] }) {
  return (
    <div class="race">
      <Bars title="Memory of the cache" panes={panes} measure={({ bytes }) => bytes} format={formatBytes} />
      <Bars title="Speed" panes={panes} measure={({ rate }) => rate} format={formatRate} />
    </div>
  );
}

interface BarsProps {
  title: string;
  panes: readonly [Pane, Pane];
  measure: (pane: Pane) => number;
  format: (value: number) => string;
}

function Bars({ title, panes, measure, format }: BarsProps) {
  const values = panes.map(measure);
  return (
    <div>
      <h3>{title}</h3>
      <dl class="bars">
        {panes.map(({ codec }, i) => (
          <Bar
            key={i}
            name={codec}
            share={shareOf(values, i)}
            text={values[i]! > 0 ? format(values[i]!) : '–'}
            isAccent={i === 1}
          />
        ))}
      </dl>
    </div>
  );
}
