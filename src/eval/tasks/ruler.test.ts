import { describe, expect, it } from 'vitest';
import { readGrammar } from '../needle/document.ts';
import { createRuler, rulerNames } from './ruler.ts';
import type { Question } from './task.ts';

const count = (text: string) => text.split(/\s+/).filter(Boolean).length;
const grammar = await readGrammar();
const create = (name: (typeof rulerNames)[number], seed = 1) =>
  createRuler(name, { grammar, chat: false, lengths: [300, 900], documents: 2, seed, count });
const textOf = ({ prompt }: Question) => String(prompt);
const score = (question: Question, text: string) => question.score(question.read({ text }));

describe.each(rulerNames)('%s', name => {
  it('has documents of the given lengths, the same for the same seed', () => {
    const questions = create(name);
    expect(questions.map(({ id }) => id)).toEqual(['300/1', '300/2', '900/1', '900/2']);
    expect(questions[2].group).toBe('900 tokens');
    for (const [i, tokens] of [300, 300, 900, 900].entries()) {
      expect(count(textOf(questions[i]))).toBeGreaterThan(0.9 * tokens);
      expect(count(textOf(questions[i]))).toBeLessThanOrEqual(tokens + 2);
    }
    expect(create(name).map(textOf)).toEqual(questions.map(textOf));
    expect(textOf(create(name, 2)[0])).toBe(textOf(questions[1]));
  });

  it('refuses lengths that have no room for the facts', () =>
    expect(() => createRuler(name, { grammar, chat: false, lengths: [5], documents: 1, seed: 1, count })).toThrow(
      `${name} has no room for its facts in 5 tokens. Give longer lengths.`,
    ));

  it('scores nothing for an empty answer', () => expect(score(create(name)[0], '')).toBe(0));
});

describe('an answer of a ruler task', () => {
  it('is the number of the key', () => {
    for (const name of ['ruler-key-value', 'ruler-multi-key'] as const)
      for (const question of create(name)) {
        const [, key] = textOf(question).match(/What is the number of (\w+)\?/)!;
        const [, value] = textOf(question).match(new RegExp(`The number of ${key} is (\\d+)`))!;
        expect(score(question, `It is ${value}.`)).toBe(1);
        expect(score(question, `${value}0`)).toBe(0);
      }
  });

  it('is all numbers of the key', () => {
    const [question] = create('ruler-multi-value');
    const values = [...textOf(question).matchAll(/One of the numbers of \w+ is (\d+)/g)].map(([, value]) => value);
    expect(values).toHaveLength(4);
    expect(score(question, values.join(', '))).toBe(1);
    expect(score(question, values.slice(0, 3).join(', '))).toBe(0.75);
  });

  it('is all variables of the chain, which are assigned in order', () => {
    const [question] = create('ruler-variables');
    const assigned = new Map<string, string>();
    for (const [, name, number, other] of textOf(question).matchAll(/VAR (\w+) = (?:(\d+)|VAR (\w+))\./g)) {
      expect(number ?? assigned.get(other)).toBeDefined();
      assigned.set(name, number ?? assigned.get(other)!);
    }
    expect(assigned.size).toBe(10);
    const [, value] = textOf(question).match(/have the value (\d+)/)!;
    const names = [...assigned].flatMap(([name, held]) => (held === value ? [name] : []));
    expect(score(question, names.join(' '))).toBe(1);
  });

  it('is the most frequent words', () => {
    const [question] = create('ruler-words');
    const counts = new Map<string, number>();
    for (const word of textOf(question).split('\n\n')[1].split(', ')) counts.set(word, (counts.get(word) ?? 0) + 1);
    const frequent = [...counts].flatMap(([word, times]) => (times > 1 ? [word] : []));
    expect(frequent).toHaveLength(5);
    expect(score(question, frequent.join(', '))).toBe(1);
  });
});
