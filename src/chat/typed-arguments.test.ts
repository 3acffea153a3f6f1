import { expect, it } from 'vitest';
import type { Tool } from './answer.ts';
import { typedArguments } from './typed-arguments.ts';

const properties = {
  text: { type: 'string' },
  count: { type: 'integer' },
  on: { type: 'boolean' },
  list: { type: 'array', items: { type: 'integer' } },
  maybe: { type: ['string', 'null'] },
  size: { enum: ['1', '2'] },
  shape: { $ref: '#/$defs/shape' },
  any: {},
};
const $defs = { shape: { type: 'object', properties: { sides: { type: 'integer' } } } };
const parameters = { type: 'object', properties, required: ['text', 'count'], $defs };
const tools: Tool[] = [{ type: 'function', function: { name: 'f', parameters } }];
const typed = (key: string, value: string) => typedArguments(tools, 'f', new Map([[key, value]]), () => {})[key];

it.each([
  ['text', '5', '5'],
  ['text', '{"a": 1}', '{"a": 1}'],
  ['text', '"quoted"', '"quoted"'],
  ['text', '', ''],
  ['count', '5', 5],
  ['count', ' 5 ', 5],
  ['count', 'five', 'five'],
  ['on', 'true', true],
  ['on', 'False', false],
  ['list', '[1, 2]', [1, 2]],
  ['maybe', 'null', null],
  ['maybe', 'None', null],
  ['maybe', 'nothing', 'nothing'],
  ['size', '2', '2'],
  ['shape', '{"sides": 3}', { sides: 3 }],
  ['any', '3', 3],
  ['any', 'three', 'three'],
  ['unknown', '[1]', [1]],
])('%s: %s', (key, value, expected) => expect(typed(key, value)).toEqual(expected));

it('hostile names and tools that are not there', () => {
  const values = new Map([['__proto__', '{"a": 1}']]);
  expect(Object.entries(typedArguments(tools, 'g', values, () => {}))).toEqual([['__proto__', { a: 1 }]]);
  expect({}).not.toHaveProperty('a');
});
