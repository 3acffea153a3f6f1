/** A model's metadata, read with bounds: every number that leaves here is of its kind, finite and in its range. */
import { FormatError, UnsupportedError } from '../errors.ts';
import type { MetaValue } from './gguf-header.ts';

interface Range {
  max: number;
  /** The value where the key is absent; without one the key must be there. */
  missing?: number;
}

export interface MetaReader {
  value(key: string): MetaValue | undefined;
  text(key: string): string | undefined;
  /** A whole number from 1 to max. With `layers`, an array of as many equal ones will do. */
  integer(key: string, range: Range & { layers?: number }): number;
  /** From min to max, both included. */
  real(key: string, range: Range & { min: number }): number;
  fail(what: string): never;
  unsupported(what: string): never;
}

/** Reads keys that begin with `prefix` (the architecture's name). */
export function metaReader(metadata: ReadonlyMap<string, MetaValue>, prefix: string): MetaReader {
  const fail = (what: string): never => {
    throw new FormatError(`The model's metadata is wrong: ${what}. Fetch the file again, or take another.`);
  };
  const unsupported = (what: string): never => {
    throw new UnsupportedError(`The model uses ${what}, which this version does not do. Take another model.`);
  };
  const value = (key: string) => metadata.get(prefix + key);
  const text = (key: string) => {
    const found = value(key);
    if (found !== undefined && typeof found !== 'string') fail(`${prefix}${key} must be text`);
    return found as string | undefined;
  };
  const number = (key: string, missing: number | undefined, layers?: number): number => {
    let found = value(key) ?? missing;
    if (found === undefined) return fail(`${prefix}${key} is missing`);
    if (layers !== undefined && typeof found === 'object') found = sameInAll(key, found, layers);
    return typeof found === 'number' ? found : fail(`${prefix}${key} must be a number`);
  };
  /** Some files write a number for each layer, even where all are alike. */
  const sameInAll = (key: string, values: ArrayLike<unknown>, layers: number): MetaValue => {
    if (values.length !== layers) fail(`${prefix}${key} has ${values.length} numbers for ${layers} layers`);
    for (let i = 1; i < layers; i++) if (values[i] !== values[0]) unsupported(`layers that differ in ${prefix}${key}`);
    return values[0] as MetaValue;
  };
  const inRange = (key: string, x: number, min: number, max: number): number =>
    x >= min && x <= max ? x : fail(`${prefix}${key} must be from ${min} to ${max}, not ${x}`);
  return {
    value,
    text,
    fail,
    unsupported,
    integer(key, { max, missing, layers }) {
      const x = inRange(key, number(key, missing, layers), 1, max);
      return Number.isInteger(x) ? x : fail(`${prefix}${key} must be a whole number, not ${x}`);
    },
    real: (key, { min, max, missing }) => inRange(key, number(key, missing), min, max),
  };
}
