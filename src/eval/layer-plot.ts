/** A bar chart by layer as an SVG: one bar per layer and series, with a legend and a scale. */
import { escapeHtml, heading, line, type PlotText, round, svgDocument, text } from './plot.ts';

export interface LayerSeries {
  name: string;
  /** One per layer. */
  values: readonly number[];
}

export interface LayerPlotText extends PlotText {
  /** Of the values: the label of the vertical axis. */
  unit: string;
}

const [WIDTH, HEIGHT] = [860, 260];
const BOX = { left: 84, right: 20, top: 84, bottom: 44 };
const MAX_TICKS = 6;
/** Layer numbers need this many pixels each. */
const LABEL_WIDTH = 22;
const LEGEND_CHAR = 6.8;

export function layerPlot(series: readonly LayerSeries[], { title, subtitle, unit }: LayerPlotText): string {
  const layers = Math.max(0, ...series.map(({ values }) => values.length));
  const ticks = axisTicks(Math.max(0, ...series.flatMap(({ values }) => values)));
  const top = ticks[ticks.length - 1];
  const [right, bottom] = [WIDTH - BOX.right, HEIGHT - BOX.bottom];
  const x = (layer: number) => BOX.left + (layer / layers) * (right - BOX.left);
  const y = (value: number) => round(bottom - (value / top) * (bottom - BOX.top));
  const barWidth = (0.84 * (x(1) - x(0))) / series.length;
  const bars = series.flatMap(({ name, values }, i) =>
    values.map((value, layer) => {
      const facts = `layer ${layer}, ${name}: ${Number(value.toPrecision(3))} ${unit}`;
      const left = round(x(layer) + 0.08 * (x(1) - x(0)) + i * barWidth);
      const size = `width="${round(barWidth)}" height="${round(bottom - y(value))}"`;
      return `<rect class="bar${i}" x="${left}" y="${y(value)}" ${size}><title>${escapeHtml(facts)}</title></rect>`;
    }),
  );
  const every = Math.ceil((LABEL_WIDTH * layers) / (right - BOX.left));
  const head = heading(BOX.left, WIDTH, { title, subtitle });
  const parts = [
    ...ticks.flatMap(tick => [
      line(BOX.left, y(tick), right, y(tick), 'grid'),
      text(BOX.left - 8, y(tick) + 4, formatTick(tick, ticks[1]), 'tick end'),
    ]),
    ...bars,
    ...Array.from({ length: layers }, (_, layer) => layer)
      .filter(layer => layer % every === 0)
      .map(layer => text(round((x(layer) + x(layer + 1)) / 2), bottom + 16, String(layer), 'tick middle')),
    text((BOX.left + right) / 2, HEIGHT - 8, 'layer', 'middle'),
    `<text class="middle" transform="translate(20 ${(BOX.top + bottom) / 2}) rotate(-90)">${escapeHtml(unit)}</text>`,
    ...legend(series),
  ];
  const plot = [`<g transform="translate(0 ${head.extra})">`, ...parts, '</g>'];
  return svgDocument(WIDTH, HEIGHT + head.extra, title, STYLE, [...head.parts, ...plot]);
}

function legend(series: readonly LayerSeries[]): string[] {
  let left = BOX.left;
  return series.flatMap(({ name }, i) => {
    const at = round(left);
    left += 36 + LEGEND_CHAR * name.length;
    return [`<rect class="bar${i}" x="${at}" y="58" width="10" height="10"/>`, text(at + 16, 67, name, 'legend')];
  });
}

/** From 0 to at least `max`, in steps of 1, 2 or 5 times a power of ten. */
export function axisTicks(max: number): number[] {
  if (!(max > 0)) return [0, 1];
  const power = 10 ** Math.floor(Math.log10(max / MAX_TICKS));
  const step = [1, 2, 5, 10].map(factor => factor * power).find(size => max / size <= MAX_TICKS)!;
  return Array.from({ length: Math.ceil(max / step - 1e-9) + 1 }, (_, i) => Number((i * step).toPrecision(6)));
}

const formatTick = (value: number, step: number) =>
  value === 0 ? '0' : step < 1e-4 ? value.toExponential(0) : String(value);

const STYLE = [
  '.page{fill:#fff}text{font:12px ui-sans-serif,system-ui,sans-serif;fill:#222}.title{font-size:16px;font-weight:600}',
  '.note,.tick{fill:#666}.end{text-anchor:end}.middle{text-anchor:middle}.grid{stroke:#d4d4d4}',
  '.bar0{fill:#b45309}.bar1{fill:#1d4ed8}.bar2{fill:#047857}.bar3{fill:#7e22ce}',
  '@media(prefers-color-scheme:dark){.page{fill:#161616}text{fill:#e4e4e4}.note,.tick{fill:#999}.grid{stroke:#3a3a3a}',
  '.bar0{fill:#fbbf24}.bar1{fill:#93c5fd}.bar2{fill:#6ee7b7}.bar3{fill:#d8b4fe}}',
].join('');
