/** Hostile schemas and values are checked in bounded time; the suite of cases is in schema-cases.test.ts. */
import { expect, it } from 'vitest';
import { cpuTime } from '../../../test/support/cpu-time.ts';
import { satisfies } from './satisfies.ts';

const nested = (depth: number): unknown => (depth === 0 ? [] : [nested(depth - 1)]);

it.each<[string, unknown, unknown]>([
  ['a reference to itself', {}, { $ref: '#' }],
  ['twice itself', {}, { anyOf: [{ $ref: '#' }, { $ref: '#' }], minProperties: 1 }],
  ['thrice itself, in all', {}, { allOf: [{ $ref: '#' }, { $ref: '#' }, { $ref: '#' }] }],
  ['a deep value', nested(3000), { items: { $ref: '#' } }],
  ['a long value', Array(50_000).fill({ a: 1 }), { items: { properties: { a: { type: 'integer' } } } }],
])('%s', (_, value, schema) => {
  const started = cpuTime();
  expect(satisfies(value, schema)).toBe(true);
  expect(cpuTime() - started).toBeLessThan(2000);
});

it('malformed keywords are ignored', () => {
  for (const schema of [
    { required: true },
    { properties: [] },
    { type: 7 },
    { enum: 'a' },
    { anyOf: {} },
    { $ref: 3 },
    'x',
  ])
    expect(satisfies({ a: 1 }, schema)).toBe(true);
});
