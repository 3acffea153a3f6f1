/** Answers in channels are taken apart in the same way however their text was divided. */
import fc from 'fast-check';
import { expect, it } from 'vitest';
import { createChannelParser } from './channels.ts';

function parse(pieces: readonly string[], names?: readonly string[]) {
  const parser = createChannelParser(names);
  const parts = [...pieces.map(piece => parser.push(piece)), parser.end()];
  const calls: Record<number, string> = {};
  for (const { index, name = '', arguments: more = '' } of parts.flatMap(part => part.calls))
    calls[index] = (calls[index] ?? '') + name + more;
  const join = (key: 'text' | 'reasoning') => parts.map(part => part[key]).join('');
  return { text: join('text'), reasoning: join('reasoning'), calls: Object.values(calls) };
}

const FINAL = '<|start|>assistant<|channel|>final<|message|>';
const ANALYSIS = '<|channel|>analysis<|message|>';

it.each<[string, string, Partial<ReturnType<typeof parse>>]>([
  ['reasoning and an answer', `${ANALYSIS}Hm <b>.<|end|>${FINAL}Hello.`, { reasoning: 'Hm <b>.', text: 'Hello.' }],
  ['an answer alone', '<|channel|>final<|message|>Hello <|x|>.<|return|>', { text: 'Hello <|x|>.' }],
  ['reasoning that was cut', `${ANALYSIS}Hm`, { reasoning: 'Hm' }],
  ['a header that was cut', '<|channel|>anal', {}],
  ['two messages of reasoning', `${ANALYSIS}A.<|end|><|start|>assistant${ANALYSIS}B.<|end|>`, { reasoning: 'A.\nB.' }],
  [
    'a call after a remark',
    `<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>`,
    { text: 'Let me see.', calls: ['f{"a": 1}'] },
  ],
  [
    'a call with its recipient first',
    ' to=functions.f<|channel|>commentary json<|message|>{}<|call|>',
    { calls: ['f{}'] },
  ],
  ['a call of no tool', '<|channel|>commentary to=functions.g<|message|>{}<|call|>', { text: '{}' }],
  ['text without channels', 'Hello.', { text: 'Hello.' }],
  ['long text without channels', 'Hello. '.repeat(100), { text: 'Hello. '.repeat(100) }],
])('%s', (_, answer, expected) => {
  const full = { text: '', reasoning: '', calls: [], ...expected };
  expect(parse([answer], ['f'])).toEqual(full);
  fc.assert(
    fc.property(fc.array(fc.integer({ min: 1, max: 12 }), { maxLength: 40 }), sizes => {
      let rest = answer;
      const pieces = sizes.map(size => {
        const piece = rest.slice(0, size);
        rest = rest.slice(size);
        return piece;
      });
      expect(parse([...pieces, rest], ['f'])).toEqual(full);
    }),
    { numRuns: 50 },
  );
});
