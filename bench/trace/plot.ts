/** Hit rates by policy as bars, one group per capacity: a self-contained SVG. */
import { escapeHtml, heading, line, type PlotText, round, svgDocument, text } from '../../src/eval/plot.ts';
import type { TraceRow } from './compare.ts';

const WIDTH = 860;
const BOX = { left: 160, right: 80, top: 70 };
const [BAR, GROUP] = [20, 34];

export function tracePlot(rows: readonly TraceRow[], { title, subtitle }: PlotText): string {
  const max = Math.max(0.01, ...rows.map(({ hitRate }) => hitRate));
  const parts: string[] = [];
  let y = BOX.top;
  rows.forEach((row, i) => {
    if (i === 0 || rows[i - 1].capacity !== row.capacity) {
      parts.push(text(BOX.left, y + 20, `${row.capacity} blocks`, 'name'));
      y += GROUP;
    }
    const width = round((row.hitRate / max) * (WIDTH - BOX.left - BOX.right));
    const facts = `${row.policy}: ${row.hits} of ${row.blocks} blocks, ${row.evictions} evictions`;
    parts.push(
      text(BOX.left - 10, y + 12, row.policy, 'end'),
      `<rect class="bar" x="${BOX.left}" y="${y}" width="${width}" height="${BAR - 5}"><title>${escapeHtml(facts)}</title></rect>`,
      text(BOX.left + width + 8, y + 12, `${(100 * row.hitRate).toFixed(1)} %`, 'note'),
    );
    y += BAR;
  });
  parts.push(line(BOX.left, BOX.top, BOX.left, y, 'grid'));
  const head = heading(BOX.left, WIDTH, { title, subtitle });
  const plot = [`<g transform="translate(0 ${head.extra})">`, ...parts, '</g>'];
  return svgDocument(WIDTH, y + 24 + head.extra, title, STYLE, [...head.parts, ...plot]);
}

const STYLE = [
  '.page{fill:#fff}text{font:12px ui-sans-serif,system-ui,sans-serif;fill:#222}.title{font-size:16px;font-weight:600}',
  '.note{fill:#666}.end{text-anchor:end}.name{font-weight:500}.grid{stroke:#d4d4d4}.bar{fill:#b45309}',
  '@media(prefers-color-scheme:dark){.page{fill:#161616}text{fill:#e4e4e4}.note{fill:#999}.grid{stroke:#3a3a3a}',
  '.bar{fill:#fbbf24}}',
].join('');
