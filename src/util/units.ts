/** Parsing and formatting of sizes, counts and times: 20GiB, 300MB, 32k, 12h. */
import { InputError } from './errors.ts';

const BYTES: Record<string, number> = {
  '': 1,
  b: 1,
  kb: 1e3,
  mb: 1e6,
  gb: 1e9,
  tb: 1e12,
  kib: 2 ** 10,
  mib: 2 ** 20,
  gib: 2 ** 30,
  tib: 2 ** 40,
  k: 2 ** 10,
  m: 2 ** 20,
  g: 2 ** 30,
  t: 2 ** 40,
};

export function parseBytes(text: string): number {
  const [, number, unit] = text.trim().match(/^(\d+(?:\.\d+)?)\s*([a-z]*)$/i) ?? [];
  const factor = BYTES[unit?.toLowerCase()];
  if (factor === undefined || Number(number) === 0)
    throw new InputError(`"${text}" is not a size. Write bytes with a unit: 20GiB, 300MB, 1.5GB.`);
  return Math.floor(Number(number) * factor);
}

/** A count of tokens, layers, heads: 4096, 4k, 128k (k = 1024). */
export function parseCount(text: string): number {
  const [, number, unit] = text.trim().match(/^(\d+)(k?)$/i) ?? [];
  const count = Number(number) * (unit ? 1024 : 1);
  if (!number || count < 1 || !Number.isSafeInteger(count))
    throw new InputError(`"${text}" is not a count. Write a whole number above 0, such as 4096 or 32k.`);
  return count;
}

const MILLISECONDS: Record<string, number> = { ms: 1, s: 1e3, m: 60e3, h: 3600e3, d: 24 * 3600e3 };

/** A time in ms: 500ms, 30s, 15m, 12h, 7d. */
export function parseDuration(text: string): number {
  const [, number, unit] = text.trim().match(/^(\d+)(ms|s|m|h|d)$/i) ?? [];
  const duration = Number(number) * MILLISECONDS[unit?.toLowerCase()];
  if (!(duration > 0))
    throw new InputError(
      `"${text}" is not a time. Write a whole number above 0 with a unit: 500ms, 30s, 15m, 12h, 7d.`,
    );
  return duration;
}

export function parseCounts(text: string): number[] {
  return text.split(',').map(parseCount);
}

/** Memory, in powers of two: `4.66 GiB`. */
export function formatBytes(bytes: number): string {
  const { value, unit } = scale(bytes, 1024, ['B', 'KiB', 'MiB', 'GiB', 'TiB']);
  return `${unit === 'B' ? value : value.toFixed(2)} ${unit}`;
}

/** The same, rounded down: what fits still does as it is written. */
export function formatBytesDown(bytes: number): string {
  const { value, unit } = scale(bytes, 1024, ['B', 'KiB', 'MiB', 'GiB', 'TiB']);
  return `${unit === 'B' ? Math.floor(value) : (Math.floor(100 * value) / 100).toFixed(2)} ${unit}`;
}

/** File sizes, in powers of ten, as on the Hugging Face Hub: `4.68 GB`. */
export function formatFileSize(bytes: number): string {
  const { value, unit } = scale(bytes, 1000, ['B', 'kB', 'MB', 'GB', 'TB']);
  return `${unit === 'B' ? value : value.toPrecision(3)} ${unit}`;
}

function scale(bytes: number, base: number, units: string[]): { value: number; unit: string } {
  let value = bytes;
  let power = 0;
  // Slightly below the base, so that rounding never prints 1000 of a unit.
  while (value >= base - 0.5 && power < units.length - 1) {
    value /= base;
    power++;
  }
  return { value, unit: units[power] };
}

/** `40 seconds`, `19 minutes`, `2.5 hours`. */
export function formatDuration(seconds: number): string {
  const [value, unit] =
    seconds < 90
      ? [Math.max(1, Math.round(seconds)), 'second']
      : seconds < 5400
        ? [Math.round(seconds / 60), 'minute']
        : [Math.round(seconds / 1800) / 2, 'hour'];
  return `${value} ${unit}${value === 1 ? '' : 's'}`;
}

export const formatCount = (count: number): string => count.toLocaleString('en-US');
