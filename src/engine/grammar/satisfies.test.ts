/** Values that were written without the grammar; the suite of cases is in schema-cases.test.ts. */
import { expect, it } from 'vitest';
import { satisfies } from './satisfies.ts';

const nested = (depth: number): unknown => (depth === 0 ? [] : [nested(depth - 1)]);

const MAX_STEPS = 100_000;

/** `tooMuch`: the check was given up. */
function check(value: unknown, schema: unknown, isStrict = false): boolean | 'tooMuch' {
  let steps = 0;
  const spend = (more: number) => {
    steps += more;
    if (steps > MAX_STEPS) throw new RangeError('too much');
  };
  try {
    return satisfies(value, schema, { isStrict, spend });
  } catch (error) {
    if (!(error instanceof RangeError && error.message === 'too much')) throw error;
    return 'tooMuch';
  }
}

it.each<[string, unknown, unknown]>([
  ['thrice itself, in all', {}, { allOf: [{ $ref: '#' }, { $ref: '#' }, { $ref: '#' }] }],
  ['a long value', Array(50_000).fill({ a: 1 }), { items: { properties: { a: { type: 'integer' } } } }],
  ['many constants', [1], { items: { anyOf: Array(50_000).fill({ enum: [1, 2, 3] }) } }],
  ['a pattern of many repetitions', 'a'.repeat(2000), { pattern: `^${'a?'.repeat(900)}$` }],
])('the work is limited: %s', (_, value, schema) => expect(check(value, schema)).toBe('tooMuch'));

it('beyond some depth nothing is checked, unless it is strict', () => {
  expect(check({}, { $ref: '#' })).toBe(true);
  expect(check({}, { $ref: '#' }, true)).toBe(false);
  expect(check({}, { anyOf: [{ $ref: '#' }, { $ref: '#' }] })).toBe(true);
  expect(check({}, { anyOf: [{ $ref: '#' }, { $ref: '#' }] }, true)).toBe('tooMuch');
  expect(check(nested(3000), { items: { $ref: '#' } })).toBe(true);
});

it.each<[schema: object, right: unknown[], wrong: unknown[]]>([
  [{ pattern: '^\\d{4}$' }, ['2024', 7], ['tomorrow', '20245']],
  [{ pattern: 'b+$' }, ['abb'], ['ba', '']],
  [{ pattern: '^(a+)+$' }, ['aaa'], ['b', `${'a'.repeat(60)}!`]],
  [{ pattern: '^(?:a|ab)(?:c|bcd)(?:d*)$' }, ['abcd', 'ac'], ['abd']],
  [{ pattern: '^"\\\\\\n?.$' }, ['"\\\né', '"\\😀'], ['"']],
  [{ pattern: '^(?=a)' }, ['b'], []],
  [{ multipleOf: 0.01 }, [1.15, -3, 1e300], [1.23456]],
  [{ multipleOf: 3 }, [4], []],
  [{ propertyNames: { pattern: '^x-' } }, [{ 'x-a': 1 }], [{ a: 1 }]],
  [
    { properties: { ab: {} }, patternProperties: { '^a': { type: 'integer' } }, additionalProperties: false },
    [{ a: 1, ab: 2 }],
    [{ a: 'b' }, { ab: 'c' }, { b: 1 }],
  ],
  [{ patternProperties: { '^(?=a)': false }, additionalProperties: false }, [{ b: 1 }], []],
])('%j', (schema, right, wrong) => {
  expect(right.filter(value => check(value, schema) !== true)).toEqual([]);
  expect(wrong.filter(value => check(value, schema) !== false)).toEqual([]);
});

it('formats are checked if it is strict', () => {
  for (const [value, isRight] of [
    ['2024-02-28', true],
    ['never', false],
  ] as const) {
    expect(check(value, { format: 'date' }, true)).toBe(isRight);
    expect(check(value, { format: 'date' })).toBe(true);
  }
  expect(check('any', { format: 'color' }, true)).toBe(true);
});

it('malformed keywords are ignored', () => {
  for (const schema of [
    { required: true },
    { properties: [] },
    { type: 7 },
    { enum: 'a' },
    { anyOf: {} },
    { $ref: 3 },
    { pattern: '(' },
    'x',
  ])
    expect(check({ a: 1 }, schema)).toBe(true);
});
