/** Words for people: sizes, lists, and what a server said made safe to print. */

const units = ['B', 'kB', 'MB', 'GB', 'TB'];

/** Bytes in powers of ten, as disks and the hub's own pages count them: `4.68 GB`. */
export function formatBytes(bytes: number): string {
  let value = bytes;
  let unit = 0;
  while (value >= 999.5 && unit < units.length - 1) {
    value /= 1000;
    unit++;
  }
  return `${unit === 0 ? value : value.toPrecision(3)} ${units[unit]}`;
}

/** One indented line an item, cut short where a repository holds hundreds of files. */
export function bullets(items: string[], most = 40): string {
  const lines = items.slice(0, most).map(item => `\n  ${item}`);
  if (items.length > most) lines.push(`\n  ... and ${items.length - most} more`);
  return lines.join('');
}

/** A server's own words may hold escape codes that move a terminal's cursor: printable characters only, and few. */
export const printable = (text: string): string => text.replace(/\p{C}/gu, ' ').slice(0, 200);
