/** Conversations as data: their titles, versions of messages, search, and files. */
import { readFileSync } from 'node:fs';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  type AnswerStats,
  type Conversation,
  canLeaveOut,
  isFull,
  leaveOut,
  type Message,
  newConversation,
  turnsOf,
  withMessages,
} from '../../web/src/state/conversation.ts';
import { searchConversations } from '../../web/src/state/search.ts';
import { fileNameOf, fromJson, toJson, toMarkdown } from '../../web/src/state/transfer.ts';
import { switchVersion, versionsAfter, withAnswer } from '../../web/src/state/versions.ts';
import { actionOf, SHORTCUTS } from '../../web/src/ui/shortcuts.tsx';

const user = (text: string, more?: Partial<Message>): Message => ({ id: `q ${text}`, role: 'user', text, ...more });
const assistant = (text: string, more?: Partial<Message>): Message => ({
  ...user(text, more),
  id: text,
  role: 'assistant',
});
const texts = (messages: readonly Message[]) => messages.map(({ text }) => text).join(' ');

describe('the title of a conversation', () => {
  const first = withMessages(newConversation(), [user('Who was Kvasir?')]);

  it('follows the first question, until the user gives another', () => {
    expect(first.title).toBe('Who was Kvasir?');
    expect(withMessages(first, [user('Who was Mimir?')]).title).toBe('Who was Mimir?');
    const renamed = { ...first, title: 'Myths' };
    expect(withMessages(renamed, [user('Who was Mimir?')]).title).toBe('Myths');
  });
});

describe('versions of a message', () => {
  const asked = user('a');
  const conversation = [asked, assistant('1'), user('b'), assistant('2')];
  /** Another answer in place of a message. */
  const answerAgain = (messages: readonly Message[], at: number, text: string): Message[] => [
    ...messages.slice(0, at),
    assistant(text, { versions: versionsAfter(messages, messages[at]) }),
  ];

  it('keep what followed them', () => {
    const again = answerAgain(conversation, 1, '3');
    expect(texts(again)).toBe('a 3');
    const back = switchVersion(again, again[1], -1);
    expect(texts(back)).toBe('a 1 b 2');
    expect(back[1].versions).toMatchObject({ before: [], after: [[{ text: '3' }]] });
    expect(switchVersion(back, back[1], -1)).toBe(back);
    expect(texts(switchVersion(back, back[1], 1))).toBe('a 3');
  });

  it('are those of an answer without text no more', () => {
    const failed = [asked, assistant('', { error: 'no' })];
    expect(versionsAfter(failed, failed[1])).toBeUndefined();
    const again = answerAgain([asked, assistant('1')], 1, '');
    expect(texts(answerAgain(again, 1, '2')[1].versions!.before.flat())).toBe('1');
  });

  it('are those of a message without text that has a document, or that others follow', () => {
    const document = user('', { attachments: [{ id: 'd', name: 'a.txt', text: 'A' }] });
    const onDocument = [document, assistant('1'), user('b'), assistant('2')];
    expect(versionsAfter(onDocument, document)!.before).toEqual([onDocument]);
    expect(versionsAfter([document], document)!.before).toEqual([[document]]);
    const stopped = assistant('');
    expect(versionsAfter([asked, stopped, user('b'), assistant('2')], stopped)!.before.map(texts)).toEqual([' b 2']);
  });

  it('are all there, and in order, after any steps', () => {
    const step = fc.record({ at: fc.nat(3), action: fc.constantFrom<'again' | 1 | -1>('again', 1, -1) });
    fc.assert(
      fc.property(fc.array(step, { maxLength: 12 }), steps => {
        let messages: readonly Message[] = conversation;
        let made = 4;
        for (const { at, action } of steps) {
          if (at >= messages.length) continue;
          if (action === 'again') messages = answerAgain(messages, at, String(made++));
          else messages = switchVersion(messages, messages[at], action);
        }
        const all = (list: readonly Message[]): string[] =>
          list.flatMap(({ text, versions }) => [
            text,
            ...[...(versions?.before ?? []), ...(versions?.after ?? [])].flatMap(all),
          ]);
        const expected = ['a', '1', 'b', '2', ...Array.from({ length: made - 4 }, (_, i) => String(i + 4))];
        expect(all(messages).sort()).toEqual(expected.sort());
      }),
    );
  });
});

describe('an answer that is complete', () => {
  const question = user('b');
  const answered = [user('a'), assistant('1'), question];
  const partial = assistant('2', { error: 'cut' });
  const complete: Message = { ...partial, text: '2, and 3', error: undefined };
  const put = (messages: readonly Message[], answer = complete) => withAnswer(messages, answer, question.id);

  it('follows its question', () => {
    expect(texts(put(answered))).toBe('a 1 b 2, and 3');
    expect(texts(put([user('c')]))).toBe('c');
  });

  it('replaces what was there of it, and nothing else', () => {
    const versions = { before: [[assistant('0')]], after: [] };
    const messages = put([...answered, { ...partial, versions }, user('c')]);
    expect(texts(messages)).toBe('a 1 b 2, and 3 c');
    expect(messages[3]).toEqual({ ...complete, versions });
    const again = put([...answered, assistant('4', { versions: { before: [[partial, user('c')]], after: [] } })]);
    expect(again[3].versions).toEqual({ before: [[complete, user('c')]], after: [] });
  });

  it('is an older version of another answer there', () => {
    const own = { before: [[assistant('0')]], after: [] };
    const messages = put([...answered, assistant('4'), user('c')], { ...complete, versions: own });
    expect(texts(messages)).toBe('a 1 b 4 c');
    expect(messages[3].versions!.before.map(texts)).toEqual(['0', '2, and 3']);
  });

  it('is in the version that has its question', () => {
    const again = [answered[0], assistant('5', { versions: versionsAfter(answered, answered[1]) })];
    const messages = put(again);
    expect(texts(messages)).toBe('a 5');
    expect(texts(switchVersion(messages, messages[1], -1))).toBe('a 1 b 2, and 3');
  });
});

describe('what the model reads', () => {
  const read = (...messages: Message[]) => turnsOf(messages, {}).map(({ role, content }) => `${role}: ${content}`);

  it('has no two questions in a row, where an answer failed or was stopped', () => {
    expect(read(user('a'), assistant(''), user('b'), assistant('1'), user('c'))).toEqual([
      ...['user: a\n\nb', 'assistant: 1', 'user: c'],
    ]);
    const begun = assistant('So', { reasoning: 'hm' });
    expect(turnsOf([user('a')], { system: ' Be brief. ', begun })).toEqual([
      { role: 'system', content: 'Be brief.' },
      { role: 'user', content: 'a' },
      { role: 'assistant', content: 'So', reasoning_content: 'hm' },
    ]);
  });
});

describe('a context that is full', () => {
  const document = { id: 'd', name: 'a.txt', text: 'x'.repeat(60) };
  const asked = [user('a', { attachments: [document] }), assistant('1'), user('b'), assistant('2'), user('c')];
  const read = (messages: readonly Message[]) => turnsOf(messages, { system: 'S' }).map(({ content }) => content);

  it('has room when the oldest messages are left out: at least one, and the last question stays', () => {
    expect(read(leaveOut(asked, 0.5))).toEqual(['S', 'b', '2', 'c']);
    expect(read(leaveOut(asked, 1))).toEqual(['S', 'b', '2', 'c']);
    expect(read(leaveOut(asked, 0))).toEqual(['S', 'c']);
    // Again, of those that are read.
    const again = leaveOut([...leaveOut(asked, 0.5), assistant('3')], 0.5);
    expect(read(again)).toEqual(['S', 'c', '3']);
    expect(canLeaveOut(again)).toBe(false);
    expect(leaveOut(again, 0.5).filter(({ startsContext }) => startsContext).length).toBe(2);
    expect(fromJson(toJson([{ ...newConversation(again), title: '' }]))[0].messages).toEqual(again);
  });

  it('is known by its error, or by an answer that ends there', () => {
    const ended = (finish: 'length' | 'stop', completionTokens: number) =>
      assistant('1', {
        stats: {
          ...{ finish, completionTokens, promptTokens: 60, codec: 'tq4' },
          ...{ reusedTokens: 0, prefillSeconds: 1, decodeRate: 1 },
        },
      });
    expect(isFull(assistant('', { error: 'no', isFull: true }), undefined)).toBe(true);
    expect(isFull(assistant('', { error: 'no' }), 100)).toBe(false);
    expect([ended('length', 40), ended('length', 39), ended('stop', 40)].map(message => isFull(message, 100))).toEqual([
      ...[true, false, false],
    ]);
  });
});

describe('search', () => {
  const named = (title: string, ...messages: Message[]) => ({ ...newConversation(messages), title });
  const attachments = [{ id: '', name: 'Edda.pdf', text: 'mead' }];
  const list = [named('Teapots', user('A lost one', { attachments })), named('Mead', assistant('Honey and WATER'))];
  const find = (query: string) => searchConversations(list, query).map(({ title }) => title);

  it('finds all words, in titles, messages and names of documents', () => {
    expect(find('')).toEqual(['Teapots', 'Mead']);
    expect(find('water  MEAD')).toEqual(['Mead']);
    expect(find('edda')).toEqual(['Teapots']);
    expect(find('water teapot')).toEqual([]);
  });
});

describe('files of conversations', () => {
  const stats: AnswerStats = {
    ...{
      finish: 'stop' as const,
      promptTokens: 5,
      reusedTokens: 0,
      completionTokens: 2,
      prefillSeconds: 1,
      decodeRate: 9,
    },
    ...{ model: 'Mimir', codec: 'tq4' },
  };
  const conversation: Conversation = {
    ...{ id: 'c', title: 'Mead: “what/why”?', updated: 7 },
    messages: [
      user('Why?', { attachments: [{ id: 'x', name: 'a.txt', text: 'A', tokens: 1 }] }),
      assistant('So.', { reasoning: 'hm', stats, versions: { before: [[assistant('No.')]], after: [] } }),
      assistant('', { error: 'gone' }),
    ],
  };

  it('as JSON come back whole', () => {
    expect(fromJson(toJson([conversation, conversation]))).toEqual([conversation, conversation]);
  });

  it('that are something else say so, and nothing unknown is taken', () => {
    expect(() => fromJson('{')).toThrow('it is not JSON.');
    for (const text of ['null', '[]', '{"conversations": []}'])
      expect(() => fromJson(text)).toThrow('no conversations');
    expect(() => fromJson(toJson([]).replace('"version": 1', '"version": 2'))).toThrow('version 2');
    const json = JSON.parse(toJson([conversation]));
    const read = (change: (c: typeof conversation) => unknown) =>
      fromJson(JSON.stringify({ ...json, conversations: json.conversations.map(change) }));
    expect(read(c => ({ ...c, extra: 1, __proto__: { a: 1 } }))).toEqual([conversation]);
    for (const damage of [
      { messages: [{ ...conversation.messages[0], role: 'system' }] },
      { messages: [{ ...conversation.messages[1], versions: { before: [[]], after: [] } }] },
      { messages: [{ ...conversation.messages[1], stats: { finish: 'stop' } }] },
      { messages: 'all' },
      { id: 7 },
      { id: '../models' },
    ])
      expect(() => read(c => ({ ...c, ...damage }))).toThrow('a conversation in it is damaged.');
  });

  it('as Markdown are for reading', () => {
    expect(toMarkdown(conversation)).toBe(
      '# Mead: “what/why”?\n\n## Question\n\n*With the document a.txt*\n\nWhy?\n\n## Answer\n\nSo.\n\n## Answer\n',
    );
    expect(fileNameOf(conversation.title, 'md')).toBe('Mead whatwhy.md');
    expect(fileNameOf('../..', 'json')).toBe('conversation.json');
  });
});

describe('keyboard shortcuts', () => {
  const press = (key: string, more = {}, isInField = false) =>
    actionOf({ ...{ key, ctrlKey: false, metaKey: false, shiftKey: false, altKey: false }, ...more }, isInField);

  it('do not take letters from a text field', () => {
    expect(press('?', { shiftKey: true })).toBe('list');
    expect(press('?', { shiftKey: true }, true)).toBeUndefined();
    expect(press('/', {}, true)).toBeUndefined();
    expect(press('Escape', {}, true)).toBe('stop');
    expect(press('K', { metaKey: true }, true)).toBe('search');
    expect(press('O', { ctrlKey: true, shiftKey: true }, true)).toBe('startNew');
    expect(press('o', { ctrlKey: true })).toBeUndefined();
    expect(press('k', { ctrlKey: true, altKey: true })).toBeUndefined();
  });

  it('are those of docs/web.md', () => {
    const docs = readFileSync(new URL('../../docs/web.md', import.meta.url), 'utf8');
    const [, table] = docs.match(/\| key .*\n\| -.*\n((?:\|.*\n)+)/)!;
    const rows = table
      .trim()
      .split('\n')
      .map(row =>
        row
          .split('|')
          .slice(1, 3)
          .map(cell => cell.replaceAll('`', '').trim()),
      );
    expect(rows).toEqual(
      SHORTCUTS.map(({ keys, where, action }) => [[...keys, where].filter(Boolean).join(' '), action]),
    );
  });
});
