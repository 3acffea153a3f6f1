/** The keywords of JSON Schema: those that are enforced, and what their values must be. Others only describe. */
import { isPlainObject } from '../../util/describe-value.ts';
import type { Schema } from './schema-parts.ts';

const MAX_COUNT = 100_000;

const NUMBERS = ['minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum'];
const COUNTS = ['minLength', 'maxLength', 'minItems', 'maxItems'];
const LISTS = ['enum', 'anyOf', 'oneOf', 'allOf', 'prefixItems'];
const OBJECTS = ['properties', 'patternProperties'];
const TEXTS = ['$ref', 'pattern', 'format'];
const ENFORCED = new Set(
  ['type', 'nullable', 'const', 'required', 'additionalProperties', 'propertyNames', 'items', 'multipleOf'].concat(
    ...[NUMBERS, COUNTS, LISTS, OBJECTS, TEXTS],
  ),
);
/** Keywords that limit what a value may be, and are not enforced. */
const UNENFORCED = new Set(
  ['not', 'if', 'then', 'else', 'dependencies', 'dependentRequired', 'dependentSchemas', '$dynamicRef', '$recursiveRef']
    .concat(['minProperties', 'maxProperties', 'unevaluatedProperties', 'unevaluatedItems', 'additionalItems'])
    .concat(['contains', 'minContains', 'maxContains', 'uniqueItems']),
);
const TYPES = ['object', 'array', 'string', 'number', 'integer', 'boolean', 'null'];

/** The keywords of a schema that limit what a value may be and can be enforced; `onProblem` is told of the others. */
export function enforcedKeywords(
  schema: Record<string, unknown>,
  onProblem?: (key: string, problem: string) => void,
): Schema {
  const enforced = Object.entries(schema).filter(([key, value]) => {
    if (!isConstraint(key, value)) return false;
    const problem = keywordProblem(key, value);
    if (problem) onProblem?.(key, problem);
    return !problem;
  });
  return Object.fromEntries(enforced);
}

const isConstraint = (key: string, value: unknown): boolean =>
  value !== undefined && (ENFORCED.has(key) || (UNENFORCED.has(key) && !(key === 'uniqueItems' && value === false)));

function keywordProblem(key: string, value: unknown): string | undefined {
  if (UNENFORCED.has(key)) return 'is a keyword that is not enforced. Remove it.';
  const expected = expectedValue(key, value);
  return expected && `must be ${expected}.`;
}

/** What the value of a keyword must be, if it is not. */
function expectedValue(key: string, value: unknown): string | undefined {
  const unless = (isValid: boolean, what: string) => (isValid ? undefined : what);
  if (NUMBERS.includes(key)) return unless(Number.isFinite(value), 'a number');
  if (key === 'multipleOf') return unless(Number.isFinite(value) && (value as number) > 0, 'a number above 0');
  if (COUNTS.includes(key)) {
    const isCount = Number.isInteger(value) && (value as number) >= 0 && (value as number) <= MAX_COUNT;
    return unless(isCount, `0 to ${MAX_COUNT}`);
  }
  if (LISTS.includes(key)) return unless(Array.isArray(value) && value.length > 0, 'an array that is not empty');
  if (OBJECTS.includes(key)) return unless(isPlainObject(value), 'an object');
  if (TEXTS.includes(key)) return unless(typeof value === 'string', 'a string');
  if (key === 'nullable') return unless(typeof value === 'boolean', 'true or false');
  if (key === 'required')
    return unless(Array.isArray(value) && value.every(item => typeof item === 'string'), 'an array of strings');
  if (key !== 'type') return undefined;
  const types: readonly unknown[] = [value].flat();
  const isKnown = types.length > 0 && types.every(type => TYPES.includes(type as string));
  return unless(isKnown, `one or more of ${TYPES.join(', ')}`);
}
