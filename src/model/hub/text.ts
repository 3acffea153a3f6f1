/** Words for people: lists, and what a server said made safe to print. */

/** One indented line an item, cut short where a repository holds hundreds of files. */
export function bullets(items: string[], most = 40): string {
  const lines = items.slice(0, most).map(item => `\n  ${item}`);
  if (items.length > most) lines.push(`\n  ... and ${items.length - most} more`);
  return lines.join('');
}

/** A server's own words may hold escape codes that move a terminal's cursor: printable characters only, and few. */
export const printable = (text: string): string => text.replace(/\p{C}/gu, ' ').slice(0, 200);
