/** Two schemas at once: what satisfies both, and whether anything does. */
import type { Bounds } from './numbers.ts';

/** The keywords of a schema that are enforced. */
export interface Schema extends Bounds {
  type?: string | readonly string[];
  nullable?: boolean;
  enum?: readonly unknown[];
  const?: unknown;
  $ref?: string;
  anyOf?: readonly unknown[];
  oneOf?: readonly unknown[];
  allOf?: readonly unknown[];
  properties?: Record<string, unknown>;
  required?: readonly string[];
  additionalProperties?: unknown;
  items?: unknown;
  prefixItems?: readonly unknown[];
  minItems?: number;
  maxItems?: number;
  minLength?: number;
  maxLength?: number;
  pattern?: string;
  format?: string;
}

const KEYWORDS_BY_TYPE: Record<string, readonly (keyof Schema)[]> = {
  object: ['properties', 'required', 'additionalProperties'],
  array: ['items', 'prefixItems', 'minItems', 'maxItems'],
  string: ['minLength', 'maxLength', 'pattern', 'format'],
  number: ['minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum'],
};

/** The types that a schema names or that its keywords are about; undefined: any. */
export function inferTypes(schema: Schema): readonly string[] | undefined {
  if (schema.type !== undefined) return [...new Set([schema.type].flat())];
  const types = Object.keys(KEYWORDS_BY_TYPE).filter(type =>
    KEYWORDS_BY_TYPE[type].some(key => schema[key] !== undefined),
  );
  return types.length > 0 ? types : undefined;
}

export function typeOf(value: unknown): string {
  if (value === null) return 'null';
  if (Array.isArray(value)) return 'array';
  return Number.isInteger(value) ? 'integer' : typeof value;
}

const LARGER = ['minimum', 'exclusiveMinimum', 'minItems', 'minLength'];
const SMALLER = ['maximum', 'exclusiveMaximum', 'maxItems', 'maxLength'];

/** A schema of what satisfies both, or the keyword that makes it too difficult. */
export function conjoin(a: Schema, b: Schema): { joined: Schema; problem?: string } {
  const joined: Record<string, unknown> = { ...a };
  const isClosed = (schema: Schema) => schema.additionalProperties !== undefined;
  if ((isClosed(a) && b.properties) || (isClosed(b) && a.properties) || (isClosed(a) && isClosed(b)))
    return { joined: {}, problem: 'additionalProperties with other properties' };
  if ((a.prefixItems && b.items !== undefined) || (b.prefixItems && a.items !== undefined))
    return { joined: {}, problem: 'prefixItems with items' };
  if (!a.nullable !== !b.nullable && Object.keys(a).length > 0 && Object.keys(b).length > 0)
    return { joined: {}, problem: 'nullable with other keywords' };
  for (const [key, value] of Object.entries(b)) {
    const before = joined[key];
    if (before === undefined || isDeepEqual(before, value)) joined[key] = value;
    else if (key === 'type') joined.type = commonTypes([before].flat() as string[], [value].flat() as string[]);
    else if (key === 'required') joined.required = [...new Set([...(before as string[]), ...(value as string[])])];
    else if (LARGER.includes(key)) joined[key] = Math.max(before as number, value as number);
    else if (SMALLER.includes(key)) joined[key] = Math.min(before as number, value as number);
    else if (key === 'enum')
      joined.enum = (before as unknown[]).filter(one => (value as unknown[]).some(other => isDeepEqual(one, other)));
    else if (key === 'properties') {
      const names = Object.keys(value as object).filter(name => Object.hasOwn(before as object, name));
      const both = names.map(name => [
        name,
        { allOf: [(before as Schema)[name as never], (value as Schema)[name as never]] },
      ]);
      joined.properties = { ...(before as object), ...(value as object), ...Object.fromEntries(both) };
    } else return { joined: {}, problem: `two different ${key}` };
  }
  return { joined };
}

function commonTypes(a: readonly string[], b: readonly string[]): string[] {
  const includes = (types: readonly string[], type: string) =>
    types.includes(type) || (type === 'integer' && types.includes('number'));
  return [...new Set([...a.filter(type => includes(b, type)), ...b.filter(type => includes(a, type))])];
}

/** Whether surely no value satisfies both. `resolve` returns a schema without a reference. */
export function areDisjoint(a: Schema, b: Schema, resolve: (schema: unknown) => Schema, depth = 0): boolean {
  if (a.nullable && b.nullable) return false;
  const [valuesA, valuesB] = [constantsOf(a), constantsOf(b)];
  if (valuesA && valuesB) return !valuesA.some(one => valuesB.some(other => isDeepEqual(one, other)));
  const [typesA, typesB] = [typesOf(a), typesOf(b)];
  if (typesA && typesB && commonTypes(typesA, typesB).length === 0) return true;
  const isObject = (types?: readonly string[]) => types?.length === 1 && types[0] === 'object';
  if (!isObject(typesA) || !isObject(typesB) || depth > 8) return false;
  // Objects that differ in a property that both must have.
  const shared = (a.required ?? []).filter(name => b.required?.includes(name));
  return shared.some(name => {
    const [one, other] = [a.properties?.[name], b.properties?.[name]];
    return one !== undefined && other !== undefined && areDisjoint(resolve(one), resolve(other), resolve, depth + 1);
  });
}

const constantsOf = (schema: Schema): readonly unknown[] | undefined =>
  Object.hasOwn(schema, 'const') ? [schema.const] : schema.enum;

function typesOf(schema: Schema): readonly string[] | undefined {
  if (schema.anyOf ?? schema.oneOf ?? schema.allOf) return undefined;
  const types = constantsOf(schema)?.map(typeOf) ?? (schema.type === undefined ? undefined : [schema.type].flat());
  return types && (schema.nullable ? [...types, 'null'] : types);
}

/** Whether two JSON values are equal. */
export function isDeepEqual(a: unknown, b: unknown): boolean {
  if (a === b) return true;
  if (typeof a !== 'object' || typeof b !== 'object' || a === null || b === null) return false;
  if (Array.isArray(a) !== Array.isArray(b)) return false;
  const [one, other] = [a as Record<string, unknown>, b as Record<string, unknown>];
  const keys = Object.keys(one);
  return (
    keys.length === Object.keys(other).length &&
    keys.every(key => Object.hasOwn(other, key) && isDeepEqual(one[key], other[key]))
  );
}
