/**
 * The little that the tokenizer asks of a model file's metadata. A `Map` fits, and so does any reader with a `get`.
 * Values come from a hostile file, so each getter checks what it hands out.
 */
import { FormatError } from '../../errors.ts';

export interface Metadata {
  get(key: string): unknown;
}

export function getString(meta: Metadata, key: string): string | undefined {
  return checked(meta, key, 'a string', value => (typeof value === 'string' ? value : undefined));
}

export function getBool(meta: Metadata, key: string): boolean | undefined {
  return checked(meta, key, 'true or false', value => (typeof value === 'boolean' ? value : undefined));
}

export function getInt(meta: Metadata, key: string): number | undefined {
  return checked(meta, key, 'a whole number', value => {
    const number = typeof value === 'bigint' ? Number(value) : value;
    return Number.isSafeInteger(number) ? (number as number) : undefined;
  });
}

export function getStrings(meta: Metadata, key: string): readonly string[] | undefined {
  return checked(meta, key, 'an array of strings', value =>
    Array.isArray(value) && value.every(item => typeof item === 'string') ? value : undefined,
  );
}

export function getNumbers(meta: Metadata, key: string): ArrayLike<number> | undefined {
  return checked(meta, key, 'an array of numbers', value => {
    if (value instanceof Float32Array || value instanceof Int32Array || value instanceof Uint32Array) return value;
    return Array.isArray(value) && value.every(item => typeof item === 'number') ? value : undefined;
  });
}

function checked<T>(meta: Metadata, key: string, what: string, read: (value: unknown) => T | undefined): T | undefined {
  const value = meta.get(key);
  if (value === undefined || value === null) return undefined;
  const result = read(value);
  if (result === undefined) {
    throw new FormatError(`The model file's ${key} is not ${what}; the file is damaged, download or convert it again.`);
  }
  return result;
}
