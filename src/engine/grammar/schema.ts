/**
 * A JSON Schema as a grammar. Every text of the grammar satisfies the schema; not every text that satisfies it is in the
 * grammar: properties come in the schema's order, and those that it does not name only if `additionalProperties` allows
 * them. A keyword that is not enforced is an InputError, or is left out and reported.
 */
import { isPlainObject } from '../../util/describe-value.ts';
import { InputError, optionError } from '../../util/errors.ts';
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
import { ANY_VALUE, anyArray, anyObject, colon, comma, jsonRules, list, nameExcept } from './json.ts';
import { enforcedKeywords } from './keywords.ts';
import { anyInteger, anyNumber, decimalPlaces, isBounded, numbersBetween } from './numbers.ts';
import { isFormat, unknownFormat } from './pattern.ts';
import { isOfType, resolveReference, satisfies } from './satisfies.ts';
import { areDisjoint, conjoin, haveTags, inferTypes, type Schema, sizeOf } from './schema-parts.ts';
import { stringExpression } from './strings.ts';
import { createWorkBudget, spendHalf, type WorkBudget } from './work.ts';

/** A JSON Schema. `true`: any JSON object. */
export type JsonSchema = Record<string, unknown> | true;

const MAX_TEXT = 256 * 1024;
const MAX_DEPTH = 48;
const MAX_VALUES = 20_000;
/** Characters of a path in an error. */
const MAX_PATH = 200;
/** Steps of a part of a schema, besides those of its size. */
const PART_WORK = 100;

/** The text that identifies a schema. Throws an InputError if it is too large, or not JSON. */
export function schemaText(schema: JsonSchema, name: string): string {
  const refuse = (reason: string): never => {
    throw optionError(name, reason);
  };
  let values = 0;
  const check = (value: unknown, depth: number): void => {
    if (depth > MAX_DEPTH) refuse(`nests deeper than ${MAX_DEPTH} levels. Flatten it.`);
    if (++values > MAX_VALUES) refuse(`has more than ${MAX_VALUES} values. Simplify it.`);
    if (typeof value === 'object' && value !== null) for (const item of Object.values(value)) check(item, depth + 1);
  };
  check(schema, 0);
  const json = JSON.stringify(schema);
  if (json.length > MAX_TEXT) refuse(`is ${json.length} characters of JSON; at most ${MAX_TEXT} are supported.`);
  return json;
}

export interface SchemaOptions {
  /** The schema's place in the caller's options, for error messages. The names of its rules begin with it. */
  name: string;
  /** Rules that the expression refers to are added to these. */
  rules: Map<string, Expression>;
  /** Keywords that cannot be enforced are left out, and their paths added to these. Without it, they are an InputError. */
  unenforced?: Set<string>;
  /** What all schemas of the request may take together. Default: a budget of its own. */
  budget?: WorkBudget;
}

/** `name` is the schema's place in the caller's options, for error messages. */
export function schemaGrammar(schema: JsonSchema, name = 'schema', budget?: WorkBudget): Grammar {
  const rules = new Map(jsonRules);
  const root = schema === true ? anyObject : addSchema(JSON.parse(schemaText(schema, name)), { name, rules, budget });
  return { root, rules };
}

/** The expression of a schema. Throws an InputError if no value satisfies it, or if it takes too much work. */
export function addSchema(
  root: unknown,
  { name, rules: known, unenforced, budget = createWorkBudget() }: SchemaOptions,
): Expression {
  const rules = new Map(jsonRules);
  /** The part that is being compiled. */
  let part = name;
  const spend = spendHalf(budget, () =>
    refuse(
      part.length > MAX_PATH ? name : part,
      'takes too much work to enforce. Use fewer alternatives, constants and references, or simpler patterns.',
    ),
  );

  const refuse = (path: string, reason: string): never => {
    throw new InputError(option => `${option(path)} ${reason}`, { option: name });
  };

  /** The schema allows more than it says. */
  const widen = (path: string, reason: string): void => {
    if (!unenforced) refuse(path, reason);
    unenforced?.add(path);
  };

  const check = (schema: unknown, path: string): Schema => {
    if (schema === true) return {};
    if (!isPlainObject(schema)) {
      widen(path, 'must be a JSON Schema, an object.');
      return {};
    }
    spend(4 * sizeOf(schema));
    const checked = enforcedKeywords(schema, (key, problem) => widen(`${path}.${key}`, problem));
    return withoutPatterns(withoutFormat(checked, path), path);
  };

  /** Without a type, a format that is not known says nothing of it. */
  const withoutFormat = ({ format, ...rest }: Schema, path: string): Schema => {
    if (format === undefined) return rest;
    if (rest.type !== undefined || isFormat(format)) return { ...rest, format };
    if (rest.pattern === undefined) widen(`${path}.format`, unknownFormat(format));
    return rest;
  };

  /** One pattern of names that are all there are is a rule for names. */
  const withoutPatterns = (schema: Schema, path: string): Schema => {
    const { patternProperties, ...rest } = schema;
    if (!patternProperties) return schema;
    const [[pattern, value] = ['', true], ...more] = Object.entries(patternProperties);
    if (
      more.length === 0 &&
      rest.additionalProperties === false &&
      !rest.properties &&
      rest.propertyNames === undefined
    )
      return { ...rest, propertyNames: { pattern }, additionalProperties: value };
    widen(`${path}.patternProperties`, 'is enforced only if there is one, and no other properties.');
    return { ...rest, additionalProperties: true };
  };

  const resolve = (ref: string, path: string): unknown => {
    const target = resolveReference(root, ref);
    const isLocal = ref === '#' || ref.startsWith('#/');
    if (target === undefined)
      widen(
        `${path}.$ref`,
        `is ${ref.slice(0, 80)}${isLocal ? ', which does not exist.' : '; only #/... is supported.'}`,
      );
    return target ?? true;
  };

  /** `open`: references that were followed without reading anything; undefined: no value satisfies it. */
  const convert = (given: unknown, path: string, open: ReadonlySet<string> = new Set()): Expression | undefined => {
    if (given === false) return undefined;
    part = path;
    spend(PART_WORK);
    const schema = check(given, path);
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
    if (open.has(ref)) {
      widen(`${path}.$ref`, `is ${ref.slice(0, 80)}, which only refers to itself.`);
      return rule(ANY_VALUE);
    }
    const id = `${name}${ref}`;
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
      const [left, right] = [a, b].map(side => expand(side, path, open));
      if (!left || !right) return false;
      const { joined, problem } = conjoin(left, right, spend);
      if (problem) widen(`${path}.${key}`, `combines ${problem}, which is not supported. Write it as one schema.`);
      return joined;
    };
    if (key === '$ref')
      return convert(join(resolve(branches as string, path), rest), path, new Set([...open, branches as string]));
    const list = branches as readonly unknown[];
    if (key === 'allOf') return convert(list.reduce(join, rest), path, open);
    const isAlone = Object.keys(rest).length === 0;
    // What is beside the branches comes first: so do its properties.
    const items = list.map(branch => (isAlone ? branch : join(rest, branch)));
    if (key === 'oneOf') checkDisjoint(items, path, open);
    return choiceOf(items.map((item, i) => convert(item, isAlone ? `${path}.${key}[${i}]` : path, open)));
  };

  /** A schema without a reference at its top; false: nothing satisfies it. */
  const expand = (schema: unknown, path: string, open: ReadonlySet<string>, followed = 0): Schema | false => {
    if (schema === false) return false;
    const checked = check(schema, path);
    const { $ref, ...rest } = checked;
    if ($ref === undefined) return checked;
    if (open.has($ref) || followed > 16) {
      widen(`${path}.$ref`, `is ${$ref.slice(0, 80)}, which only refers to itself.`);
      return rest;
    }
    const target = expand(resolve($ref, path), path, open, followed + 1);
    if (!target) return false;
    const { joined, problem } = conjoin(target, rest, spend);
    if (problem) widen(`${path}.$ref`, `combines ${problem}, which is not supported.`);
    return joined;
  };

  const checkDisjoint = (items: readonly unknown[], path: string, open: ReadonlySet<string>): void => {
    part = `${path}.oneOf`;
    const branches = items.map(item => expand(item, path, open));
    const resolved = new Map<unknown, Schema | false>();
    const resolveSub = (schema: unknown): Schema | false => {
      const known = resolved.get(schema) ?? expand(schema, path, new Set());
      resolved.set(schema, known);
      return known;
    };
    if (haveTags(branches, resolveSub, spend)) return;
    for (let b = 1; b < branches.length; b++) {
      const a = branches.findIndex((branch, i) => i < b && !areDisjoint(branch, branches[b], resolveSub, spend));
      if (a < 0) continue;
      widen(`${path}.oneOf`, `is not enforced: a value may match both [${a}] and [${b}]. Use anyOf.`);
      return;
    }
  };

  const constants = (schema: Schema, path: string): Expression | undefined => {
    const { enum: values, pattern, format, ...rest } = schema;
    if (pattern ?? format) widen(`${path}.${pattern ? 'pattern' : 'format'}`, 'next to enum or const is not enforced.');
    const { type, ...others } = rest;
    const isFree = Object.keys(others).length === 0;
    const given = values ?? [rest.const];
    spend(given.length * [type].flat().length);
    const kept = given.filter(value => isOfType(value, type) && (isFree || satisfies(value, others, { root, spend })));
    const json = kept.map(value => JSON.stringify(value));
    spend(json.reduce((sum, one) => sum + 1 + one.length / 8, 0));
    return kept.length > 0 ? texts([...new Set(json)]) : undefined;
  };

  const typed = (type: string, schema: Schema, path: string): Expression | undefined => {
    switch (type) {
      case 'object':
        return object(schema, path);
      case 'array':
        return array(schema, path);
      case 'string':
        return stringExpression(schema, (keyword, reason) => widen(`${path}.${keyword}`, reason), spend);
      case 'number':
      case 'integer':
        return number(type, schema, path);
      case 'boolean':
        return texts(['true', 'false']);
      default:
        return text('null');
    }
  };

  const number = (type: string, schema: Schema, path: string): Expression | undefined => {
    const { multipleOf } = schema;
    const places = multipleOf && decimalPlaces(multipleOf);
    if (multipleOf !== undefined && places === undefined)
      widen(`${path}.multipleOf`, `is ${multipleOf}; only 1, 0.1, 0.01 and so on are enforced.`);
    if (!isBounded(schema) && (type === 'integer' || places === undefined))
      return type === 'integer' ? anyInteger : anyNumber;
    return numbersBetween(schema, spend, type === 'integer' ? 0 : places);
  };

  const array = (
    { prefixItems = [], minItems = 0, maxItems, ...rest }: Schema,
    path: string,
  ): Expression | undefined => {
    const items = Array.isArray(rest.items) ? true : rest.items;
    if (items !== rest.items) widen(`${path}.items`, 'must be a schema; use prefixItems for a list of schemas.');
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

  const object = (schema: Schema, path: string): Expression | undefined => {
    const { properties = {}, required = [], additionalProperties } = schema;
    const others = additionalProperties ?? Object.keys(properties).length === 0;
    const declared = new Map(Object.entries(properties));
    for (const key of required) if (!declared.has(key)) declared.set(key, additionalProperties ?? true);
    const names = namesOf(schema, declared, path);
    if (declared.size === 0 && others === true && !names) return anyObject;
    const isClosed =
      others === false || (additionalProperties === undefined && declared.size > 0) || names === 'listed';
    const extra = isClosed ? undefined : convert(others, `${path}.additionalProperties`);
    const mandatory = new Set(required);
    const members = [...declared].map(([key, value]) => {
      const content = convert(value, `${path}.properties.${key}`);
      const isRequired = mandatory.has(key);
      return { isRequired, member: content && sequence(text(JSON.stringify(key)), colon, content) };
    });
    if (members.some(({ isRequired, member }) => isRequired && !member)) return undefined;
    const otherName = () => (typeof names === 'object' ? names : nameExcept([...declared.keys()], spend));
    const other = extra && sequence(otherName(), colon, extra);
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

  /** Names that are listed are declared as properties. Otherwise an expression, if not every name is allowed. */
  const namesOf = (
    { propertyNames, additionalProperties }: Schema,
    declared: Map<string, unknown>,
    path: string,
  ): 'listed' | Expression | undefined => {
    if (propertyNames === undefined) return undefined;
    const list = (names: readonly unknown[]): 'listed' => {
      const listed = new Set(names);
      for (const key of declared.keys()) if (!listed.has(key)) declared.set(key, false);
      for (const key of names as string[]) if (!declared.has(key)) declared.set(key, additionalProperties ?? true);
      return 'listed';
    };
    const given = expand(propertyNames, `${path}.propertyNames`, new Set());
    if (!given || !satisfies('', { type: given.type }, { spend })) return list([]);
    const { nullable: _, ...schema } = { ...given, type: 'string' };
    const listed = Object.hasOwn(schema, 'const') ? [schema.const] : schema.enum;
    if (listed && schema.pattern === undefined && schema.format === undefined)
      return list(listed.filter(key => satisfies(key, schema, { root, spend })));
    if (Object.keys(schema).length === 1) return undefined;
    if (declared.size === 0) return convert(schema, `${path}.propertyNames`) ?? list([]);
    widen(`${path}.propertyNames`, 'next to properties is not enforced. Write it as additionalProperties.');
    return undefined;
  };

  const found = convert(root, name) ?? refuse(name, 'is a schema that no value satisfies.');
  part = name;
  if (!isSatisfiable({ root: found, rules }, spend))
    refuse(name, 'is satisfied by no value: it contains itself without an end.');
  for (const [key, expression] of rules) known.set(key, expression);
  return found;
}

function choiceOf(items: readonly (Expression | undefined)[]): Expression | undefined {
  const found = items.filter(item => item !== undefined);
  return found.length > 0 ? choice(...found) : undefined;
}
