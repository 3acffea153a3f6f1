/** Two schemas at once: what satisfies both, and whether anything does. */
import type { Bounds } from './numbers.ts';
import type { Spend } from './work.ts';

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
  patternProperties?: Record<string, unknown>;
  propertyNames?: unknown;
  items?: unknown;
  prefixItems?: readonly unknown[];
  minItems?: number;
  maxItems?: number;
  minLength?: number;
  maxLength?: number;
  pattern?: string;
  format?: string;
  multipleOf?: number;
}

const KEYWORDS_BY_TYPE: Record<string, readonly (keyof Schema)[]> = {
  object: ['properties', 'required', 'additionalProperties', 'patternProperties', 'propertyNames'],
  array: ['items', 'prefixItems', 'minItems', 'maxItems'],
  string: ['minLength', 'maxLength', 'pattern', 'format'],
  number: ['minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum', 'multipleOf'],
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

/** Steps besides those of the size of what is combined or compared. */
const CONJOIN_WORK = 40;
const DISJOINT_WORK = 20;
const OBJECT_WORK = 4;

/** The entries of a schema's keywords. */
export const sizeOf = (schema: object): number =>
  Object.values(schema).reduce((sum: number, value: unknown) => sum + 1 + entriesOf(value), 0);

const entriesOf = (value: unknown): number =>
  Array.isArray(value) ? value.length : typeof value === 'object' && value !== null ? Object.keys(value).length : 0;

/** Alternatives of two schemas that are combined one by one. */
const MAX_ALTERNATIVES = 64;

/** A schema of what satisfies both; false: nothing does. `problem`: what is too difficult; then the schema allows more. */
export function conjoin(a: Schema, b: Schema, spend: Spend): { joined: Schema | false; problem?: string } {
  spend(CONJOIN_WORK + 4 * (sizeOf(a) + sizeOf(b)));
  const joined: Record<string, unknown> = { ...a, ...conjoinProperties(a, b) };
  let problem: string | undefined;
  if ((a.prefixItems && b.items !== undefined) || (b.prefixItems && a.items !== undefined))
    problem = 'prefixItems with items';
  if (!a.nullable !== !b.nullable && Object.keys(a).length > 0 && Object.keys(b).length > 0)
    problem = 'nullable with other keywords';
  if ((a.patternProperties && namesProperties(b)) || (b.patternProperties && namesProperties(a)))
    problem = 'patternProperties with other properties';
  for (const [key, value] of Object.entries(b)) {
    if (key === 'properties' || key === 'additionalProperties' || key === 'patternProperties') continue;
    const before = joined[key];
    if (before === undefined || isDeepEqual(before, value, spend)) joined[key] = value;
    else if (key === 'type') joined.type = commonTypes([before].flat() as string[], [value].flat() as string[], spend);
    else if (key === 'required') joined.required = [...new Set([...(before as string[]), ...(value as string[])])];
    else if (LARGER.includes(key)) joined[key] = Math.max(before as number, value as number);
    else if (SMALLER.includes(key)) joined[key] = Math.min(before as number, value as number);
    else if (key === 'enum')
      joined.enum = (before as unknown[]).filter(one =>
        (value as unknown[]).some(other => isDeepEqual(one, other, spend)),
      );
    else if (key === 'const') return { joined: false };
    else if (key === 'items' || key === 'propertyNames') joined[key] = { allOf: [before, value] };
    else if (key === 'allOf') joined.allOf = [...(before as unknown[]), ...(value as unknown[])];
    else if (key === 'anyOf' && a.anyOf!.length * b.anyOf!.length <= MAX_ALTERNATIVES)
      joined.anyOf = a.anyOf!.flatMap(one => b.anyOf!.map(other => ({ allOf: [one, other] })));
    else problem = `two different ${key}`;
  }
  const isEmpty = ['type', 'enum'].some(key => Array.isArray(joined[key]) && (joined[key] as unknown[]).length === 0);
  return { joined: !isEmpty ? joined : a.nullable && b.nullable ? { type: 'null' } : false, problem };
}

const namesProperties = ({ properties, additionalProperties, patternProperties }: Schema): boolean =>
  (properties ?? additionalProperties ?? patternProperties) !== undefined;

/** What each side says of a property that the other one names, or of those that neither does. */
function conjoinProperties(a: Schema, b: Schema): Schema {
  const both = (one: unknown, other: unknown) =>
    one === undefined || other === undefined ? (one ?? other) : { allOf: [one, other] };
  const names = new Set([...Object.keys(a.properties ?? {}), ...Object.keys(b.properties ?? {})]);
  const of = ({ properties = {}, additionalProperties, patternProperties }: Schema, name: string) =>
    Object.hasOwn(properties, name) ? properties[name] : patternProperties ? undefined : additionalProperties;
  const properties = Object.fromEntries([...names].map(name => [name, both(of(a, name), of(b, name))]));
  const others = both(a.additionalProperties, b.additionalProperties);
  const patterns = { ...a.patternProperties, ...b.patternProperties };
  return {
    ...(names.size > 0 && { properties }),
    ...(others !== undefined && { additionalProperties: others }),
    ...(Object.keys(patterns).length > 0 && { patternProperties: patterns }),
  };
}

function commonTypes(a: readonly string[], b: readonly string[], spend: Spend): string[] {
  spend(a.length * b.length);
  const includes = (types: readonly string[], type: string) =>
    types.includes(type) || (type === 'integer' && types.includes('number'));
  return [...new Set([...a.filter(type => includes(b, type)), ...b.filter(type => includes(a, type))])];
}

/** Whether surely no value satisfies both. `resolve` returns a schema without a reference; false: nothing satisfies it. */
export function areDisjoint(
  a: Schema | false,
  b: Schema | false,
  resolve: (schema: unknown) => Schema | false,
  spend: Spend,
  depth = 0,
): boolean {
  spend(DISJOINT_WORK);
  if (!a || !b) return true;
  if (a.nullable && b.nullable) return false;
  const [valuesA, valuesB] = [constantsOf(a), constantsOf(b)];
  if (valuesA && valuesB) return !valuesA.some(one => valuesB.some(other => isDeepEqual(one, other, spend)));
  const [typesA, typesB] = [typesOf(a), typesOf(b)];
  if (typesA && typesB && commonTypes(typesA, typesB, spend).length === 0) return true;
  const isObject = (types?: readonly string[]) => types?.length === 1 && types[0] === 'object';
  if (!isObject(typesA) || !isObject(typesB) || depth > 8) return false;
  // Objects that differ in a property that both must have.
  const required = new Set(b.required);
  spend((a.required?.length ?? 0) + required.size);
  const shared = (a.required ?? []).filter(name => required.has(name));
  return shared.some(name => {
    const [one, other] = [a.properties?.[name], b.properties?.[name]];
    return (
      one !== undefined && other !== undefined && areDisjoint(resolve(one), resolve(other), resolve, spend, depth + 1)
    );
  });
}

/** Whether each has constants of its own, or they have a property that has: then no two need to be compared. */
export function haveTags(
  schemas: readonly (Schema | false)[],
  resolve: (schema: unknown) => Schema | false,
  spend: Spend,
): boolean {
  const given = schemas.filter(schema => schema !== false);
  if (haveOwnConstants(given, spend)) return true;
  const [{ required = [] } = {}, ...others] = given;
  if (given.some(schema => typesOf(schema)?.join() !== 'object')) return false;
  return required.some(name => {
    spend(others.reduce((sum, schema) => sum + (schema.required?.length ?? 0), given.length));
    if (!others.every(schema => schema.required?.includes(name))) return false;
    return haveOwnConstants(
      given.map(({ properties = {} }) => Object.hasOwn(properties, name) && resolve(properties[name])),
      spend,
    );
  });
}

function haveOwnConstants(schemas: readonly (Schema | false)[], spend: Spend): boolean {
  spend(DISJOINT_WORK * schemas.length);
  const values = schemas.flatMap(schema => (schema && !schema.nullable && constantsOf(schema)) || [{}]);
  spend(values.length);
  return values.every(value => typeof value !== 'object') && new Set(values).size === values.length;
}

const constantsOf = (schema: Schema): readonly unknown[] | undefined =>
  Object.hasOwn(schema, 'const') ? [schema.const] : schema.enum;

function typesOf(schema: Schema): readonly string[] | undefined {
  if (schema.anyOf ?? schema.oneOf ?? schema.allOf) return undefined;
  const types = constantsOf(schema)?.map(typeOf) ?? (schema.type === undefined ? undefined : [schema.type].flat());
  return types && (schema.nullable ? [...types, 'null'] : types);
}

/** Whether two JSON values are equal. */
export function isDeepEqual(a: unknown, b: unknown, spend: Spend): boolean {
  spend(1);
  if (a === b) return true;
  if (typeof a !== 'object' || typeof b !== 'object' || a === null || b === null) return false;
  if (Array.isArray(a) !== Array.isArray(b)) return false;
  spend(OBJECT_WORK);
  const [one, other] = [a as Record<string, unknown>, b as Record<string, unknown>];
  const keys = Object.keys(one);
  return (
    keys.length === Object.keys(other).length &&
    keys.every(key => Object.hasOwn(other, key) && isDeepEqual(one[key], other[key], spend))
  );
}
