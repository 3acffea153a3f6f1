/** Every text of a schema's grammar satisfies the schema; keywords that are not enforced are refused. */
import { Ajv2020 } from 'ajv/dist/2020.js';
import { beforeAll, describe, expect, it } from 'vitest';
import { acceptsAnswer, openConstraints } from '../../../test/support/constraints.ts';
import { cpuTime } from '../../../test/support/cpu-time.ts';
import { ALL_CASES } from '../../../test/support/matrix.ts';
import { seeded } from '../../../test/support/random.ts';
import { hostile, refused, schemas, tooLarge } from '../../../test/support/schemas.ts';
import { unenforcedKeywords } from '../../chat/tools.ts';
import type { Tokenizer } from '../../model/tokenizer.ts';
import { InputError } from '../../util/errors.ts';
import { type Constraints, createConstraints } from './constraint.ts';
import { formats } from './pattern.ts';
import { schemaGrammar, schemaText } from './schema.ts';

let tokenizer: Tokenizer;
let constraints: Constraints;
beforeAll(async () => {
  ({ tokenizer, constraints } = await openConstraints());
});

const constrain = (schema: Record<string, unknown> | true) =>
  constraints.create(schemaText(schema, 'schema'), () => schemaGrammar(schema));

/** A random text of the grammar; undefined if it is not complete after 400 tokens. */
function write(schema: Record<string, unknown>, seed: number): string | undefined {
  const random = seeded(seed);
  const constraint = constrain(schema);
  const closing = [...'"}],0@.jst'].map(letter => tokenizer.encode(letter)[0]);
  const ids: number[] = [];
  while (ids.length < 400) {
    const mask = constraint.mask();
    const isAllowed = (id: number) => ((mask[id >>> 5] >>> (id & 31)) & 1) === 1;
    const allowed: number[] = [];
    for (let id = 0; id < tokenizer.vocabSize; id++) if (isAllowed(id)) allowed.push(id);
    const ending = allowed.filter(id => tokenizer.eosIds.has(id));
    if (ending.length > 0 && (ending.length === allowed.length || random.next() < 0.5)) return tokenizer.decode(ids);
    const others = allowed.filter(id => !tokenizer.eosIds.has(id));
    const closers = random.next() < 0.4 ? closing.filter(isAllowed) : [];
    const from = closers.length > 0 ? closers : others;
    const id = from[random.below(from.length)];
    expect(tokenizer.tokenBytes(id).length).toBeGreaterThan(0);
    ids.push(id);
    constraint.accept(id);
  }
  return undefined;
}

const accepts = (schema: Record<string, unknown> | true, text: string): boolean =>
  acceptsAnswer(tokenizer, constrain(schema), text);

const ajv = new Ajv2020({ strict: false, formats: { ...formats } });

it('there are 200 schemas', () => expect(schemas.length + hostile.length + refused.length).toBeGreaterThanOrEqual(200));

describe('random texts of the grammar satisfy the schema', () => {
  it.each(schemas.map(schema => [JSON.stringify(schema).slice(0, 100), schema] as const))('%s', (_name, schema) => {
    const validate = ajv.compile(schema);
    const texts = (ALL_CASES ? [1, 2, 3, 4, 5, 6] : [1, 2, 3])
      .map(seed => write(schema, seed))
      .filter(text => text !== undefined);
    expect(texts.length).toBeGreaterThan(0);
    for (const text of texts) {
      const value: unknown = JSON.parse(text);
      expect(validate(value), `${text}: ${ajv.errorsText(validate.errors)}`).toBe(true);
      expect(text.replace(/"(?:[^"\\]|\\.)*"/g, '""')).not.toMatch(/\s\s/);
    }
  });
});

describe('what is not enforced is refused', () => {
  it.each(refused.map(([schema, reason]) => [String(reason), schema, reason] as const))(
    '%s',
    (_name, schema, reason) => {
      expect(() => schemaGrammar(schema)).toThrow(InputError);
      expect(() => schemaGrammar(schema)).toThrow(reason);
    },
  );
});

describe('hostile schemas take bounded time', () => {
  it.each(hostile.map(schema => [JSON.stringify(schema).slice(0, 60), schema] as const))('%s', (_name, schema) => {
    const validate = ajv.compile(schema);
    const text = write(schema, 1);
    if (text !== undefined) expect(validate(JSON.parse(text)), text.slice(0, 200)).toBe(true);
  });
});

const toolOf = (parameters: Record<string, unknown>, name = 'f', strict?: boolean) => ({
  type: 'function' as const,
  function: { name, parameters, strict },
});

/** The least CPU time of three runs: the first one also compiles the code. */
function leastTime(run: () => void): number {
  const once = () => {
    const started = cpuTime();
    run();
    return cpuTime() - started;
  };
  return Math.min(once(), once(), once());
}

describe('what takes too much work is refused', () => {
  it.each(Object.entries(tooLarge))('%s', (_name, schema) => {
    expect(() => schemaGrammar(schema)).toThrow(InputError);
    const parameters = { type: 'object', properties: { a: schema }, $defs: schema.$defs };
    expect(unenforcedKeywords([toolOf(parameters)])).not.toEqual([]);
    expect(() => unenforcedKeywords([toolOf(parameters, 'f', true)])).toThrow(InputError);
    expect(leastTime(() => unenforcedKeywords([toolOf(parameters)]))).toBeLessThan(100);
  });

  it('with its part, and what to do', () =>
    expect(() => schemaGrammar({ properties: { a: {}, b: tooLarge['a long pattern'] } })).toThrow(
      'schema.properties.b takes too much work to enforce. Use fewer alternatives, constants and references',
    ));

  it('by all tools of a request together, and others are still enforced', () => {
    const a = tooLarge['constants, each with each alternative'];
    const tools = (count: number) =>
      Array.from({ length: count }, (_, i) => toolOf({ type: 'object', properties: { a } }, `f${i}`));
    expect(leastTime(() => unenforcedKeywords(tools(12)))).toBeLessThan(150);
    const honest = toolOf({ type: 'object', properties: { a: { type: 'string' } } }, 'honest', true);
    expect(unenforcedKeywords([...tools(4), honest])).toEqual([0, 1, 2, 3].map(i => `tools[${i}].function.parameters`));
  });
});

it('a union of 100 objects is enforced', () => {
  const kinds = Array.from({ length: 100 }, (_, i) => ({
    type: 'object',
    properties: { type: { const: `event-${i}` }, id: { type: 'string', pattern: '^[a-z]{2}-\\d+$' } },
    required: ['type', 'id'],
    additionalProperties: false,
  }));
  expect(unenforcedKeywords([toolOf({ type: 'object', properties: { event: { oneOf: kinds } } })])).toEqual([]);
});

it.each<[schema: Record<string, unknown>, texts: string[], others: string[]]>([
  [{ propertyNames: { type: 'integer' } }, ['{}'], ['{"a": 1}']],
  [{ propertyNames: { pattern: 'a', nullable: true } }, ['{"a": 1}'], ['{null: 1}', '{"b": 1}']],
  [{ propertyNames: { enum: ['a', 'bb'], minLength: 2 } }, ['{"bb": 1}'], ['{"a": 1}']],
  [{ propertyNames: { minLength: 3, maxLength: 2 } }, ['{}'], ['{"a": 1}', '{"aaa": 1}']],
  [{ propertyNames: false }, ['{}'], ['{"a": 1}']],
])('names of properties: %j', (schema, texts, others) => {
  expect(texts.filter(text => !accepts({ type: 'object', ...schema }, text))).toEqual([]);
  expect(others.filter(text => accepts({ type: 'object', ...schema }, text))).toEqual([]);
});

const person = {
  type: 'object',
  properties: { name: { type: 'string' }, age: { type: 'integer' }, city: { type: 'string' } },
  required: ['name'],
};

it.each<[schema: Record<string, unknown> | true, texts: string[], others: string[]]>([
  [
    true,
    ['{}', '{"a": [1, {"b": null}]}', '{"a":1,"b":2}'],
    ['[]', '1', '{ }', '{"a":  1}', '{"a": 1}\n', '{"a": 01}'],
  ],
  [
    person,
    ['{"name": "A"}', '{"name": "\\u00e9", "city": "日本"}'],
    ['{}', '{"age": 1}', '{"name": "A", "x": 1}', '{"city": "B", "name": "A"}'],
  ],
  [{ type: 'integer', minimum: -5 }, ['-5', '0', '123456'], ['-6', '-10', '1.5', '-0']],
  [
    { type: 'number', exclusiveMinimum: 0, maximum: 1 },
    ['0.5', '1', '0.01', '1.0'],
    ['0', '0.0', '1.1', '-0.5', '1e1'],
  ],
  [
    { type: 'string', minLength: 2, maxLength: 3 },
    ['"ab"', '"é\\n"', '"😀😀😀"'],
    ['"a"', '"abcd"', '"\\ud83d\\ude00"'],
  ],
  [{ type: 'integer' }, ['-12345678901234567890'], ['123456789012345678901']],
  [{ type: 'number', minimum: 0 }, ['234567890123456800', '18446744073709551615'], ['-1']],
  // 99999999999999999 is read as 1e17.
  [{ type: 'integer', exclusiveMaximum: 1e17 }, ['-99999999999999999', '999999999999999'], ['99999999999999999']],
  [{ type: 'integer', exclusiveMinimum: -1e17, maximum: 5 }, ['-999999999999999'], ['-99999999999999999', '6']],
  [
    { properties: { a: {}, b: {} }, anyOf: [{ properties: { b: { const: 1 }, c: {} } }, { required: ['b', 'd'] }] },
    ['{"a": 0, "b": 1, "c": 2}', '{"a": 0, "b": 2, "d": 3}'],
    ['{"b": 1, "a": 0}', '{"a": 0, "b": 2}'],
  ],
  [{ type: 'string', pattern: '^[^a]"\\\\$' }, ['"b\\"\\\\"'], ['"a\\"\\\\"', '"b"']],
  [
    { type: 'object', properties: { ab: { type: 'integer' } }, additionalProperties: { type: 'boolean' } },
    ['{"ab": 1, "a": true, "abc": true}'],
    ['{"ab": true}', '{"a": true, "ab": false}', '{"\\u0061b": true}'],
  ],
  [{ enum: ['a', 'ab', 1], type: 'string' }, ['"a"', '"ab"'], ['1', '"abc"', '']],
])('%j', (schema, texts, others) => {
  expect(texts.filter(text => !accepts(schema, text))).toEqual([]);
  expect(others.filter(text => accepts(schema, text))).toEqual([]);
});

it('compiles a schema once, and forgets the least recently used', () => {
  const own = createConstraints(tokenizer);
  const use = (n: number) => own.create(schemaText({ const: n }, 'schema'), () => schemaGrammar({ const: n }));
  for (let i = 0; i < 100; i++) use(i % 20);
  expect(own.compiled).toBe(20);
  for (let i = 0; i < 40; i++) use(i);
  expect(own.compiled).toBe(40);
  use(0);
  expect(own.compiled).toBe(41);
});

it('builds the grammar of a schema once, also one that cannot be built', () => {
  const own = createConstraints(tokenizer);
  let built = 0;
  const build = (schema: Record<string, unknown>) =>
    own.grammar(schemaText(schema, 'schema'), () => {
      built++;
      return schemaGrammar(schema);
    });
  expect(build({ const: 1 })).toBe(build({ const: 1 }));
  expect(built).toBe(1);
  for (let i = 0; i < 2; i++) expect(() => build({ uniqueItems: true })).toThrow(InputError);
  expect(built).toBe(2);
});
