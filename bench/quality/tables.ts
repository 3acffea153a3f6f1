/** Tables of docs/quality.md: a line per plan, a column per kind of text. */
import { formatShort } from '../../src/cli/table.ts';
import { paretoFront } from '../../src/eval/plot.ts';
import { intervalOfMean, MIN_ROWS } from './interval.ts';
import { markdownTable } from './markdown.ts';
import { average, findMeasurements, type PlanKey, planId, type Results } from './results.ts';
import type { Entry, Section } from './suite.ts';

type Mean = ReturnType<typeof average> & {
  /** The divergence of each row. */
  rows: number[];
};

interface Line {
  entry: Entry;
  /** By text; undefined if not all rows were measured. */
  means: (Mean | undefined)[];
}

export const isUnmeasured = (results: Results, { texts, rows }: Section, plan: PlanKey): boolean =>
  results.refused[planId(plan)] === undefined && texts.every(text => !meanOf(results, plan, text, rows));

/** Undefined if not all rows were measured. */
export function meanOf(results: Results, plan: PlanKey, text: string, rows: number): Mean | undefined {
  const found = findMeasurements(results, plan, text, rows);
  return found.length === rows ? { ...average(found), rows: found.map(({ kld }) => kld) } : undefined;
}

/** With `details`: with bold, top-1 and prefill. */
export function sectionTable(results: Results, section: Section, details: boolean): string {
  const { labels, texts, rows, part, pivot } = section;
  const lines = section.entries
    .filter(({ plan }) => !isUnmeasured(results, section, plan))
    .map((entry): Line => ({ entry, means: texts.map(text => meanOf(results, entry.plan, text, rows)) }));
  if (pivot) return pivotTable(results, section, lines);
  if (part === 'tables') lines.sort((a, b) => bitsOf(b) - bitsOf(a) || meanKld(a) - meanKld(b));
  const bold = details ? texts.map((_, i) => bestLines(lines, i)) : [];
  const timed = details && lines.some(({ entry }) => prefillSpeed(results, entry.plan.kv) !== undefined);
  const format = details && section.intervals && rows >= MIN_ROWS ? formatWithInterval : formatKld;
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
        ...means.map((mean, i) => (mean ? format(mean, bold[i]?.has(line)) : '-')),
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
  const cellOf = ({ entry, means }: Line, text: number) => {
    const mean = means[text];
    return results.refused[planId(entry.plan)] ?? (mean ? formatKld(mean) : '-');
  };
  const cells = [...new Set(lines.map(nameOf))].flatMap(name =>
    texts.map((text, i) => [
      ...name.split('|'),
      text,
      ...columns.map(column => {
        const line = lines.find(one => nameOf(one) === name && one.entry.labels.at(-1) === column);
        return line ? cellOf(line, i) : '-';
      }),
    ]),
  );
  return markdownTable([...labels.slice(0, -1), 'text', ...columns], cells);
}

const embolden = (text: string, isBold = false) => (isBold ? `**${text}**` : text);
const formatKld = ({ kld }: Mean, isBold?: boolean) => embolden(formatShort(kld), isBold);

/** Two digits, since the third is within the interval of most means, and one digit of the interval. */
function formatWithInterval({ kld, rows }: Mean, isBold?: boolean): string {
  const half = intervalOfMean(rows);
  const short = half > 0 && half < 1e-4 ? half.toExponential(0) : formatShort(Number(half.toPrecision(1)));
  return `${embolden(formatShort(Number(kld.toPrecision(2))), isBold)} ±${short}`;
}

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
