/** The known name closest to a misspelled one; undefined if none is close. */
export function closestName(name: string, known: readonly string[]): string | undefined {
  const wanted = normalize(name);
  let best: string | undefined;
  // Up to two edits in a long name, one in a short one.
  let limit = wanted.length > 5 ? 3 : 2;
  for (const candidate of known) {
    const distance = editDistance(wanted, normalize(candidate));
    if (distance >= limit) continue;
    best = candidate;
    limit = distance;
  }
  return best;
}

/** `max_tokens`, `max-tokens` and `maxTokens` are equal. */
const normalize = (name: string): string => name.replace(/[_-]/g, '').toLowerCase();

/** Damerau-Levenshtein distance: insertions, deletions, substitutions, and swaps of adjacent characters. Infinity if it is large. */
export function editDistance(a: string, b: string): number {
  // The work is quadratic.
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
