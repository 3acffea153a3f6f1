/** What a task asks of a model that may think. */
import { expect, it } from 'vitest';
import type { Model } from '../../api/model.ts';
import { type AnswerOptions, answerQuestions } from './answer-questions.ts';
import type { Question } from './task.ts';

const question: Question = {
  id: '1',
  prompt: [{ role: 'user', content: 'What is 17 * 3?' }],
  maxTokens: 64,
  read: ({ text }) => text.trim(),
  score: said => (said === '51' ? 1 : 0),
};

/** Asks a model that answers with this text, and says what it was asked with, and what it was worth. */
async function ask(text: string, options: Partial<AnswerOptions> = {}, questions = [question]) {
  const given: unknown[] = [];
  const scores: number[] = [];
  const notices = new Set<string>();
  const answer = { text, finish: 'stop', notices: [], usage: { promptTokens: 9, completionTokens: 9 } };
  const samples = async (_prompt: unknown, _count: number, options: unknown) => {
    given.push(options);
    return [answer];
  };
  await answerQuestions({ maxSequences: 2, samples } as never as Model, questions, {
    ...{ samples: 1, temperature: 0, seed: 1, ...options },
    onResult: async (_, result) => void scores.push(...result.scores),
    onNotice: notice => notices.add(notice),
  });
  return { given: given[0], scores, notices: [...notices] };
}

it('is told not to think, and where that does not help there is a notice', async () => {
  const { given, scores, notices } = await ask('51');
  expect(given).toMatchObject({ maxTokens: 64, render: { variables: { enable_thinking: false, thinking_budget: 0 } } });
  expect([scores, notices]).toEqual([[1], []]);
  for (const text of ['<think>17 * 3</think>51', '[THINK]17 * 3[/THINK]51', '<seed:think>Hm</seed:think>\n51'])
    expect(await ask(text)).toMatchObject({ scores: [1], notices: [expect.stringContaining('--think on')] });
  expect(await ask('[THINK]17 * 3 is 51')).toMatchObject({ scores: [0] });
});

it('has room to think', async () => {
  const { given, notices } = await ask('<think>17 * 3</think>51', { think: true });
  expect(given).toMatchObject({ maxTokens: 64 + 8192, render: { variables: { enable_thinking: true } } });
  expect(notices).toEqual([]);
  expect((await ask('51', { think: true, maxTokens: 100 })).given).toMatchObject({ maxTokens: 100 });
});

it('continues text without a template', async () => {
  const { given } = await ask('51', {}, [{ ...question, prompt: '17 * 3 =' }]);
  expect(given).not.toHaveProperty('render');
});
