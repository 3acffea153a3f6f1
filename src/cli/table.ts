/** A number with an optional unit, or nothing: 1,234  +1.5  <.001  1.2e-5  3.88x  66/50  4.66 GiB */
const NUMBER = /^([-+<]?[\d.,]+(e-?\d+)?(x|%|\/\d+| [KMGT]?i?B)?)?$/;

/** A plain text table; columns of numbers are right-aligned. */
export function formatTable(header: string[], rows: (string | number)[][]): string {
  const text = rows.map(row => row.map(String));
  const widths = header.map((title, i) => Math.max(title.length, ...text.map(row => row[i].length)));
  const rightAligned = header.map((_, i) => text.length > 0 && text.every(row => NUMBER.test(row[i])));
  const line = (cells: string[]) =>
    cells
      .map((cell, i) => (rightAligned[i] ? cell.padStart(widths[i]) : cell.padEnd(widths[i])))
      .join('  ')
      .trimEnd();
  return [line(header), widths.map(width => '-'.repeat(width)).join('  '), ...text.map(line)].join('\n');
}

/** Three significant digits: .0093, 1.2e-5, 12.3. */
export function formatShort(x: number): string {
  if (x === 0) return '0';
  if (Math.abs(x) < 1e-4) return x.toExponential(1);
  return Number(x.toPrecision(3)).toString().replace(/^0\./, '.');
}

/** One line per name and text; those without a text are left out. */
export const formatFields = (fields: readonly (readonly [name: string, text?: string])[], width = 13): string[] =>
  fields.flatMap(([name, text]) => (text === undefined ? [] : [`${name.padEnd(width)}${text}`]));

/** One line per codec that does not support a shape. */
export const refusals = (rows: readonly object[]): string[] =>
  rows.flatMap(row => ('refused' in row && 'spec' in row ? [`${row.spec}: not available. ${row.refused}`] : []));

/** "1 page", "12 pages". */
export const formatPlural = (count: number, noun: string): string =>
  `${count.toLocaleString('en-US')} ${noun}${count === 1 ? '' : 's'}`;

/** Prints a result on stdout: as JSON, or as text. */
export function printResult<T>(json: boolean | undefined, result: T, render: (result: T) => string): void {
  console.log(json ? JSON.stringify(result, null, 1) : render(result));
}
