/** The results of a task as a table, a plot of accuracy with intervals, and a self-contained HTML page. */
import { htmlPage, htmlTable } from '../html.ts';
import { escapeHtml, heading, line, type PlotText, round, svgDocument, text } from '../plot.ts';
import type { TaskRow } from './summarize.ts';

const percent = (share: number) => (100 * share).toFixed(1);

/** With a sign: +1.5, -2.0, 0.0. */
const points = (difference: number) => `${difference > 0 ? '+' : ''}${percent(difference)}`;

const pValue = (p: number) => (p < 0.001 ? '<.001' : p.toFixed(3).replace(/^0/, ''));

/** The cells of a table, one line per codec. */
export function taskTable(rows: readonly TaskRow[]): { header: string[]; lines: string[][] } {
  const hasBoth = rows.some(({ unnormalized }) => unnormalized !== undefined);
  return {
    header: [
      ...['cache', 'bits', 'items', 'accuracy %', '95 % interval'],
      ...(hasBoth ? ['by total %'] : []),
      ...['to f16', 'its 95 % interval', 'p', 'agreement %', 'tokens/s'],
    ],
    lines: rows.map(({ kv, bits, items, accuracy, interval, unnormalized = 0, comparison, tokensPerSecond }) => [
      ...[kv, bits.toFixed(3), String(items), percent(accuracy), interval.map(percent).join(' to ')],
      ...(hasBoth ? [percent(unnormalized)] : []),
      ...(comparison
        ? [
            points(comparison.difference),
            comparison.interval.map(points).join(' to '),
            ...[pValue(comparison.p), percent(comparison.agreement)],
          ]
        : ['', '', '', '']),
      tokensPerSecond === undefined ? '' : tokensPerSecond.toFixed(tokensPerSecond < 10 ? 1 : 0),
    ]),
  };
}

/** Accuracy by group; undefined if there are no groups. */
export function groupTable(rows: readonly TaskRow[]): { header: string[]; lines: string[][] } | undefined {
  const names = [...new Set(rows.flatMap(({ groups = {} }) => Object.keys(groups)))];
  if (names.length === 0) return undefined;
  return {
    header: ['accuracy %', ...rows.map(({ kv }) => kv)],
    lines: names.map(name => [
      name,
      ...rows.map(({ groups = {} }) => (Object.hasOwn(groups, name) ? percent(groups[name]) : '')),
    ]),
  };
}

export const NOTES = [
  'accuracy: mean score of the items; for choices, by the mean log probability per token of the endings, and by total: by',
  'their whole log probability. to f16: difference in points on the same items, with its 95 % interval: losses within it',
  'cannot be excluded. p: probability of such a difference by chance',
  "(McNemar's exact test; a paired permutation test where answers can be partly right). agreement: same answers as f16.",
];

const WIDTH = 760;
const ROW = 26;
const BOX = { left: 150, right: 40, top: 66, bottom: 44 };

const STYLE = [
  '.page{fill:#fff}text{font:12px ui-sans-serif,system-ui,sans-serif;fill:#222}.title{font-size:16px;font-weight:600}',
  '.note,.tick{fill:#666}.end{text-anchor:end}.middle{text-anchor:middle}.grid{stroke:#d4d4d4}',
  '.interval{stroke:#b45309;stroke-width:2}circle{fill:#b45309}',
  '@media(prefers-color-scheme:dark){.page{fill:#161616}text{fill:#e4e4e4}.note,.tick{fill:#999}.grid{stroke:#3a3a3a}',
  '.interval{stroke:#fbbf24}circle{fill:#fbbf24}}',
].join('');

/** One line per codec: a dot for the accuracy, and its 95 % interval. */
export function accuracyPlot(rows: readonly TaskRow[], titles: PlotText): string {
  const bottom = BOX.top + ROW * rows.length;
  const x = (share: number) => round(BOX.left + share * (WIDTH - BOX.left - BOX.right));
  const grid = [0, 0.2, 0.4, 0.6, 0.8, 1].flatMap(share => [
    line(x(share), BOX.top - 6, x(share), bottom, 'grid'),
    text(x(share), bottom + 18, `${100 * share} %`, 'tick middle'),
  ]);
  const dots = rows.flatMap(({ kv, accuracy, interval: [low, high] }, i) => {
    const y = BOX.top + ROW * (i + 0.5);
    return [
      text(BOX.left - 12, y + 4, kv, 'end'),
      line(x(low), y, x(high), y, 'interval'),
      `<circle cx="${x(accuracy)}" cy="${y}" r="4.5"><title>${escapeHtml(kv)}: ${percent(accuracy)} %</title></circle>`,
    ];
  });
  const head = heading(20, WIDTH, titles);
  const plot = [`<g transform="translate(0 ${head.extra})">`, ...grid, ...dots, '</g>'];
  return svgDocument(WIDTH, bottom + BOX.bottom + head.extra, titles.title, STYLE, [...head.parts, ...plot]);
}

export function taskPage(rows: readonly TaskRow[], { title, subtitle }: PlotText): string {
  const table = taskTable(rows);
  const groups = groupTable(rows);
  return htmlPage(title, [
    `<h1>${escapeHtml(title)}</h1><p>${escapeHtml(subtitle)}</p>`,
    accuracyPlot(rows, { title: '', subtitle: '' }),
    htmlTable(table.header, table.lines),
    `<p>${escapeHtml(NOTES.join(' '))}</p>`,
    ...(groups ? ['<h2>By group</h2>', htmlTable(groups.header, groups.lines)] : []),
  ]);
}
