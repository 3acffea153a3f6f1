/**
 * Whether a JSON value satisfies a schema. For values that were written without the grammar: what the grammar enforces is
 * checked. Keywords that it does not enforce are not.
 */
import { isPlainObject } from '../../util/describe-value.ts';
import { enforcedKeywords } from './keywords.ts';
import { decimalPlaces } from './numbers.ts';
import { formats, isFormat, matchesPattern } from './pattern.ts';
import { isDeepEqual, type Schema, sizeOf, typeOf } from './schema-parts.ts';
import type { Spend } from './work.ts';

/** Beyond it, a value counts as right unless the check is strict: only hostile schemas and values get there. */
const MAX_DEPTH = 256;
/** Steps of a check, besides those of the size of the schema. */
const CHECK_WORK = 10;

export interface CheckOptions {
  /** The schema that references are resolved in. Default: the schema itself. */
  root?: unknown;
  /** Whether formats are checked: values that are right otherwise may differ from our patterns of them. Default: false. */
  isStrict?: boolean;
  spend: Spend;
}

export function satisfies(
  value: unknown,
  schema: unknown,
  { root = schema, isStrict = false, spend }: CheckOptions,
): boolean {
  const check = (value: unknown, schema: unknown, depth: number): boolean => {
    if (schema === false) return false;
    if (!isPlainObject(schema)) return true;
    if (depth > MAX_DEPTH) return !isStrict;
    spend(CHECK_WORK + 4 * sizeOf(schema));
    const given = enforcedKeywords(schema);
    const matches = (other: unknown) => check(value, other, depth + 1);
    if (value === null && given.nullable) return true;
    return (
      isOfType(value, given.type) &&
      (!given.enum || given.enum.some(one => isDeepEqual(one, value, spend))) &&
      (!Object.hasOwn(given, 'const') || isDeepEqual(given.const, value, spend)) &&
      (given.$ref === undefined || matches(resolveReference(root, given.$ref) ?? true)) &&
      (given.allOf ?? []).every(matches) &&
      (given.anyOf ?? [true]).some(matches) &&
      (given.oneOf ?? [true]).some(matches) &&
      checkType(value, given, depth + 1)
    );
  };

  const checkType = (value: unknown, schema: Schema, depth: number): boolean => {
    if (typeof value === 'string') return checkText(value, schema);
    if (typeof value === 'number') return satisfiesBounds(value, schema) && isMultiple(value, schema.multipleOf);
    if (Array.isArray(value)) return checkItems(value, schema, depth);
    return !isPlainObject(value) || checkProperties(value, schema, depth);
  };

  const checkText = (value: string, { minLength, maxLength, pattern, format }: Schema): boolean => {
    spend(value.length / 8);
    return (
      isWithin([...value].length, minLength, maxLength) &&
      (pattern === undefined || matchesPattern(value, pattern, spend) !== false) &&
      // Beside a pattern, a format only describes.
      (!isStrict ||
        pattern !== undefined ||
        format === undefined ||
        !isFormat(format) ||
        matchesPattern(value, formats[format], spend) !== false)
    );
  };

  const checkItems = (
    values: readonly unknown[],
    { items, prefixItems = [], minItems, maxItems }: Schema,
    depth: number,
  ): boolean => {
    const schemaOf = (i: number) => prefixItems[i] ?? (Array.isArray(items) ? true : items);
    return isWithin(values.length, minItems, maxItems) && values.every((item, i) => check(item, schemaOf(i), depth));
  };

  const checkProperties = (
    value: Record<string, unknown>,
    { properties = {}, required = [], additionalProperties, patternProperties = {}, propertyNames }: Schema,
    depth: number,
  ): boolean => {
    const patterns = Object.entries(patternProperties);
    const checkProperty = (key: string, item: unknown): boolean => {
      const found = patterns.map(([pattern, schema]) => ({ schema, matches: matchesPattern(key, pattern, spend) }));
      const isKnown = Object.hasOwn(properties, key);
      // A pattern that is not supported may be about any name.
      const isOther = !isKnown && found.every(({ matches }) => matches === false);
      return (
        check(key, propertyNames, depth) &&
        (!isKnown || check(item, properties[key], depth)) &&
        found.every(({ schema, matches }) => !matches || check(item, schema, depth)) &&
        (!isOther || check(item, additionalProperties, depth))
      );
    };
    return (
      required.every(key => Object.hasOwn(value, key)) &&
      Object.entries(value).every(([key, item]) => checkProperty(key, item))
    );
  };

  return check(value, schema, 0);
}

/** What a reference such as `#/$defs/node` stands for; undefined if there is nothing. */
export function resolveReference(root: unknown, reference: string): unknown {
  if (reference !== '#' && !reference.startsWith('#/')) return undefined;
  let target = root;
  for (const part of reference.split('/').slice(1)) {
    const key = decode(part).replaceAll('~1', '/').replaceAll('~0', '~');
    if (typeof target !== 'object' || target === null || !Object.hasOwn(target, key)) return undefined;
    target = (target as Record<string, unknown>)[key];
  }
  return target;
}

export function isOfType(value: unknown, type: Schema['type']): boolean {
  if (type === undefined) return true;
  const [types, own] = [[type].flat(), typeOf(value)];
  return types.includes(own) || (own === 'integer' && types.includes('number'));
}

const isWithin = (value: number, min = Number.NEGATIVE_INFINITY, max = Number.POSITIVE_INFINITY): boolean =>
  value >= min && value <= max;

const satisfiesBounds = (value: number, schema: Schema): boolean => {
  const { exclusiveMinimum = Number.NEGATIVE_INFINITY, exclusiveMaximum = Number.POSITIVE_INFINITY } = schema;
  return isWithin(value, schema.minimum, schema.maximum) && value > exclusiveMinimum && value < exclusiveMaximum;
};

/** Steps that the grammar does not enforce are not checked. */
function isMultiple(value: number, step: number | undefined): boolean {
  const places = step === undefined ? undefined : decimalPlaces(step);
  return places === undefined || Number(value.toFixed(places)) === value;
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
