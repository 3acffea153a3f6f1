/** A Markdown table with padded columns. */
export function markdownTable(header: readonly string[], lines: readonly (readonly string[])[]): string {
  const widths = header.map((name, i) => Math.max(3, name.length, ...lines.map(cells => cells[i].length)));
  const row = (cells: readonly string[]) => `| ${cells.map((cell, i) => cell.padEnd(widths[i])).join(' | ')} |`;
  return [row(header), row(widths.map(width => '-'.repeat(width))), ...lines.map(row)].join('\n');
}

/** Wraps a paragraph at spaces. */
export function paragraph(text: string, width = 120): string {
  const lines = [''];
  for (const word of text.split(/\s+/)) {
    const last = lines[lines.length - 1];
    if (last === '') lines[lines.length - 1] = word;
    else if (last.length + 1 + word.length <= width) lines[lines.length - 1] = `${last} ${word}`;
    else lines.push(word);
  }
  return lines.join('\n');
}
