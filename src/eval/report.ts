/** A self-contained HTML report: divergence by codec, position, token class and layer, and the bits of each layer. */
import { formatOutliers } from '../cache/outliers.ts';
import { codeBits } from '../codec/codec.ts';
import type { Plan } from '../plan/plan.ts';
import type { Profile } from '../plan/profile.ts';
import type { Breakdown, BreakdownEntry } from './breakdown.ts';
import type { DivergenceRow } from './divergence.ts';
import { htmlPage, htmlTable } from './html.ts';
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
    profile ? layerChart(profile) : '<p>Sensitivities of layers need a profile; none was used.</p>',
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

/** A bar chart with two bars per layer. */
function layerBars(keys: readonly number[], values: readonly number[], format: (value: number) => string): string {
  const [width, height, foot] = [860, 170, 22];
  const step = width / keys.length;
  const max = Math.max(...keys, ...values, Number.MIN_VALUE);
  const bar = (value: number, layer: number, side: 0 | 1) => {
    const size = (value / max) * (height - foot - 4);
    const name = `layer ${layer}, ${side ? 'values' : 'keys'}: ${format(value)}`;
    const x = (layer * step + side * 0.42 * step + 0.08 * step).toFixed(1);
    return (
      `<rect class="bar${side ? '2' : ''}" x="${x}" y="${(height - foot - size).toFixed(1)}" ` +
      `width="${(0.4 * step).toFixed(1)}" height="${size.toFixed(1)}"><title>${escapeHtml(name)}</title></rect>`
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
        `<h3>${escapeHtml(probe)}</h3><p>Divergence if only this layer's keys (first bar) or values (second bar) are quantized.</p>`,
        layerBars(
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
    `<h3>${escapeHtml(spec)}, ${bits.toFixed(3)} bits</h3>`,
    layerBars(
      codecs.map(({ keys }) => codeBits(keys)),
      codecs.map(({ values }) => codeBits(values)),
      value => `${value.toFixed(3)} bits`,
    ),
  ].join('\n');
}
