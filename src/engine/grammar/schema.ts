/**
 * A JSON Schema as a grammar. Every text of the grammar satisfies the schema; not every text that satisfies it is in the
 * grammar: properties come in the schema's order, and those that it does not name only if `additionalProperties` allows
 * them. A keyword that is not enforced is an InputError.
 */
import { isPlainObject } from '../../describe-value.ts';
import { InputError } from '../../errors.ts';
import {
  choice,
  type Expression,
  type Grammar,
  isSatisfiable,
  optional,
  repeat,
  rule,
  sequence,
  text,
  texts,
} from './expression.ts';
import {
  ANY_VALUE,
  anyArray,
  anyObject,
  anyString,
  colon,
  comma,
  jsonRules,
  list,
  nameExcept,
  stringOf,
  stringOfLength,
} from './json.ts';
import { anyInteger, anyNumber, type Bounds, isBounded, numbersBetween } from './numbers.ts';
import { formats, PatternError, parsePattern } from './pattern.ts';
import { areDisjoint, conjoin, inferTypes, isDeepEqual, type Schema, typeOf } from './schema-parts.ts';

/** A JSON Schema. `true`: any JSON object. */
export type JsonSchema = Record<string, unknown> | true;

const MAX_TEXT = 256 * 1024;
const MAX_DEPTH = 48;
const MAX_VALUES = 20_000;
const MAX_COUNT = 100_000;
const MAX_EXPANSIONS = 2_000;

/** Keywords that describe, and do not constrain. */
const ANNOTATIONS = new Set(
  [
    'title',
    'description',
    'default',
    'examples',
    'example',
    '$schema',
    '$id',
    '$comment',
    'deprecated',
    'readOnly',
  ].concat(['writeOnly', '$defs', 'definitions']),
);
const NUMBERS = ['minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum'];
const COUNTS = ['minLength', 'maxLength', 'minItems', 'maxItems'];
const ENFORCED = new Set(
  ['type', 'nullable', 'enum', 'const', '$ref', 'anyOf', 'oneOf', 'allOf', 'properties', 'required']
    .concat(['additionalProperties', 'items', 'prefixItems', 'pattern', 'format'])
    .concat(NUMBERS, COUNTS),
);
const TYPES = ['object', 'array', 'string', 'number', 'integer', 'boolean', 'null'];

/** The text that identifies a schema. Throws an InputError if it is too large, or not JSON. */
export function schemaText(schema: JsonSchema, name: string): string {
  let values = 0;
  const check = (value: unknown, depth: number): void => {
    if (depth > MAX_DEPTH) throw new InputError(`${name} nests deeper than ${MAX_DEPTH} levels. Flatten it.`);
    if (++values > MAX_VALUES) throw new InputError(`${name} has more than ${MAX_VALUES} values. Simplify it.`);
    if (typeof value === 'object' && value !== null) for (const item of Object.values(value)) check(item, depth + 1);
  };
  check(schema, 0);
  const json = JSON.stringify(schema);
  if (json.length > MAX_TEXT)
    throw new InputError(`${name} is ${json.length} characters of JSON; at most ${MAX_TEXT} are supported.`);
  return json;
}

/** `name` is the schema's place in the caller's options, for error messages. */
export function schemaGrammar(schema: JsonSchema, name = 'schema'): Grammar {
  const rules = new Map(jsonRules);
  const root = schema === true ? anyObject : addSchema(JSON.parse(schemaText(schema, name)), name, name, rules);
  const grammar = { root, rules };
  if (!isSatisfiable(grammar)) throw new InputError(`No value satisfies ${name}: it contains itself without an end.`);
  return grammar;
}

/** The expression of a schema. Adds the rules that it refers to, with names that begin with `prefix`. */
export function addSchema(root: unknown, name: string, prefix: string, rules: Map<string, Expression>): Expression {
  let expansions = 0;

  const refuse = (path: string, reason: string): never => {
    throw new InputError(`${path} ${reason}`);
  };

  const check = (schema: unknown, path: string): Schema => {
    if (schema === true) return {};
    if (!isPlainObject(schema)) return refuse(path, 'must be a JSON Schema, an object.');
    for (const [key, value] of Object.entries(schema)) {
      if (ANNOTATIONS.has(key)) continue;
      if (!ENFORCED.has(key)) refuse(`${path}.${key}`, 'is a keyword that is not enforced. Remove it.');
      checkKeyword(key, value, path);
    }
    return schema;
  };

  const checkKeyword = (key: string, value: unknown, path: string): void => {
    const must = (isValid: boolean, what: string) => isValid || refuse(`${path}.${key}`, `must be ${what}.`);
    const isStrings = Array.isArray(value) && value.every(item => typeof item === 'string');
    if (NUMBERS.includes(key)) must(typeof value === 'number', 'a number');
    else if (COUNTS.includes(key))
      must(Number.isInteger(value) && (value as number) >= 0 && (value as number) <= MAX_COUNT, `0 to ${MAX_COUNT}`);
    else if (['enum', 'anyOf', 'oneOf', 'allOf', 'prefixItems'].includes(key))
      must(Array.isArray(value) && value.length > 0, 'an array that is not empty');
    else if (key === 'required') must(isStrings, 'an array of strings');
    else if (key === 'properties') must(isPlainObject(value), 'an object');
    else if (['$ref', 'pattern', 'format'].includes(key)) must(typeof value === 'string', 'a string');
    else if (key === 'nullable') must(typeof value === 'boolean', 'true or false');
    else if (key === 'type') {
      const types: readonly unknown[] = [value].flat();
      must(
        types.length > 0 && types.every(type => TYPES.includes(type as string)),
        `one or more of ${TYPES.join(', ')}`,
      );
    }
  };

  const resolve = (ref: string, path: string): unknown => {
    if (ref !== '#' && !ref.startsWith('#/'))
      refuse(`${path}.$ref`, `is ${ref.slice(0, 80)}; only #/... is supported.`);
    let target: unknown = root;
    for (const part of ref.split('/').slice(1)) {
      const key = decode(part).replaceAll('~1', '/').replaceAll('~0', '~');
      if (typeof target !== 'object' || target === null || !Object.hasOwn(target, key))
        refuse(`${path}.$ref`, `is ${ref.slice(0, 80)}, which does not exist.`);
      target = (target as Record<string, unknown>)[key];
    }
    return target;
  };

  /** `open`: references that were followed without reading anything; undefined: no value satisfies it. */
  const convert = (given: unknown, path: string, open: ReadonlySet<string> = new Set()): Expression | undefined => {
    if (given === false) return undefined;
    if (++expansions > MAX_EXPANSIONS) refuse(name, `needs more than ${MAX_EXPANSIONS} parts. Simplify it.`);
    const schema = constraints(check(given, path));
    if (schema.$ref !== undefined && Object.keys(schema).length === 1) return reference(schema.$ref, path, open);
    const key = (['$ref', 'allOf', 'anyOf', 'oneOf'] as const).find(name => schema[name] !== undefined);
    if (key) return combination(key, schema, path, open);
    if (schema.nullable !== undefined) {
      const { nullable, ...rest } = schema;
      const content = convert(rest, path, open);
      return nullable ? choiceOf([content, text('null')]) : content;
    }
    if (schema.enum || Object.hasOwn(schema, 'const')) return constants(schema, path);
    const types = inferTypes(schema);
    return types ? choiceOf(types.map(type => typed(type, schema, path))) : rule(ANY_VALUE);
  };

  const reference = (ref: string, path: string, open: ReadonlySet<string>): Expression => {
    if (open.has(ref)) refuse(`${path}.$ref`, `is ${ref.slice(0, 80)}, which only refers to itself.`);
    const id = `${prefix}${ref}`;
    if (!rules.has(id)) {
      rules.set(id, choice());
      rules.set(
        id,
        convert(resolve(ref, path), `${name}${ref.slice(1).replaceAll('/', '.')}`, new Set([...open, ref])) ?? choice(),
      );
    }
    return rule(id);
  };

  /** Moves the other keywords into the branches. */
  const combination = (
    key: '$ref' | 'allOf' | 'anyOf' | 'oneOf',
    { [key]: branches, ...rest }: Schema,
    path: string,
    open: ReadonlySet<string>,
  ): Expression | undefined => {
    const join = (a: unknown, b: unknown): unknown => {
      if (a === false || b === false) return false;
      const [left, right] = [a, b].map(side => expand(side, path, open));
      const { joined, problem } = conjoin(left, right);
      return problem
        ? refuse(`${path}.${key}`, `combines ${problem}, which is not supported. Write it as one schema.`)
        : joined;
    };
    if (key === '$ref')
      return convert(join(resolve(branches as string, path), rest), path, new Set([...open, branches as string]));
    const list = branches as readonly unknown[];
    if (key === 'allOf') return convert(list.reduce(join, rest), path, open);
    const isAlone = Object.keys(rest).length === 0;
    const items = list.map(branch => (isAlone ? branch : branch === false ? false : join(branch, rest)));
    if (key === 'oneOf') checkDisjoint(items, path, open);
    return choiceOf(items.map((item, i) => convert(item, isAlone ? `${path}.${key}[${i}]` : path, open)));
  };

  /** A schema without a reference at its top. */
  const expand = (schema: unknown, path: string, open: ReadonlySet<string>, followed = 0): Schema => {
    const checked = constraints(check(schema, path));
    const { $ref, ...rest } = checked;
    if ($ref === undefined) return checked;
    if (open.has($ref) || followed > 16)
      refuse(`${path}.$ref`, `is ${$ref.slice(0, 80)}, which only refers to itself.`);
    const target = expand(resolve($ref, path), path, open, followed + 1);
    const { joined, problem } = conjoin(target, rest);
    return problem ? refuse(`${path}.$ref`, `combines ${problem}, which is not supported.`) : joined;
  };

  const checkDisjoint = (items: readonly unknown[], path: string, open: ReadonlySet<string>): void => {
    const branches = items.filter(item => item !== false).map(item => expand(item, path, open));
    const resolveSub = (schema: unknown) => (schema === true ? {} : expand(schema, path, new Set()));
    for (let b = 1; b < branches.length; b++)
      for (let a = 0; a < b; a++)
        if (!areDisjoint(branches[a], branches[b], resolveSub))
          refuse(`${path}.oneOf`, `is not enforced: a value may match both [${a}] and [${b}]. Use anyOf.`);
  };

  const constants = (schema: Schema, path: string): Expression | undefined => {
    const { enum: values, type, ...rest } = schema;
    const other = Object.keys(rest).find(key => key !== 'const');
    if (other) refuse(`${path}.${other}`, 'next to enum or const is not enforced. Remove it.');
    const listed = values ?? [schema.const];
    const both = Object.hasOwn(schema, 'const') ? listed.filter(value => isDeepEqual(value, schema.const)) : listed;
    const types: readonly string[] | undefined = type === undefined ? undefined : [type].flat();
    const isOfType = (value: unknown) =>
      !types || types.includes(typeOf(value)) || (types.includes('number') && typeOf(value) === 'integer');
    const kept = both.filter(isOfType).map(value => JSON.stringify(value));
    return kept.length > 0 ? texts([...new Set(kept)]) : undefined;
  };

  const typed = (type: string, schema: Schema, path: string): Expression | undefined => {
    switch (type) {
      case 'object':
        return object(schema, path);
      case 'array':
        return array(schema, path);
      case 'string':
        return string(schema, path);
      case 'number':
      case 'integer':
        return number(type, schema);
      case 'boolean':
        return texts(['true', 'false']);
      default:
        return text('null');
    }
  };

  const number = (type: string, schema: Bounds): Expression | undefined => {
    if (isBounded(schema)) return numbersBetween(schema, type === 'integer' ? 0 : undefined);
    return type === 'integer' ? anyInteger : anyNumber;
  };

  const string = ({ minLength = 0, maxLength, pattern, format }: Schema, path: string): Expression | undefined => {
    const isLimited = minLength > 0 || maxLength !== undefined;
    if (pattern === undefined && format === undefined) {
      const max = maxLength ?? Number.POSITIVE_INFINITY;
      if (!isLimited) return anyString;
      return minLength <= max ? stringOfLength(minLength, max) : undefined;
    }
    if (pattern !== undefined && format !== undefined)
      refuse(`${path}.pattern`, 'next to format is not enforced. Remove one.');
    const keyword = pattern === undefined ? 'format' : 'pattern';
    if (isLimited)
      refuse(`${path}.${keyword}`, 'next to minLength or maxLength is not enforced. Write lengths in a pattern.');
    if (format !== undefined && !Object.hasOwn(formats, format))
      refuse(
        `${path}.format`,
        `is ${format.slice(0, 40)}, which is not enforced; ${Object.keys(formats).join(', ')} are.`,
      );
    try {
      return stringOf(parsePattern(pattern ?? formats[format!]));
    } catch (error) {
      if (!(error instanceof PatternError)) throw error;
      return refuse(`${path}.pattern`, `is not enforced: it has ${error.message}.`);
    }
  };

  const array = ({ items, prefixItems = [], minItems = 0, maxItems }: Schema, path: string): Expression | undefined => {
    if (Array.isArray(items)) refuse(`${path}.items`, 'must be a schema; use prefixItems for a list of schemas.');
    const max = maxItems ?? Number.POSITIVE_INFINITY;
    if (minItems > max) return undefined;
    const prefix = prefixItems.slice(0, max).map((item, i) => convert(item, `${path}.prefixItems[${i}]`));
    if (prefix.includes(undefined)) return undefined;
    const isClosed = items === false || (items === undefined && prefixItems.length > 0);
    const item = isClosed ? undefined : convert(items ?? true, `${path}.items`);
    const [least, most] = [Math.max(0, minItems - prefix.length), item ? max - prefix.length : 0];
    if (least > most) return undefined;
    if (prefix.length === 0 && items === undefined) return anyArray(minItems, max);
    if (prefix.length === 0) return sequence(text('['), item ? list(item, least, most) : text(''), text(']'));
    const first = (prefix as Expression[]).flatMap((part, i) => (i > 0 ? [comma, part] : [part]));
    const more = item && most > 0 ? repeat(sequence(comma, item), least, most) : text('');
    return sequence(text('['), ...first, more, text(']'));
  };

  const object = (
    { properties = {}, required = [], additionalProperties }: Schema,
    path: string,
  ): Expression | undefined => {
    const others = additionalProperties ?? Object.keys(properties).length === 0;
    const declared = new Map(Object.entries(properties));
    for (const key of required) if (!declared.has(key)) declared.set(key, additionalProperties ?? true);
    if (declared.size === 0 && others === true) return anyObject;
    const extra =
      others === false || (additionalProperties === undefined && declared.size > 0)
        ? undefined
        : convert(others, `${path}.additionalProperties`);
    const members = [...declared].map(([key, value]) => {
      const content = convert(value, `${path}.properties.${key}`);
      const isRequired = required.includes(key);
      return { isRequired, member: content && sequence(text(JSON.stringify(key)), colon, content) };
    });
    if (members.some(({ isRequired, member }) => isRequired && !member)) return undefined;
    const other = extra && sequence(nameExcept([...declared.keys()]), colon, extra);
    // From the last to the first: what follows once there is a member, and what the first member may be.
    let rest = other ? repeat(sequence(comma, other), 0) : text('');
    let first = other ? optional(sequence(other, rest)) : text('');
    for (const { isRequired, member } of members.reverse()) {
      if (!member) continue;
      const begins = sequence(member, rest);
      first = isRequired ? begins : choice(begins, first);
      const next = sequence(comma, member);
      rest = sequence(isRequired ? next : optional(next), rest);
    }
    return sequence(text('{'), first, text('}'));
  };

  const found = convert(root, name);
  return found ?? refuse(name, 'is a schema that no value satisfies.');
}

/** Without annotations. */
const constraints = (schema: Schema): Schema =>
  Object.fromEntries(Object.entries(schema).filter(([key, value]) => !ANNOTATIONS.has(key) && value !== undefined));

function choiceOf(items: readonly (Expression | undefined)[]): Expression | undefined {
  const found = items.filter(item => item !== undefined);
  return found.length > 0 ? choice(...found) : undefined;
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
