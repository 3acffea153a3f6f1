/**
 * Whether a JSON value satisfies a schema. For values that were written without the grammar: keywords that the grammar does
 * not enforce are not checked, nor are patterns, since hostile ones take very long to match.
 */
import { isPlainObject } from '../../util/describe-value.ts';
import { enforcedKeywords } from './keywords.ts';
import { isDeepEqual, type Schema, typeOf } from './schema-parts.ts';

/** Beyond them, a value counts as right: only hostile schemas and values get there. */
const MAX_DEPTH = 256;
const MAX_CHECKS = 200_000;

/** `root` is the schema that references are resolved in. */
export function satisfies(value: unknown, schema: unknown, root: unknown = schema): boolean {
  let checks = 0;

  const check = (value: unknown, schema: unknown, depth: number): boolean => {
    if (schema === false) return false;
    if (!isPlainObject(schema) || depth > MAX_DEPTH || ++checks > MAX_CHECKS) return true;
    const given = enforcedKeywords(schema);
    const matches = (other: unknown) => check(value, other, depth + 1);
    if (value === null && given.nullable) return true;
    return (
      isOfType(value, given.type) &&
      (!given.enum || given.enum.some(one => isDeepEqual(one, value))) &&
      (!Object.hasOwn(given, 'const') || isDeepEqual(given.const, value)) &&
      (given.$ref === undefined || matches(resolveReference(root, given.$ref) ?? true)) &&
      (given.allOf ?? []).every(matches) &&
      (given.anyOf ?? [true]).some(matches) &&
      (given.oneOf ?? [true]).some(matches) &&
      checkType(value, given, depth + 1)
    );
  };

  const checkType = (value: unknown, schema: Schema, depth: number): boolean => {
    if (typeof value === 'string') return isWithin([...value].length, schema.minLength, schema.maxLength);
    if (typeof value === 'number') return satisfiesBounds(value, schema);
    if (Array.isArray(value)) return checkItems(value, schema, depth);
    return !isPlainObject(value) || checkProperties(value, schema, depth);
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
    { properties = {}, required = [], additionalProperties, patternProperties }: Schema,
    depth: number,
  ): boolean => {
    const schemaOf = (key: string) =>
      Object.hasOwn(properties, key) ? properties[key] : patternProperties ? true : additionalProperties;
    return (
      required.every(key => Object.hasOwn(value, key)) &&
      Object.entries(value).every(([key, item]) => check(item, schemaOf(key), depth))
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

function isOfType(value: unknown, type: Schema['type']): boolean {
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

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
