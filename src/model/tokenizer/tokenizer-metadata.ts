/** Typed access to the tokenizer's metadata in a model file. The file is untrusted: every getter checks the value. */
import { FormatError } from '../../util/errors.ts';

/** Any reader with a `get`, such as a `Map`. */
export interface Metadata {
  get(key: string): unknown;
}

export function getString(meta: Metadata, key: string): string | undefined {
  return getChecked(meta, key, 'a string', value => (typeof value === 'string' ? value : undefined));
}

export function getBool(meta: Metadata, key: string): boolean | undefined {
  return getChecked(meta, key, 'true or false', value => (typeof value === 'boolean' ? value : undefined));
}

export function getInt(meta: Metadata, key: string): number | undefined {
  return getChecked(meta, key, 'a whole number', value => {
    const number = typeof value === 'bigint' ? Number(value) : value;
    return Number.isSafeInteger(number) ? (number as number) : undefined;
  });
}

export function getStrings(meta: Metadata, key: string): readonly string[] | undefined {
  return getChecked(meta, key, 'an array of strings', value =>
    Array.isArray(value) && value.every(item => typeof item === 'string') ? value : undefined,
  );
}

export function getNumbers(meta: Metadata, key: string): ArrayLike<number> | undefined {
  return getChecked(meta, key, 'an array of numbers', value => {
    if (value instanceof Float32Array || value instanceof Int32Array || value instanceof Uint32Array) return value;
    return Array.isArray(value) && value.every(item => typeof item === 'number') ? value : undefined;
  });
}

function getChecked<T>(
  meta: Metadata,
  key: string,
  what: string,
  read: (value: unknown) => T | undefined,
): T | undefined {
  const value = meta.get(key);
  if (value === undefined || value === null) return undefined;
  const result = read(value);
  if (result === undefined) {
    throw new FormatError(`The model file's ${key} is not ${what}; the file is damaged, download or convert it again.`);
  }
  return result;
}
