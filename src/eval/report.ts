/** A quality report as one HTML page: what codecs cost, where, and how bits were shared out. It links to nothing. */
import { formatOutliers } from '../cache/outliers.ts';
import { codeBits } from '../codec/codec.ts';
import type { Plan } from '../plan/plan.ts';
import type { Profile } from '../plan/profile.ts';
import type { Breakdown, Part } from './breakdown.ts';
import type { DivergenceRow } from './divergence.ts';
import { htmlPage, tableOf } from './page.ts';
import { divergencePlot, escaped } from './plot.ts';

export interface ReportInput {
  title: string;
  subtitle: string;
  rows: readonly DivergenceRow[];
  /** By spec. */
  breakdowns: ReadonlyMap<string, Breakdown>;
  plans: readonly Plan[];
  profile?: Profile;
}

export function reportPage({ title, subtitle, rows, breakdowns, plans, profile }: ReportInput): string {
  const judged = rows.filter(({ kv }) => kv !== 'f16');
  return htmlPage(`${title}: cache quality`, [
    `<h1>${escaped(title)}</h1><p>${escaped(subtitle)}</p>`,
    '<h2>Divergence against bits</h2>',
    divergencePlot(rows, { title: '', subtitle: '' }),
    summaryTable(rows),
    '<p>Divergence: Kullback-Leibler, from the f16 cache of the same weights, nats a token. Expected: what the profile let the plan expect.</p>',
    ...rows.flatMap(({ kv, outliers }) => (outliers ? [`<p>${escaped(kv)}: ${formatOutliers(outliers)}.</p>`] : [])),
    '<h2>By position</h2><p>Mean divergence of tokens from that position on, up to the next.</p>',
    partsTable(judged, breakdowns, ({ positions }) => positions),
    '<h2>By kind of token</h2><p>The token that is to be predicted.</p>',
    partsTable(judged, breakdowns, ({ classes }) => classes),
    '<h2>By layer</h2>',
    profile ? layerChart(profile) : '<p>How much each layer matters is in a profile; there is none here.</p>',
    '<h2>Plans</h2><p>Code bits a value, keys and values of each layer.</p>',
    ...plans.filter(({ spec }) => spec !== 'f16').map(planChart),
  ]);
}

const nats = (kld: number) => kld.toPrecision(3);

function summaryTable(rows: readonly DivergenceRow[]): string {
  return tableOf(
    ['cache', 'bits', 'divergence', 'expected', 'top-1', 'perplexity', 'tokens'],
    rows.map(({ kv, bits, kld, predicted, top1, perplexity, tokens }) => [
      kv,
      bits.toFixed(3),
      nats(kld),
      predicted === undefined ? '' : nats(predicted),
      `${(100 * top1).toFixed(2)} %`,
      perplexity.toFixed(3),
      String(tokens),
    ]),
  );
}

function partsTable(
  rows: readonly DivergenceRow[],
  breakdowns: ReadonlyMap<string, Breakdown>,
  of: (breakdown: Breakdown) => Part[],
): string {
  const found = rows.flatMap(({ kv }) => {
    const breakdown = breakdowns.get(kv);
    return breakdown ? [{ kv, parts: of(breakdown) }] : [];
  });
  const names = found[0]?.parts.map(({ name }) => name) ?? [];
  return tableOf(
    ['cache', ...names],
    found.map(({ kv, parts }) => [kv, ...names.map(name => nats(parts.find(part => part.name === name)?.kld ?? 0))]),
  );
}

/** Two bars a layer. */
function bars(keys: readonly number[], values: readonly number[], format: (value: number) => string): string {
  const [width, height, foot] = [860, 170, 22];
  const step = width / keys.length;
  const most = Math.max(...keys, ...values, Number.MIN_VALUE);
  const bar = (value: number, layer: number, side: 0 | 1) => {
    const size = (value / most) * (height - foot - 4);
    const name = `layer ${layer}, ${side ? 'values' : 'keys'}: ${format(value)}`;
    const x = (layer * step + side * 0.42 * step + 0.08 * step).toFixed(1);
    return (
      `<rect class="bar${side ? '2' : ''}" x="${x}" y="${(height - foot - size).toFixed(1)}" ` +
      `width="${(0.4 * step).toFixed(1)}" height="${size.toFixed(1)}"><title>${escaped(name)}</title></rect>`
    );
  };
  const label = (layer: number) =>
    `<text x="${((layer + 0.5) * step).toFixed(1)}" y="${height - 6}" font-size="10" text-anchor="middle">${layer}</text>`;
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" role="img">`,
    ...keys.map((value, layer) => bar(value, layer, 0)),
    ...values.map((value, layer) => bar(value, layer, 1)),
    ...keys.map((_, layer) => label(layer)),
    '</svg>',
  ].join('\n');
}

function layerChart({ sensitivities }: Profile): string {
  return Object.entries(sensitivities)
    .map(([probe, layers]) =>
      [
        `<h3>${escaped(probe)}</h3><p>Divergence when this layer's keys (first bar) or values (second) alone are read from codes.</p>`,
        bars(
          layers.map(({ key }) => key),
          layers.map(({ value }) => value),
          nats,
        ),
      ].join('\n'),
    )
    .join('\n');
}

function planChart({ spec, bits, codecs }: Plan): string {
  return [
    `<h3>${escaped(spec)}, ${bits.toFixed(3)} bits</h3>`,
    bars(
      codecs.map(({ keys }) => codeBits(keys)),
      codecs.map(({ values }) => codeBits(values)),
      value => `${value.toFixed(3)} bits`,
    ),
  ].join('\n');
}
