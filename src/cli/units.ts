/** Sizes as people write them: 20GiB, 300MB, 32k. */
import { InputError } from '../errors.ts';

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

export function parseCounts(text: string): number[] {
  return text.split(',').map(parseCount);
}

export function formatBytes(bytes: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  const power = Math.min(units.length - 1, bytes < 1024 ? 0 : Math.floor(Math.log2(bytes) / 10));
  return `${power === 0 ? bytes : (bytes / 1024 ** power).toFixed(2)} ${units[power]}`;
}

export const formatCount = (count: number): string => count.toLocaleString('en-US');
