/** Heat maps of the retrieved facts by document length and depth: as text, SVG and HTML. */
import { formatCount } from '../../util/units.ts';
import { htmlPage, htmlTable } from '../html.ts';
import { escapeHtml, heading, type PlotText, svgDocument, text } from '../plot.ts';
import { countAnswers, type NeedleCell, type NeedleRow } from './measure.ts';

/** From none to all retrieved. */
const SHADES = [' ', '░', '▒', '▓', '█'];
const EMPTY = '·';

const accuracy = ({ right, asked }: { right: number; asked: number }) => right / asked;
const percent = (share: number) => `${(100 * share).toFixed(share === 1 ? 0 : 1)} %`;
const depthName = (depth: number) => String(Math.round(100 * depth));

/** One line of cells per length. */
function groupByLength({ cells }: NeedleRow): { length: number; cells: NeedleCell[] }[] {
  const lengths = [...new Set(cells.map(({ length }) => length))];
  return lengths.map(length => ({ length, cells: cells.filter(cell => cell.length === length) }));
}

/** With shades for a terminal, or numbers in percent. */
export function heatmapText(rows: readonly NeedleRow[], shades: boolean): string {
  const widest = Math.max(6, ...rows.flatMap(({ cells }) => cells.map(({ length }) => formatCount(length).length)));
  const line = (name: string, cells: string[], end: string) =>
    `${name.padStart(widest)}  ${cells.join(' ')}  ${end}`.trimEnd();
  const cellText = (cell: NeedleCell) => {
    if (cell.asked === 0) return EMPTY.padStart(3);
    if (!shades) return String(Math.round(100 * accuracy(cell))).padStart(3);
    // The full block is only for all, the blank only for none.
    const share = accuracy(cell);
    const shade = share === 0 ? 0 : share === 1 ? 4 : 1 + Math.min(2, Math.floor(3 * share));
    return SHADES[shade]!.repeat(3);
  };
  return rows
    .map(row => {
      const lines = groupByLength(row);
      const depths = lines[0]!.cells.map(({ depth }) => depthName(depth).padStart(3));
      return [
        `${row.kv}, ${row.bits.toFixed(3)} bits: ${percent(accuracy(row))} of ${formatCount(row.asked)} facts`,
        line('depth', depths, ''),
        ...lines.map(({ length, cells }) => {
          const count = countAnswers(cells);
          return line(formatCount(length), cells.map(cellText), count.asked > 0 ? percent(accuracy(count)) : '');
        }),
      ].join('\n');
    })
    .join('\n\n');
}

const [LEFT, TOP, CELL, LINE, GAP] = [84, 60, 58, 28, 52];

/** One map per cache format, one below the other. */
export function heatmapPlot(rows: readonly NeedleRow[], { title, subtitle }: PlotText): string {
  const maps = rows.map(row => ({ row, lines: groupByLength(row) }));
  const columns = maps[0]?.lines[0]?.cells.length ?? 0;
  const width = LEFT + columns * CELL + 90;
  const head = heading(20, width, { title, subtitle });
  const parts = [...head.parts];
  let y = TOP + head.extra;
  for (const { row, lines } of maps) {
    parts.push(
      text(
        20,
        y + 20,
        `${row.kv}, ${row.bits.toFixed(3)} bits: ${percent(accuracy(row))} of ${formatCount(row.asked)}`,
        'name',
      ),
    );
    y += 30;
    for (const { length, cells } of lines) {
      parts.push(text(LEFT - 8, y + 18, formatCount(length), 'tick end'));
      cells.forEach((cell, column) => {
        parts.push(box(cell, LEFT + column * CELL, y));
      });
      const count = countAnswers(cells);
      if (count.asked > 0) parts.push(text(LEFT + columns * CELL + 8, y + 18, percent(accuracy(count)), 'tick'));
      y += LINE;
    }
    lines[0]!.cells.forEach(({ depth }, column) => {
      parts.push(text(LEFT + (column + 0.5) * CELL, y + 16, `${depthName(depth)} %`, 'tick middle'));
    });
    y += GAP - 30;
  }
  return svgDocument(width, y + 10, title, STYLE, parts);
}

const STYLE = [
  '.page{fill:#fff}text{font:12px ui-sans-serif,system-ui,sans-serif;fill:#222}.title{font-size:16px;font-weight:600}',
  '.note,.tick{fill:#666}.end{text-anchor:end}.middle{text-anchor:middle}.name{font-weight:600}.cell{fill:#fff;text-anchor:middle}.none{fill:#8883}',
  '@media(prefers-color-scheme:dark){.page{fill:#161616}text{fill:#e4e4e4}.note,.tick{fill:#999}}',
].join('');

/** From red (none retrieved) through amber to green (all). */
const color = (share: number) => `hsl(${Math.round(140 * share ** 2)} 65% 36%)`;

function box(cell: NeedleCell, x: number, y: number): string {
  const size = `x="${x}" y="${y}" width="${CELL - 2}" height="${LINE - 2}" rx="3"`;
  if (cell.asked === 0) return `<rect class="none" ${size}/>`;
  const facts = `${formatCount(cell.length)} tokens, ${depthName(cell.depth)} % deep: ${cell.right} of ${cell.asked}`;
  return (
    `<rect ${size} fill="${color(accuracy(cell))}"><title>${escapeHtml(facts)}</title></rect>` +
    text(x + CELL / 2 - 1, y + 18, String(Math.round(100 * accuracy(cell))), 'cell')
  );
}

/** The subtitle says when an answer counts as correct. */
export function heatmapPage(rows: readonly NeedleRow[], { title, subtitle }: PlotText): string {
  const lines = rows.map(({ kv, bits, right, asked }) => [
    kv,
    bits.toFixed(3),
    String(right),
    String(asked),
    percent(right / asked),
  ]);
  return htmlPage(title, [
    `<h1>${escapeHtml(title)}</h1><p>${escapeHtml(subtitle)}</p>`,
    htmlTable(['cache', 'bits', 'correct', 'asked', 'share'], lines),
    '<h2>By length and depth</h2><p>Rows are document lengths in tokens, columns the depth of the fact.</p>',
    heatmapPlot(rows, { title: '', subtitle: '' }),
  ]);
}
