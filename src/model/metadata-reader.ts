/** Reads a model's metadata with range checks: every number returned is finite, of its type and in its range. */
import { FormatError, UnsupportedError } from '../util/errors.ts';
import type { MetadataValue } from './gguf-header.ts';

interface Range {
  max: number;
  /** Used if the key is absent; without a fallback the key is required. */
  fallback?: number;
}

export interface MetadataReader {
  value(key: string): MetadataValue | undefined;
  string(key: string): string | undefined;
  /** An integer from 1 to max. With `layers`, also an array of that many equal integers. */
  integer(key: string, range: Range & { layers?: number }): number;
  boolean(key: string, fallback: boolean): boolean;
  /** From min to max, inclusive. */
  float(key: string, range: Range & { min: number }): number;
  fail(what: string): never;
  unsupported(what: string): never;
}

/** Reads keys that start with `prefix` (the architecture's name). */
export function createMetadataReader(metadata: ReadonlyMap<string, MetadataValue>, prefix: string): MetadataReader {
  const fail = (what: string): never => {
    throw new FormatError(`The model's metadata is invalid: ${what}. Download the file again, or use another.`);
  };
  const unsupported = (what: string): never => {
    throw new UnsupportedError(`The model uses ${what}, which is not supported. Use another model.`);
  };
  const value = (key: string) => metadata.get(prefix + key);
  const string = (key: string) => {
    const found = value(key);
    if (found !== undefined && typeof found !== 'string') fail(`${prefix}${key} must be a string`);
    return found as string | undefined;
  };
  const number = (key: string, fallback: number | undefined, layers?: number): number => {
    let found = value(key) ?? fallback;
    if (found === undefined) return fail(`${prefix}${key} is missing`);
    if (layers !== undefined && typeof found === 'object') found = sameInAllLayers(key, found, layers);
    return typeof found === 'number' ? found : fail(`${prefix}${key} must be a number`);
  };
  /** Some files have one number per layer, even if all are equal. */
  const sameInAllLayers = (key: string, values: ArrayLike<unknown>, layers: number): MetadataValue => {
    if (values.length !== layers) fail(`${prefix}${key} has ${values.length} numbers for ${layers} layers`);
    for (let i = 1; i < layers; i++) if (values[i] !== values[0]) unsupported(`layers that differ in ${prefix}${key}`);
    return values[0] as MetadataValue;
  };
  const inRange = (key: string, x: number, min: number, max: number): number =>
    x >= min && x <= max ? x : fail(`${prefix}${key} must be from ${min} to ${max}, not ${x}`);
  return {
    value,
    string,
    fail,
    unsupported,
    integer(key, { max, fallback, layers }) {
      const x = inRange(key, number(key, fallback, layers), 1, max);
      return Number.isInteger(x) ? x : fail(`${prefix}${key} must be an integer, not ${x}`);
    },
    boolean(key, fallback) {
      const found = value(key) ?? fallback;
      return typeof found === 'boolean' ? found : fail(`${prefix}${key} must be true or false`);
    },
    float: (key, { min, max, fallback }) => inRange(key, number(key, fallback), min, max),
  };
}
