/** Renders results as docs/quality.md. Everything on the page comes from the results. */
import { formatShort } from '../../src/cli/table.ts';
import { paretoFront } from '../../src/eval/plot.ts';
import { formatCount } from '../../src/units.ts';
import { markdownTable, paragraph } from './markdown.ts';
import type { Picture } from './pictures.ts';
import {
  average,
  completeRows,
  DEFAULT_PROFILE,
  findMeasurements,
  type LayerNorms,
  type PlanKey,
  planId,
  type Results,
} from './results.ts';
import { createSuite, type Entry, PAGE_TOKENS, planKey, type Section } from './suite.ts';

/** Codecs of the first table, for readers who want one line per choice. */
const SUMMARY = ['q8_0', 'q4_0h', 'tq4', 'mead3', 'tq3', 'oscar2g32', 'kivi2g32', 'tq2', 'mead2', 'vec-d4b8'];

export function qualityPage(results: Results, pictures: readonly Picture[]): string {
  const sections = measuredSections(results);
  const picturesOf = (part: Picture['part']) =>
    pictures.filter(picture => picture.part === part).map(({ file, alt }) => `![${alt}](${file})`);
  const render = (part: Section['part'], level: string) =>
    sections.filter(section => section.part === part).flatMap(section => renderSection(results, section, level));
  const ablations = render('ablations', '###');
  const norms = Object.entries(results.norms).flatMap(([text, layers]) => renderNorms(text, layers));
  return `${[
    '# Quality',
    paragraph(introduction(results)),
    paragraph(
      'Divergence is the mean Kullback-Leibler divergence of the predictions from those with an f16 cache, in nats per ' +
        'token, in [precise mode](evaluation.md#precise-mode). Bits are code bits per value: everything that a sealed ' +
        'page stores, scales and norms included. All codecs read the same rows with the same window. A row is read from ' +
        'an empty cache; its second half is scored. Bold: no codec of the table with as few bits is better on that text. ' +
        'Top-1 is the share of tokens whose most likely next token is that of f16, averaged over the texts. Prefill is ' +
        'the speed of reading a prompt, relative to f16 in the same run.',
    ),
    paragraph('This page was made by:'),
    ['```sh', commandOf(results), '```'].join('\n'),
    ...describeTexts(results),
    ...summary(results, sections),
    ...picturesOf('tables'),
    ...render('tables', '##'),
    ...perplexities(results),
    ...(ablations.length > 0 ? ['## Ablations', ...ablations] : []),
    ...(norms.length > 0 ? ['### Token norms', paragraph(ABOUT_NORMS), ...norms, ...picturesOf('norms')] : []),
    ...(picturesOf('layers').length > 0 ? ['## Layers', paragraph(ABOUT_LAYERS), ...picturesOf('layers')] : []),
  ].join('\n\n')}\n`;
}

/** The command that makes these results, with file names instead of paths. */
function commandOf(results: Results): string {
  const texts = Object.entries(results.texts).map(
    ([name, { file, special, skip }]) => `${name}=${file}${special ? ':special' : ''}${skip > 0 ? `:${skip}` : ''}`,
  );
  const transfer = Object.keys(results.profiles).filter(name => name !== DEFAULT_PROFILE);
  return [
    `npm run bench -- quality --model ${results.setup.model} --device ${results.setup.device}`,
    `--rows ${completeRows(results)} --context ${results.setup.context}`,
    ...(results.profiles[DEFAULT_PROFILE] ? ['--profile MODEL.kvprofile'] : []),
    `--texts ${texts.join(',')}`,
    ...(transfer.length > 0 ? [`--transfer ${transfer.map(name => `${name}=${name}.kvprofile`).join(',')}`] : []),
  ].join(' \\\n  ');
}

/** The sections of results, as far as they were measured. */
export const suiteOf = (results: Results): Section[] =>
  createSuite({
    texts: Object.keys(results.texts),
    rows: completeRows(results),
    headDim: results.setup.headDim,
    codecs: results.codecs,
    transfer: Object.keys(results.profiles).filter(name => name !== DEFAULT_PROFILE),
  });

/** Ablations share plans with the tables: they were measured if any other plan of theirs was, maybe on fewer rows. */
function measuredSections(results: Results): Section[] {
  const all = suiteOf(results);
  const plansOf = (part: Section['part']) =>
    new Set(all.flatMap(section => (section.part === part ? section.entries.map(({ plan }) => planId(plan)) : [])));
  const [inTables, inAblations] = [plansOf('tables'), plansOf('ablations')];
  const measured = new Set(results.measurements.map(planId));
  const ownRows = results.measurements
    .filter(one => inAblations.has(planId(one)) && !inTables.has(planId(one)))
    .map(({ row }) => row + 1);
  const ablationRows = Math.max(0, ...ownRows);
  return all
    .filter(
      ({ part, entries }) =>
        (part === 'tables' || ablationRows > 0) && entries.some(({ plan }) => measured.has(planId(plan))),
    )
    .map(section => (section.part === 'tables' ? section : { ...section, rows: Math.min(section.rows, ablationRows) }));
}

function introduction(results: Results): string {
  const { model, device, context, layers, headDim } = results.setup;
  const rows = completeRows(results);
  const profile = results.profiles[DEFAULT_PROFILE];
  const calibration = profile
    ? `Calibrated codecs use one profile, learned from ${formatCount(profile.tokens)} tokens` +
      `${profile.sources.length > 0 ? ` of ${profile.sources.join(', ')}` : ''}.`
    : 'No profile was given, so that codecs that need calibration were not measured.';
  return (
    `How much each codec changes the predictions of \`${model}\` (${layers} layers, heads of ${headDim} dims), on ` +
    `${describeRows(rows)} of ${formatCount(context)} tokens per kind of text, on ${device}. ` +
    calibration
  );
}

const describeRows = (rows: number): string => (rows === 1 ? 'one row' : `${rows} rows`);

function describeTexts({ texts }: Results): string[] {
  const lines = Object.entries(texts).map(([name, { file, special, skip }]) => [
    name,
    `\`${file}\``,
    String(skip),
    special ? 'parsed' : 'as text',
  ]);
  return [markdownTable(['text', 'file', 'rows skipped', 'special tokens'], lines)];
}

function summary(results: Results, sections: readonly Section[]): string[] {
  const table = sections.find(({ part }) => part === 'tables');
  const entries = table?.entries.filter(({ plan }) => SUMMARY.includes(plan.kv)) ?? [];
  return table && entries.length > 0 ? ['## Summary', sectionTable(results, { ...table, entries }, false)] : [];
}

function renderSection(results: Results, section: Section, level: string): string[] {
  const missing = section.entries.filter(({ plan }) => isUnmeasured(results, section, plan));
  const missingNames = missing.map(({ labels }) => labels.join(' ').replace(/\s+/g, ' ').trim());
  return [
    `${level} ${section.title}`,
    paragraph(
      section.about + (section.rows < completeRows(results) ? ` Measured on ${describeRows(section.rows)}.` : ''),
    ),
    sectionTable(results, section, section.part === 'tables'),
    ...(missing.length > 0 ? [paragraph(`Not measured: ${missingNames.join(', ')}.`)] : []),
  ];
}

const isUnmeasured = (results: Results, { texts, rows }: Section, plan: PlanKey) =>
  results.refused[planId(plan)] === undefined &&
  texts.every(text => findMeasurements(results, plan, text, rows).length < rows);

interface Line {
  entry: Entry;
  /** By text; undefined if not all rows were measured. */
  means: (ReturnType<typeof average> | undefined)[];
}

/** With `details`: with bold, top-1 and prefill. */
function sectionTable(results: Results, section: Section, details: boolean): string {
  const { labels, texts, rows, part, pivot } = section;
  const lines = section.entries
    .filter(({ plan }) => !isUnmeasured(results, section, plan))
    .map((entry): Line => {
      const means = texts.map(text => {
        const found = findMeasurements(results, entry.plan, text, rows);
        return found.length === rows ? average(found) : undefined;
      });
      return { entry, means };
    });
  if (pivot) return pivotTable(results, section, lines);
  if (part === 'tables') lines.sort((a, b) => bitsOf(b) - bitsOf(a) || meanKld(a) - meanKld(b));
  const bold = details ? texts.map((_, i) => bestLines(lines, i)) : [];
  const timed = details && lines.some(({ entry }) => prefillSpeed(results, entry.plan.kv) !== undefined);
  const header = [...labels, 'bits', ...texts, ...(details ? ['top-1'] : []), ...(timed ? ['prefill'] : [])];
  return markdownTable(
    header,
    lines.map(line => {
      const { entry, means } = line;
      const refused = results.refused[planId(entry.plan)];
      if (refused) return [...entry.labels, refused, ...header.slice(labels.length + 1).map(() => '')];
      return [
        ...entry.labels,
        bitsOf(line).toFixed(3),
        ...means.map((mean, i) => (bold[i]?.has(line) ? `**${formatKld(mean)}**` : formatKld(mean))),
        ...(details ? [meanTop1(means)] : []),
        ...(timed ? [prefillSpeed(results, entry.plan.kv) ?? '-'] : []),
      ];
    }),
  );
}

/** A line per text, and a column per value of the last label. */
function pivotTable(results: Results, { labels, texts }: Section, lines: readonly Line[]): string {
  const columns = [...new Set(lines.map(({ entry }) => entry.labels.at(-1)!))];
  const nameOf = ({ entry }: Line) => entry.labels.slice(0, -1).join('|');
  const cells = [...new Set(lines.map(nameOf))].flatMap(name =>
    texts.map((text, i) => [
      ...name.split('|'),
      text,
      ...columns.map(column => {
        const line = lines.find(one => nameOf(one) === name && one.entry.labels.at(-1) === column);
        return line ? (results.refused[planId(line.entry.plan)] ?? formatKld(line.means[i])) : '-';
      }),
    ]),
  );
  return markdownTable([...labels.slice(0, -1), 'text', ...columns], cells);
}

const formatKld = (mean: Line['means'][number]) => (mean ? formatShort(mean.kld) : '-');
/** 0, so that they come last, for those that were refused. */
const bitsOf = ({ means }: Line) => means.find(mean => mean !== undefined)?.bits ?? 0;
const meanKld = ({ means }: Line) => means.reduce((sum, mean) => sum + (mean?.kld ?? 0), 0);

function bestLines(lines: readonly Line[], text: number): Set<Line> {
  const points = lines.flatMap(line => {
    const mean = line.means[text];
    return mean ? [{ line, bits: mean.bits, kld: mean.kld }] : [];
  });
  points.sort((a, b) => a.bits - b.bits || a.kld - b.kld);
  return new Set(paretoFront(points).map(({ line }) => line));
}

function meanTop1(means: Line['means']): string {
  const known = means.filter(mean => mean !== undefined);
  if (known.length === 0) return '-';
  return `${((100 * known.reduce((sum, { top1 }) => sum + top1, 0)) / known.length).toFixed(1)} %`;
}

function prefillSpeed({ prefill }: Results, kv: string): string | undefined {
  const time = prefill.find(one => one.kv === kv);
  return time && `${((100 * time.f16Seconds) / time.seconds).toFixed(0)} %`;
}

function perplexities(results: Results): string[] {
  const rows = completeRows(results);
  const values = Object.keys(results.texts).map(text => {
    const found = findMeasurements(results, planKey('f16', PAGE_TOKENS), text, rows);
    return `${text} ${found.length > 0 ? average(found).perplexity.toFixed(2) : '-'}`;
  });
  return [paragraph(`Perplexity with f16: ${values.join(', ')}.`)];
}

const ABOUT_NORMS =
  "Keys of a text's first four tokens: their norms over the median of the later ones; the share of a channel's range " +
  'over the first 32 tokens that only these four need; and the error of a key at 2 bits over its norm, the largest of ' +
  'the four / the median of the later ones. Keys are quantized as they are (KIVI), or after one or both parts of OScaR. ' +
  'Without scaling, all tokens of a group have the same absolute error, which is large for a sink with a small norm, ' +
  'and sinks get much of the attention. Scaling gives every token an error in proportion to its norm.';

function renderNorms(text: string, layers: readonly LayerNorms[]): string[] {
  const [{ norms: first, transforms }] = layers;
  const percent = (share: number) => `${(100 * share).toFixed(0)} %`;
  const names = transforms.map(({ name }) => name);
  return [
    `Norms and shares, ${text}:`,
    markdownTable(
      ['layer', ...first.map((_, token) => `token ${token}`), ...names],
      layers.map(({ norms, transforms }, layer) => [
        String(layer),
        ...norms.map(norm => norm.toFixed(2)),
        ...transforms.map(({ share }) => percent(share)),
      ]),
    ),
    `Errors, ${text}:`,
    markdownTable(
      ['layer', ...names],
      layers.map(({ transforms }, layer) => [
        String(layer),
        ...transforms.map(({ firstError, laterError }) => `${percent(firstError)} / ${percent(laterError)}`),
      ]),
    ),
  ];
}

const ABOUT_LAYERS =
  'From the profile: the part of the divergence that the keys and values of each layer cause, and their bits in mead.';
