/** A plot of divergence against bits as a self-contained SVG, light or dark by the reader's setting. */
import type { DivergenceRow } from './divergence.ts';

const WIDTH = 860;
/** Room for the labels of many points. */
const plotHeight = (points: number) => 540 + 12 * Math.max(0, points - 15);
const BOX = { left: 84, right: 80, top: 58, bottom: 62 };
const LINE = 15;
const TITLE_LINE = 20;
/** Average character widths, with some margin, since the font is not known. */
const [TITLE_CHAR, NOTE_CHAR] = [9.5, 6.6];

export interface PlotText {
  title: string;
  subtitle: string;
}

/** What is plotted of a cache format. */
export type PlotPoint = Pick<DivergenceRow, 'kv' | 'bits' | 'kld' | 'top1'>;

/** Plots all rows except f16, whose divergence is 0, on a logarithmic scale, with a line through the best ones. */
export function divergencePlot(rows: readonly PlotPoint[], { title, subtitle }: PlotText): string {
  const points = rows.filter(({ kld }) => kld > 0).sort((a, b) => a.bits - b.bits || a.kld - b.kld);
  const best = new Set(paretoFront(points));
  const HEIGHT = plotHeight(points.length);
  const bits = points.map(row => row.bits);
  const [minBits, maxBits] = [Math.floor(Math.min(...bits, 2)), Math.ceil(Math.max(...bits, 5))];
  const powers = points.map(row => Math.log10(row.kld));
  const [minPower, maxPower] = [
    halfPower(Math.floor, Math.min(...powers, -1)),
    halfPower(Math.ceil, Math.max(...powers, -0.5)),
  ];
  const x = (value: number) =>
    round(BOX.left + ((value - minBits) / (maxBits - minBits)) * (WIDTH - BOX.left - BOX.right));
  const y = (power: number) =>
    round(BOX.top + ((maxPower - power) / (maxPower - minPower)) * (HEIGHT - BOX.top - BOX.bottom));

  const [left, right, top, bottom] = [x(minBits), x(maxBits), y(maxPower), y(minPower)];
  const parts: string[] = [];
  for (let power = Math.floor(minPower); power <= maxPower; power++) {
    const fine = [2, 3, 4, 5, 6, 7, 8, 9].map(digit => power + Math.log10(digit));
    for (const gridPower of fine.filter(value => value > minPower && value < maxPower))
      parts.push(line(left, y(gridPower), right, y(gridPower), 'fine'));
    if (power < minPower) continue;
    parts.push(line(left, y(power), right, y(power), 'grid'), text(left - 10, y(power) + 4, label(power), 'tick end'));
  }
  for (let bit = minBits; bit <= maxBits; bit++)
    parts.push(line(x(bit), top, x(bit), bottom, 'grid'), text(x(bit), bottom + 20, String(bit), 'tick middle'));
  parts.push(
    line(left, bottom, right, bottom, 'grid'),
    line(left, top, right, top, 'grid'),
    text((left + right) / 2, HEIGHT - 16, 'code bits per value', 'axis middle'),
    `<text class="axis middle" transform="translate(22 ${(top + bottom) / 2}) rotate(-90)">divergence from f16, nats per token (log)</text>`,
    line(right - 200, bottom + 41, right - 176, bottom + 41, 'pareto'),
    text(right - 168, bottom + 45, 'nothing with as few bits is better', 'note start'),
  );
  const dots = points.map(row => ({ row, cx: x(row.bits), cy: y(Math.log10(row.kld)) }));
  const front = dots.filter(({ row }) => best.has(row));
  if (front.length > 1)
    parts.push(`<polyline class="pareto" points="${front.map(({ cx, cy }) => `${cx},${cy}`).join(' ')}"/>`);
  const occupied: Box[] = dots.map(({ cx, cy }) => ({ x: cx - 5, y: cy, width: 10 }));
  // The best ones get the nearest labels.
  for (const { row, cx, cy } of [...front, ...dots.filter(dot => !front.includes(dot))]) {
    const label = placeLabel(occupied, { left: left + 2, right: WIDTH - 2, top, bottom }, cx, cy, 7 * row.kv.length);
    const edge = label.x + (label.side === 'end' ? label.width : 0);
    if (Math.hypot(label.y - cy, edge - cx) > LINE) parts.push(line(cx, cy, edge, label.y, 'lead'));
    parts.push(text(edge, label.y + 4, row.kv, `name ${label.side}`));
  }
  for (const { row, cx, cy } of dots) {
    const facts = `${row.kv}: ${row.bits.toFixed(3)} bits, ${row.kld.toPrecision(3)} nats, top-1 ${(100 * row.top1).toFixed(2)} %`;
    parts.push(
      `<circle cx="${cx}" cy="${cy}" r="4.5"${best.has(row) ? '' : ' class="other"'}><title>${escapeHtml(facts)}</title></circle>`,
    );
  }
  const head = heading(left, WIDTH, { title, subtitle });
  const plot = [`<g transform="translate(0 ${head.extra})">`, ...parts, '</g>'];
  return svgDocument(WIDTH, HEIGHT + head.extra, title, STYLE, [...head.parts, ...plot]);
}

/** The points that no other one with as few bits or fewer is better than; `points` are sorted by bits, then divergence. */
export function paretoFront<T extends { kld: number }>(points: readonly T[]): T[] {
  let lowest = Number.POSITIVE_INFINITY;
  return points.filter(({ kld }) => {
    if (kld >= lowest) return false;
    lowest = kld;
    return true;
  });
}

/** Title and subtitle, wrapped; `extra` is the height of the lines after the first of each. */
export function heading(x: number, width: number, { title, subtitle }: PlotText): { parts: string[]; extra: number } {
  const titles = wrap(title, (width - 2 * x) / TITLE_CHAR);
  const notes = wrap(subtitle, (width - 2 * x) / NOTE_CHAR);
  const below = (titles.length - 1) * TITLE_LINE;
  return {
    parts: [
      ...titles.map((line, i) => text(x, 26 + i * TITLE_LINE, line, 'title')),
      ...notes.map((line, i) => text(x, 45 + below + i * LINE, line, 'note')),
    ],
    extra: below + (notes.length - 1) * LINE,
  };
}

/** Wraps at spaces; a word that is longer than a line is split. */
export function wrap(value: string, maxChars: number): string[] {
  const limit = Math.max(1, Math.floor(maxChars));
  const lines = [''];
  for (const word of value.split(' ').flatMap(word => word.match(new RegExp(`.{1,${limit}}`, 'gsu')) ?? [''])) {
    const last = lines[lines.length - 1];
    if (last === '') lines[lines.length - 1] = word;
    else if (last.length + 1 + word.length <= limit) lines[lines.length - 1] = `${last} ${word}`;
    else lines.push(word);
  }
  return lines;
}

/** An SVG document with a background. */
export function svgDocument(
  width: number,
  height: number,
  title: string,
  style: string,
  parts: readonly string[],
): string {
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" role="img" aria-label="${escapeHtml(title)}">`,
    `<style>${style}</style>`,
    `<rect class="page" width="${width}" height="${height}"/>`,
    ...parts,
    '</svg>',
    '',
  ].join('\n');
}

const STYLE = [
  '.page{fill:#fff}text{font:12px ui-sans-serif,system-ui,sans-serif;fill:#222}.title{font-size:16px;font-weight:600}',
  '.note,.tick{fill:#666}.end{text-anchor:end}.start{text-anchor:start}.middle{text-anchor:middle}.axis{font-size:13px}.name{font-weight:500}',
  '.grid{stroke:#d4d4d4}.fine{stroke:#f0f0f0}.lead{stroke:#b45309;stroke-width:.7}circle{fill:#b45309}',
  '.pareto{stroke:#b45309;stroke-width:1.5;fill:none;opacity:.6}.other{fill:#fff;stroke:#b45309;stroke-width:1.5}',
  '@media(prefers-color-scheme:dark){.page{fill:#161616}text{fill:#e4e4e4}.note,.tick{fill:#999}.grid{stroke:#3a3a3a}',
  '.fine{stroke:#232323}circle{fill:#fbbf24}.lead,.pareto,.other{stroke:#fbbf24}.other{fill:#161616}}',
].join('');

interface Box {
  x: number;
  /** Vertical center. */
  y: number;
  width: number;
}

/** Of a label from its dot, nearest first. */
const OFFSETS = [9, 28, 56, 90]
  .flatMap(dx => Array.from({ length: 61 }, (_, i) => ({ dx, dy: ((i - 30) * LINE) / 3 })))
  .sort((a, b) => Math.hypot(a.dx, a.dy) - Math.hypot(b.dx, b.dy));

interface Bounds {
  left: number;
  right: number;
  top: number;
  bottom: number;
}

/** The nearest position right or left of a dot where its label overlaps no dot and no other label. */
function placeLabel(
  occupied: Box[],
  { left, right, top, bottom }: Bounds,
  cx: number,
  cy: number,
  width: number,
): Box & { side: 'start' | 'end' } {
  const places = OFFSETS.flatMap(({ dx, dy }) => [
    { side: 'start' as const, x: cx + dx, y: round(cy + dy), width },
    { side: 'end' as const, x: cx - dx - width, y: round(cy + dy), width },
  ]);
  const inside = places.filter(({ x, y }) => x >= left && x + width <= right && y >= top && y <= bottom);
  const free = inside.find(({ x, y }) =>
    occupied.every(box => x >= box.x + box.width || box.x >= x + width || Math.abs(box.y - y) >= LINE - 2),
  );
  const place = free ?? inside[0] ?? places[0];
  occupied.push(place);
  return place;
}

export const round = (value: number) => Math.round(10 * value) / 10;
/** Rounds a power of ten to a half. */
const halfPower = (rounding: (x: number) => number, power: number) => rounding(2 * power) / 2;
const label = (power: number) => (power >= -4 && power <= 3 ? String(Number(`1e${power}`)) : `1e${power}`);
export const escapeHtml = (value: string) =>
  value.replace(/[<>&"]/g, char => ({ '<': '&lt;', '>': '&gt;', '&': '&amp;', '"': '&quot;' })[char]!);
export const text = (x: number, y: number, value: string, kind: string) =>
  `<text class="${kind}" x="${x}" y="${y}">${escapeHtml(value)}</text>`;
export const line = (x1: number, y1: number, x2: number, y2: number, kind: string) =>
  `<line class="${kind}" x1="${x1}" y1="${y1}" x2="${x2}" y2="${y2}"/>`;
