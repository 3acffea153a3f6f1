/** The known name that somebody most likely meant. */
export function nearest(name: string, known: readonly string[]): string | undefined {
  const wanted = plain(name);
  let best: string | undefined;
  // Two slips in a long name, one in a short one; more is another word.
  let least = wanted.length > 5 ? 3 : 2;
  for (const candidate of known) {
    const distance = editDistance(wanted, plain(candidate));
    if (distance >= least) continue;
    best = candidate;
    least = distance;
  }
  return best;
}

/** `max_tokens`, `max-tokens` and `maxTokens` are one name. */
const plain = (name: string): string => name.replace(/[_-]/g, '').toLowerCase();

/** Letters put in, left out, changed, or swapped with the next one. */
function editDistance(a: string, b: string): number {
  // Names are short; a long one is no slip of a known one.
  if (Math.abs(a.length - b.length) > 3) return Number.POSITIVE_INFINITY;
  const rows = [Array.from({ length: b.length + 1 }, (_, j) => j)];
  for (let i = 1; i <= a.length; i++) {
    const row = [i];
    for (let j = 1; j <= b.length; j++) {
      const change = rows[i - 1][j - 1] + (a[i - 1] === b[j - 1] ? 0 : 1);
      row[j] = Math.min(change, rows[i - 1][j] + 1, row[j - 1] + 1);
      if (a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]) row[j] = Math.min(row[j], rows[i - 2][j - 2] + 1);
    }
    rows.push(row);
  }
  return rows[a.length][b.length];
}
