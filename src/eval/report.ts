/** A self-contained HTML report: divergence by codec, position, token class and layer, and the bits of each layer. */
import { formatOutliers } from '../cache/outliers.ts';
import { codeBits } from '../codec/codec.ts';
import type { Plan } from '../plan/plan.ts';
import type { Profile } from '../plan/profile.ts';
import type { Breakdown, BreakdownEntry } from './breakdown.ts';
import type { DivergenceRow } from './divergence.ts';
import { htmlPage, htmlTable } from './html.ts';
import { layerPlot } from './layer-plot.ts';
import { divergencePlot, escapeHtml } from './plot.ts';

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
  const quantizedRows = rows.filter(({ kv }) => kv !== 'f16');
  return htmlPage(`${title}: cache quality`, [
    `<h1>${escapeHtml(title)}</h1><p>${escapeHtml(subtitle)}</p>`,
    '<h2>Divergence against bits</h2>',
    divergencePlot(rows, { title: '', subtitle: '' }),
    summaryTable(rows),
    '<p>Divergence: Kullback-Leibler, from an f16 cache with the same weights, in nats per token. Expected: what the profile predicts. Error ratio: the squared error of the pages relative to the calibration text, for codecs that search for the nearest code.</p>',
    ...rows.flatMap(({ kv, outliers }) => (outliers ? [`<p>${escapeHtml(kv)}: ${formatOutliers(outliers)}.</p>`] : [])),
    '<h2>By position</h2><p>Mean divergence of the tokens from that position to the next.</p>',
    breakdownTable(quantizedRows, breakdowns, ({ positions }) => positions),
    '<h2>By token class</h2><p>The class of the predicted token.</p>',
    breakdownTable(quantizedRows, breakdowns, ({ classes }) => classes),
    '<h2>By layer</h2>',
    profile ? layerCharts(profile) : '<p>Sensitivities of layers need a profile; none was used.</p>',
    '<h2>Plans</h2><p>Code bits per value of the keys and values of each layer.</p>',
    ...plans.filter(({ spec }) => spec !== 'f16').map(planChart),
  ]);
}

const nats = (kld: number) => kld.toPrecision(3);

function summaryTable(rows: readonly DivergenceRow[]): string {
  return htmlTable(
    ['cache', 'bits', 'divergence', 'expected', 'top-1', 'perplexity', 'tokens', 'error ratio'],
    rows.map(({ kv, bits, kld, predicted, top1, perplexity, tokens, errorRatio }) => [
      kv,
      bits.toFixed(3),
      nats(kld),
      predicted === undefined ? '' : nats(predicted),
      `${(100 * top1).toFixed(2)} %`,
      perplexity.toFixed(3),
      String(tokens),
      errorRatio?.toFixed(2) ?? '',
    ]),
  );
}

function breakdownTable(
  rows: readonly DivergenceRow[],
  breakdowns: ReadonlyMap<string, Breakdown>,
  of: (breakdown: Breakdown) => BreakdownEntry[],
): string {
  const measured = rows.flatMap(({ kv }) => {
    const breakdown = breakdowns.get(kv);
    return breakdown ? [{ kv, parts: of(breakdown) }] : [];
  });
  const names = measured[0]?.parts.map(({ name }) => name) ?? [];
  return htmlTable(
    ['cache', ...names],
    measured.map(({ kv, parts }) => [kv, ...names.map(name => nats(parts.find(part => part.name === name)?.kld ?? 0))]),
  );
}

const byLayer = (layers: readonly { key: number; value: number }[]) => [
  { name: 'keys', values: layers.map(({ key }) => key) },
  { name: 'values', values: layers.map(({ value }) => value) },
];

function layerCharts({ sensitivities }: Profile): string {
  return Object.entries(sensitivities)
    .map(([probe, layers]) =>
      layerPlot(byLayer(layers), {
        title: probe,
        subtitle: "The part of the divergence that this layer's keys and values cause.",
        unit: 'nats per token',
      }),
    )
    .join('\n');
}

function planChart({ spec, bits, codecs }: Plan): string {
  const layers = codecs.map(({ keys, values }) => ({ key: codeBits(keys), value: codeBits(values) }));
  return layerPlot(byLayer(layers), { title: spec, subtitle: `${bits.toFixed(3)} bits`, unit: 'code bits per value' });
}
