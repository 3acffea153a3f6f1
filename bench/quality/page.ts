/** Renders results as docs/quality.md. Everything on the page comes from the results. */
import { formatCount } from '../../src/util/units.ts';
import { renderBreaks } from './breaks.ts';
import { MIN_ROWS, RESAMPLES } from './interval.ts';
import { markdownTable, paragraph } from './markdown.ts';
import type { Picture } from './pictures.ts';
import { ABOUT_NORMS, renderNorms } from './render-norms.ts';
import { average, completeRows, DEFAULT_PROFILE, findMeasurements, modelName, type Results } from './results.ts';
import { measuredSections, suiteOf, transferProfiles } from './sections.ts';
import { defaultTable, planKey, type Section } from './suite.ts';
import { isUnmeasured, sectionTable } from './tables.ts';

/** Codecs of the first table, for readers who want one line per choice. */
const SUMMARY = ['q8_0', 'q4_0h', 'tq4', 'mead3', 'tq3', 'oscar2g32', 'kivi2g32', 'tq2', 'mead2', 'vec-d4b8'];

export interface ModelPart {
  results: Results;
  pictures: readonly Picture[];
}

/** In the order of the models. */
export function qualityPage(models: readonly ModelPart[]): string {
  const all = models.map(({ results }) => results);
  return `${[
    '# Quality',
    paragraph(`How much each codec changes the predictions of ${all.map(modelName).join(', ')}.`),
    paragraph(ABOUT_NUMBERS),
    describeTexts(all),
    ...renderSummaries(all),
    ...renderBreaks(all),
    ...models.flatMap(renderModel),
  ].join('\n\n')}\n`;
}

const ABOUT_NUMBERS =
  'Divergence is the mean Kullback-Leibler divergence of the predictions from those with an f16 cache, in nats per ' +
  'token, in [precise mode](evaluation.md#precise-mode). Bits are code bits per value: everything that a sealed ' +
  'page stores, scales, norms and means included. All codecs read the same rows with the same window. A row is read ' +
  'from an empty cache; its second half is scored. [How this page is made](evaluation.md#all-codecs).';

const ABOUT_DETAILS =
  'Bold: no codec of the table with as few bits is better on that text. Top-1 is the share of tokens whose most likely ' +
  'next token is that of f16, averaged over the texts.';

const aboutIntervals = (rows: number): string =>
  `± is half of the 95 % interval of the mean over the ${rows} rows (bootstrap, ${formatCount(RESAMPLES)} resamples): how ` +
  'much it would vary with other rows of the same text.';

function renderSummaries(models: readonly Results[]): string[] {
  const parts = models.map(renderSummary).filter(part => part.length > 0);
  return parts.length > 0 ? ['## Summary', ...parts.flat()] : [];
}

function renderSummary(results: Results): string[] {
  const table = defaultTable(suiteOf(results));
  const entries = table.entries.filter(({ plan }) => SUMMARY.includes(plan.kv) && !isUnmeasured(results, table, plan));
  if (entries.length === 0) return [];
  return [
    paragraph(`${modelName(results)}, ${describeRows(results)} per kind of text:`),
    sectionTable(results, { ...table, entries }, false),
  ];
}

function renderModel({ results, pictures }: ModelPart): string[] {
  const sections = measuredSections(results);
  const picturesOf = (part: Picture['part']) =>
    pictures.filter(picture => picture.part === part).map(({ file, alt }) => `![${alt}](${file})`);
  const render = (part: Section['part'], level: string) =>
    sections.filter(section => section.part === part).flatMap(section => renderSection(results, section, level));
  const ablations = render('ablations', '####');
  const norms = Object.entries(results.norms).flatMap(([text, layers]) => renderNorms(text, layers));
  const layers = picturesOf('layers');
  return [
    `## ${modelName(results)}`,
    paragraph(describeModel(results)),
    ['```sh', commandOf(results, ablations.length > 0), '```'].join('\n'),
    ...picturesOf('tables'),
    ...render('tables', '###'),
    perplexities(results),
    ...(ablations.length > 0 ? ['### Ablations', ...ablations] : []),
    ...(norms.length > 0 ? ['#### Token norms', paragraph(ABOUT_NORMS), ...norms, ...picturesOf('norms')] : []),
    ...(layers.length > 0 ? ['### Layers', paragraph(ABOUT_LAYERS), ...layers] : []),
  ];
}

function describeModel(results: Results): string {
  const { model, device, layers, headDim } = results.setup;
  const profile = results.profiles[DEFAULT_PROFILE];
  const calibration = profile
    ? `Calibrated codecs use one profile, learned from ${formatCount(profile.tokens)} tokens` +
      `${profile.sources.length > 0 ? ` of ${profile.sources.join(', ')}` : ''}.`
    : 'No profile was given, so that codecs that need calibration were not measured.';
  return (
    `\`${model}\` (${layers} layers, heads of ${headDim} dims), ${describeRows(results)} per kind of text, on ${device}. ` +
    `${calibration} Measured by:`
  );
}

/** The command that makes these results, with file names instead of paths. */
function commandOf(results: Results, hasAblations: boolean): string {
  const { model, device, context } = results.setup;
  const texts = Object.entries(results.texts).map(
    ([name, { file, special, skip }]) => `${name}=${file}${special ? ':special' : ''}${skip > 0 ? `:${skip}` : ''}`,
  );
  const transfer = transferProfiles(results).map(name => `${name}=${name}.kvprofile`);
  const parts = ['tables', ...(results.prefill.length > 0 ? ['prefill'] : []), ...(hasAblations ? ['ablations'] : [])];
  return [
    `npm run bench -- quality --model ${model} --device ${device}`,
    `--rows ${completeRows(results)} --context ${context} --part ${parts.join(',')}`,
    ...(results.profiles[DEFAULT_PROFILE] ? ['--profile MODEL.kvprofile'] : []),
    `--texts "${texts.join(',')}"`,
    ...(transfer.length > 0 ? [`--transfer ${transfer.join(',')}`] : []),
  ].join(' \\\n  ');
}

const countRows = (rows: number): string => (rows === 1 ? 'one row' : `${rows} rows`);
const describeRows = (results: Results): string =>
  `${countRows(completeRows(results))} of ${formatCount(results.setup.context)} tokens`;

/** Models are measured on the same texts, so most lines are those of all models. */
function describeTexts(models: readonly Results[]): string {
  const lines = models.flatMap(({ texts }) =>
    Object.entries(texts).map(([name, { file, special, skip }]) => [
      name,
      `\`${file}\``,
      String(skip),
      special ? 'parsed' : 'as text',
    ]),
  );
  const distinct = new Map(lines.map(line => [line.join('|'), line]));
  return markdownTable(['text', 'file', 'rows skipped', 'special tokens'], [...distinct.values()]);
}

function renderSection(results: Results, section: Section, level: string): string[] {
  const missing = section.entries.filter(({ plan }) => isUnmeasured(results, section, plan));
  const missingNames = missing.map(({ labels }) => labels.join(' ').replace(/\s+/g, ' ').trim());
  const about = [
    section.about,
    ...(section.rows < completeRows(results) ? [`Measured on ${countRows(section.rows)}.`] : []),
    ...(section.intervals ? [ABOUT_DETAILS] : []),
    ...(section.intervals && section.rows >= MIN_ROWS ? [aboutIntervals(section.rows)] : []),
    ...(section.intervals && results.prefill.length > 0 ? [ABOUT_PREFILL] : []),
  ];
  return [
    `${level} ${section.title}`,
    paragraph(about.join(' ')),
    sectionTable(results, section, section.part === 'tables'),
    ...(missing.length > 0 ? [paragraph(`Not measured: ${missingNames.join(', ')}.`)] : []),
  ];
}

const ABOUT_PREFILL = 'Prefill is the speed of reading a prompt, relative to f16 in the same run.';

function perplexities(results: Results): string {
  const rows = completeRows(results);
  const values = Object.keys(results.texts).map(text => {
    const found = findMeasurements(results, planKey('f16'), text, rows);
    return `${text} ${found.length > 0 ? average(found).perplexity.toFixed(2) : '-'}`;
  });
  return paragraph(`Perplexity with f16: ${values.join(', ')}.`);
}

const ABOUT_LAYERS =
  'From the profile: the part of the divergence that the keys and values of each layer cause, and their bits in mead.';
