/** A number with an optional unit: 1,234  .0093  1.2e-5  3.88x  66/50  4.66 GiB */
const NUMBER = /^-?[\d.,]+(e-?\d+)?(x|%|\/\d+| [KMGT]?i?B)?$/;

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
