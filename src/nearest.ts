/** The known name that somebody probably meant. */

/** Undefined where none is close: past a third of its letters, another name is a guess. Case does not count. */
export function nearest(name: string, known: readonly string[]): string | undefined {
  const ranked = known
    .map(candidate => ({ candidate, edits: editDistance(name.toLowerCase(), candidate.toLowerCase()) }))
    .sort((a, b) => a.edits - b.edits);
  const best = ranked[0];
  return best && best.edits <= Math.max(1, Math.ceil(best.candidate.length / 3)) ? best.candidate : undefined;
}

/** Insertions, deletions, replacements, and swaps of two neighbours (Damerau, restricted). */
export function editDistance(a: string, b: string): number {
  const rows = [Array.from({ length: b.length + 1 }, (_, j) => j)];
  for (let i = 1; i <= a.length; i++) {
    const row = [i];
    for (let j = 1; j <= b.length; j++) {
      const replaced = rows[i - 1][j - 1] + (a[i - 1] === b[j - 1] ? 0 : 1);
      row[j] = Math.min(replaced, rows[i - 1][j] + 1, row[j - 1] + 1);
      if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1])
        row[j] = Math.min(row[j], rows[i - 2][j - 2] + 1);
    }
    rows.push(row);
  }
  return rows[a.length][b.length];
}
