/** One indented line per item, truncated: a repository can have hundreds of files. */
export function bulletList(items: string[], max = 40): string {
  const lines = items.slice(0, max).map(item => `\n  ${item}`);
  if (items.length > max) lines.push(`\n  ... and ${items.length - max} more`);
  return lines.join('');
}

/** Text from a server may contain terminal escape codes: keeps printable characters only, and not too many. */
export const toPrintable = (text: string): string => text.replace(/\p{C}/gu, ' ').slice(0, 200);
