import { expect, it } from 'vitest';
import { messageEnds } from './message-ends.ts';

const utf8 = new TextEncoder();
/** One token per character; `|` is a control token, which has no text. */
const tokenizer = { tokenBytes: (id: number) => utf8.encode(String.fromCodePoint(id).replace('|', '')) };
const encode = (text: string) => [...text].map(character => character.codePointAt(0)!);
const user = (content: string) => ({ role: 'user', content });

it('counts the tokens up to the end of each message', () => {
  const ids = encode('|sys: été|user: 2+2?|assistant:');
  expect(messageEnds(tokenizer, [user('été'), user('2+2?')], ids)).toEqual([9, 20]);
});

it('finds contents that the template trims, in order, and parts as one text', () => {
  const parts = [
    { type: 'text' as const, text: 'b' },
    { type: 'text' as const, text: 'a' },
  ];
  expect(
    messageEnds(tokenizer, [user(' a '), user('a'), { role: 'user', content: parts }], encode('a|a|b\na|')),
  ).toEqual([1, 3, 7]);
});

it('counts what the template leaves out as part of the message before it', () => {
  const messages = [user('a'), { role: 'assistant', content: null }, user('hidden'), user('b')];
  expect(messageEnds(tokenizer, messages, encode('|a|b|'))).toEqual([2, 2, 2, 4]);
});
