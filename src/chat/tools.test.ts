/** How many calls an answer may have, and what may be around them. */
import { beforeAll, describe, expect, it } from 'vitest';
import { acceptsAnswer, openConstraints } from '../../test/support/constraints.ts';
import { describeTools, type ToolUse, toolsGrammar, toolsKey } from './tools.ts';

let opened: Awaited<ReturnType<typeof openConstraints>>;
beforeAll(async () => {
  opened = await openConstraints();
});

const tool = (name: string) => ({
  type: 'function' as const,
  function: { name, parameters: { type: 'object', properties: { x: { type: 'integer' } }, required: ['x'] } },
});
const tools = [tool('add'), tool('ask')];

/** Whether `answer` is a whole answer. */
function accepts(use: ToolUse, answer: string): boolean {
  const { tokenizer, constraints } = opened;
  const constraint = constraints.create(toolsKey(tools, use), () => toolsGrammar(tools, use));
  return acceptsAnswer(tokenizer, constraint, answer);
}

const hermes = (name: string) => `<tool_call>\n{"name": "${name}", "arguments": {"x": 1}}\n</tool_call>`;
const llama = (name: string) => `{"name": "${name}", "parameters": {"x": 1}}`;

describe.each([
  { format: 'hermes', call: hermes, separator: '\n' },
  { format: 'llama3', call: llama, separator: '; ' },
] as const)('$format', ({ format, call, separator }) => {
  const two = [call('add'), call('ask')].join(separator);
  const allowed = (use: Omit<ToolUse, 'format'>) => ({
    text: accepts({ ...use, format }, 'Hello.'),
    one: accepts({ ...use, format }, call('add')),
    another: accepts({ ...use, format }, call('ask')),
    two: accepts({ ...use, format }, two),
  });

  it.each<[string, Omit<ToolUse, 'format'>, ReturnType<typeof allowed>]>([
    ['auto', { toolChoice: 'auto', isParallel: true }, { text: true, one: true, another: true, two: true }],
    ['auto, one call', { toolChoice: 'auto', isParallel: false }, { text: true, one: true, another: true, two: false }],
    ['required', { toolChoice: 'required', isParallel: false }, { text: false, one: true, another: true, two: false }],
    [
      'required, several calls',
      { toolChoice: 'required', isParallel: true },
      { text: false, one: true, another: true, two: true },
    ],
    [
      'a named tool is called once',
      { toolChoice: { name: 'add' }, isParallel: true },
      { text: false, one: true, another: false, two: false },
    ],
    [
      'auto, only the allowed ones',
      { toolChoice: 'auto', allowedTools: ['add'], isParallel: true },
      { text: true, one: true, another: false, two: false },
    ],
    [
      'required, only the allowed ones',
      { toolChoice: 'required', allowedTools: ['ask'], isParallel: true },
      { text: false, one: false, another: true, two: false },
    ],
  ])('%s', (_, use, expected) => expect(allowed(use)).toEqual(expected));
});

it.each(['system', 'developer'])('tools are described in the message of the %s that is there', role => {
  const [first, ...rest] = describeTools([{ role, content: 'Be brief.' }], tools);
  expect(first.role).toBe(role);
  expect(first.content).toMatch(/^Be brief\.\n\nYou can call functions/);
  expect(rest).toEqual([]);
});

it('text may come before a call, but not after the only one', () => {
  const use: ToolUse = { toolChoice: 'auto', isParallel: false, format: 'hermes' };
  expect(accepts(use, `I will add. ${hermes('add')}`)).toBe(true);
  expect(accepts(use, `${hermes('add')} Done.`)).toBe(false);
  expect(accepts({ ...use, isParallel: true }, `${hermes('add')} Done.`)).toBe(true);
});
