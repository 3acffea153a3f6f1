/**
 * How many real JSON Schemas can be followed, and what does a mask cost? Cases of MaskBench (guidance-ai/jsonschemabench,
 * maskbench/data) or of JSON-Schema-Test-Suite: schemas with values that satisfy them and values that do not. Each value
 * is written as a model would write it, token by token, with a mask before each.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { openModelFile } from '../src/engine/engine.ts';
import { type Constraints, createConstraints } from '../src/engine/grammar/constraint.ts';
import type { Grammar } from '../src/engine/grammar/expression.ts';
import { jsonRules } from '../src/engine/grammar/json.ts';
import { resolveReference, satisfies } from '../src/engine/grammar/satisfies.ts';
import { addSchema, schemaText } from '../src/engine/grammar/schema.ts';
import { InputError } from '../src/index.ts';
import type { Tokenizer } from '../src/model/tokenizer.ts';
import { isPlainObject } from '../src/util/describe-value.ts';
import { cpuTime } from '../test/support/cpu-time.ts';

interface Options {
  model: string;
  data?: string;
  every: string;
  json: boolean;
}

export interface MaskCase {
  name: string;
  schema: unknown;
  tests: readonly { data: unknown; valid: boolean }[];
}

/** `widened`: some keywords are left out, and reported. */
export type Outcome = 'enforced' | 'widened' | 'refused';

export interface CaseResult {
  name: string;
  outcome: Outcome;
  /** Keywords that are left out, or why the schema is refused. */
  reasons: string[];
  /** Values that satisfy the schema and could not be written, and that do not and could be. */
  refusedValid: unknown[];
  acceptedInvalid: unknown[];
  valid: number;
  invalid: number;
  buildMs: number;
  maskUs: number[];
}

/** The cases of a folder: a file has one, or a list of them. */
export function* readCases(folder: string, every = 1): Generator<MaskCase, void, void> {
  const files = readdirSync(folder)
    .filter(file => file.endsWith('.json'))
    .sort();
  for (const [i, file] of files.entries()) {
    if (i % every !== 0) continue;
    const text = readFileSync(join(folder, file), 'utf8');
    for (const { description = '', schema, tests = [] } of [JSON.parse(text)].flat()) {
      // JavaScript reads 1.0 as 1, which may then be valid.
      const known = /\d\.0\b/.test(text) ? tests.filter(({ valid }: MaskCase['tests'][number]) => valid) : tests;
      yield { name: `${file} ${description}`, schema, tests: known };
    }
  }
}

/**
 * Objects allow other properties unless their schema says no, as JSON Schema has it; a grammar of ours only if it says
 * yes, which is what callers of a function want.
 */
function openObjects(schema: unknown): unknown {
  if (Array.isArray(schema)) return schema.map(openObjects);
  if (!isPlainObject(schema)) return schema;
  const each = (map: unknown) =>
    isPlainObject(map)
      ? Object.fromEntries(Object.entries(map).map(([key, value]) => [key, openObjects(value)]))
      : openObjects(map);
  const opened = Object.fromEntries(
    Object.entries(schema).map(([key, value]) => {
      if (key === 'enum' || key === 'const') return [key, value];
      return [key, ['properties', '$defs', 'definitions'].includes(key) ? each(value) : openObjects(value)];
    }),
  );
  const isOpen = schema.properties !== undefined && schema.additionalProperties === undefined;
  return isOpen ? { ...opened, additionalProperties: true } : opened;
}

/** A value whose properties are in the order of the schema, as a grammar writes them. */
function inOrder(value: unknown, schema: unknown, root: unknown, depth = 0): unknown {
  if (!isPlainObject(schema) || depth > 64) return value;
  if (typeof schema.$ref === 'string') return inOrder(value, resolveReference(root, schema.$ref), root, depth + 1);
  // Of alternatives, the first one that the value satisfies.
  const fits = (branch: unknown) => satisfies(value, branch, { root, spend: () => {} });
  const [first, other] = [schema.anyOf, schema.oneOf].map(list => (Array.isArray(list) ? list.find(fits) : undefined));
  const parts = [...(Array.isArray(schema.allOf) ? schema.allOf : []), first, other].filter(part => part !== undefined);
  if (parts.length > 0) {
    const own = { properties: schema.properties, additionalProperties: schema.additionalProperties };
    const ordered = parts.reduce((result, part) => inOrder(result, part, root, depth + 1), value);
    return inOrder(ordered, own, root, depth + 1);
  }
  if (Array.isArray(value)) return value.map(item => inOrder(item, schema.items, root, depth + 1));
  if (!isPlainObject(value)) return value;
  const properties = isPlainObject(schema.properties) ? schema.properties : {};
  const names = [...Object.keys(properties), ...([schema.required].flat() as string[]), ...Object.keys(value)];
  const present = [...new Set(names)].filter(name => Object.hasOwn(value, name));
  const schemaOf = (name: string) => (Object.hasOwn(properties, name) ? properties[name] : schema.additionalProperties);
  return Object.fromEntries(present.map(name => [name, inOrder(value[name], schemaOf(name), root, depth + 1)]));
}

export function checkCase(
  tokenizer: Tokenizer,
  constraints: Constraints,
  { name, schema, tests }: MaskCase,
): CaseResult {
  const result: CaseResult = {
    ...{ name, outcome: 'enforced', reasons: [], refusedValid: [], acceptedInvalid: [], buildMs: 0, maskUs: [] },
    valid: tests.filter(test => test.valid).length,
    invalid: tests.filter(test => !test.valid).length,
  };
  const started = cpuTime();
  try {
    const unenforced = new Set<string>();
    const grammar = grammarOf(openObjects(schema), unenforced);
    constraints.create(name, () => grammar).mask();
    result.buildMs = cpuTime() - started;
    result.outcome = unenforced.size > 0 ? 'widened' : 'enforced';
    result.reasons = [...unenforced];
    for (const { data, valid } of tests) {
      const constraint = constraints.create(name, () => grammar);
      const isAccepted = accepts(tokenizer, constraint, inOrder(data, schema, schema), result.maskUs);
      if (valid && !isAccepted) result.refusedValid.push(data);
      if (!valid && isAccepted) result.acceptedInvalid.push(data);
    }
  } catch (error) {
    if (!(error instanceof InputError)) throw error;
    result.outcome = 'refused';
    result.reasons = [error.message];
  }
  return result;
}

function grammarOf(schema: unknown, unenforced: Set<string>): Grammar {
  const rules = new Map(jsonRules);
  const text = schemaText(schema as Record<string, unknown>, 'schema');
  return { root: addSchema(JSON.parse(text), { name: 'schema', rules, unenforced }), rules };
}

function accepts(
  tokenizer: Tokenizer,
  constraint: ReturnType<Constraints['create']>,
  data: unknown,
  maskUs: number[],
): boolean {
  const ids = [...tokenizer.encode(JSON.stringify(data)), tokenizer.eot ?? tokenizer.eos!];
  return ids.every(id => {
    const started = cpuTime();
    const mask = constraint.mask();
    maskUs.push((cpuTime() - started) * 1000);
    const isAllowed = ((mask[id >>> 5] >>> (id & 31)) & 1) === 1;
    if (isAllowed) constraint.accept(id);
    return isAllowed;
  });
}

export async function benchMasks({ model, data, every, json }: Options): Promise<void> {
  if (!data) throw new InputError('masks needs --data DIR: maskbench/data of guidance-ai/jsonschemabench.');
  const { gguf, tokenizer } = await openModelFile(model);
  await gguf.close();
  const constraints = createConstraints(tokenizer);
  // The vocabulary is read before anything is timed.
  constraints.create('warm', () => ({ root: { kind: 'text', text: '1' }, rules: new Map() })).mask();
  const results: CaseResult[] = [];
  for (const one of readCases(data, Number(every))) results.push(checkCase(tokenizer, constraints, one));
  console.log(
    json ? JSON.stringify(results.map(({ maskUs: _, ...rest }) => rest)) : render(results, tokenizer.vocabSize),
  );
}

function render(results: readonly CaseResult[], vocab: number): string {
  const of = (outcome: Outcome) => results.filter(result => result.outcome === outcome);
  const sum = (list: readonly CaseResult[], count: (result: CaseResult) => number) =>
    list.reduce((total, result) => total + count(result), 0);
  const lines = (['enforced', 'widened', 'refused'] as const).map(outcome => {
    const list = of(outcome);
    const [valid, invalid] = [sum(list, result => result.valid), sum(list, result => result.invalid)];
    const refused = sum(list, ({ refusedValid }) => refusedValid.length);
    const accepted = sum(list, ({ acceptedInvalid }) => acceptedInvalid.length);
    return `${outcome}: ${list.length} schemas; valid values refused: ${refused} of ${valid}; invalid ones accepted: ${accepted} of ${invalid}`;
  });
  const percentiles = (values: readonly number[]) => {
    const sorted = [...values].sort((a, b) => a - b);
    return [0.5, 0.9, 0.99, 1].map(part => Math.round(sorted[Math.ceil(part * sorted.length) - 1])).join(', ');
  };
  return [
    ...lines,
    `microseconds of CPU time per mask of ${vocab} tokens (p50, p90, p99, max): ${percentiles(results.flatMap(({ maskUs }) => maskUs))}`,
    `milliseconds to the first mask: ${percentiles(results.filter(({ outcome }) => outcome !== 'refused').map(({ buildMs }) => buildMs))}`,
  ].join('\n');
}
