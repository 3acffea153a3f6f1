/** The readers of data sets: small files, hostile files, and the real ones where they are. */
import { existsSync, readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { sharedFile } from '../../../test/support/shared.ts';
import { withoutThinking } from '../../model/thinking.ts';
import { FormatError, InputError } from '../../util/errors.ts';
import { createTask, type TaskInput, taskNames } from './create-task.ts';
import type { Choice, Question, Task } from './task.ts';

const input = (text?: string, options: Partial<TaskInput> & { examples?: string } = {}): TaskInput => ({
  data: text === undefined ? undefined : { path: 'data.jsonl', text },
  shots: options.examples === undefined ? undefined : { path: 'shots.jsonl', text: options.examples },
  chat: true,
  cutToFit: text => text,
  count: text => text.split(/\s+/).length,
  lengths: [200],
  documents: 2,
  seed: 1,
  ...options,
});
const lines = (...records: object[]) => `${records.map(record => JSON.stringify(record)).join('\n')}\n`;
const questionsOf = (task: Task): readonly Question[] => ('questions' in task ? task.questions : []);
const choicesOf = (task: Task): readonly Choice[] => ('choices' in task ? task.choices : []);
const readQuestions = async (name: string, text: string, options?: Parameters<typeof input>[1]) =>
  questionsOf(await createTask(name, input(text, options), async program => program.includes('right')));
const readChoices = async (name: string, text: string, options?: Parameters<typeof input>[1]) =>
  choicesOf(await createTask(name, input(text, options)));
const answer = (question: Question, text: string) => question.score(question.read({ text }));

describe('gsm8k', () => {
  const data = lines({ question: 'How many?', answer: '2 + 3 = <<2+3=5>>5\n#### 1,005' });
  const examples = lines({ question: 'One?', answer: 'It is <<1=1>>1.\n#### 1' });

  it('asks in a chat, with examples as turns', async () => {
    const [alone] = await readQuestions('gsm8k', data);
    expect(alone.prompt).toEqual([{ role: 'user', content: expect.stringMatching(/^How many\?\n\n.*####/s) }]);
    const [{ prompt }] = await readQuestions('gsm8k', data, { examples });
    expect(prompt).toEqual([
      { role: 'user', content: 'One?' },
      { role: 'assistant', content: 'It is 1.\n#### 1' },
      { role: 'user', content: 'How many?' },
    ]);
  });

  it('asks as text, and stops before the next question', async () => {
    const [{ prompt, stop }] = await readQuestions('gsm8k', data, { examples, chat: false });
    expect(prompt).toBe('Question: One?\nAnswer: It is 1.\n#### 1\n\nQuestion: How many?\nAnswer:');
    expect(stop).toEqual(['\nQuestion:']);
  });

  it('reads the number after ####, a boxed one, or the last one', async () => {
    const [question] = await readQuestions('gsm8k', data);
    expect(answer(question, 'So 5.\n#### 1005')).toBe(1);
    expect(answer(question, '#### **1,005**')).toBe(1);
    expect(answer(question, '#### 1,005 eggs.\nThat is all 3 hens lay.')).toBe(1);
    expect(answer(question, '#### 1005.')).toBe(1);
    expect(answer(question, '#### $1,005.00')).toBe(1);
    expect(answer(question, 'The answer is \\boxed{1005}, not 3.')).toBe(1);
    expect(answer(question, 'So there are 1,005.')).toBe(1);
    expect(answer(question, '#### 5')).toBe(0);
    expect(answer(question, '')).toBe(0);
  });

  it('takes no steps for the answer, and the last one that is marked', async () => {
    const [question] = await readQuestions('gsm8k', data);
    expect(answer(question, '#### Step 1: 5 hens\n5 * 201\n#### 1005')).toBe(1);
    expect(answer(question, '#### Total = 5 * 201 = 1005')).toBe(1);
    expect(answer(question, '#### 1. Multiply\n5 * 201\n\\boxed{1005} for 5 hens')).toBe(1);
    expect(answer(question, '#### 12) Multiply\n#### 1005')).toBe(1);
    expect(answer(question, '#### 7\nNo:\n#### 1005')).toBe(1);
    expect(answer(question, '#### 1005\n#### 7')).toBe(0);
    const [plain] = await readQuestions('gsm8k', data, { chat: false });
    expect(answer(plain, '5 * 201\n#### 1005\n\nAnother one\n#### 7')).toBe(1);
  });

  it('reads negative numbers', async () => {
    const [question] = await readQuestions('gsm8k', lines({ question: 'q', answer: '#### -5' }));
    for (const said of ['#### -5', '#### -$5', '#### $-5']) expect(answer(question, said)).toBe(1);
    expect(answer(question, '#### 5')).toBe(0);
  });

  it('refuses an answer without a number', async () => {
    const bad = lines({ question: 'q', answer: '#### 1' }, { question: 'q', answer: 'five' });
    await expect(readQuestions('gsm8k', bad)).rejects.toThrow(/data\.jsonl, line 2: "answer" must end in/);
  });
});

it('math reads boxed answers', async () => {
  const data = lines(
    { problem: 'x?', answer: '\\frac{1}{2}', subject: 'Algebra' },
    { problem: 'y?', solution: '\\boxed{3}' },
  );
  const [first, second] = await readQuestions('math', data);
  expect(first.group).toBe('Algebra');
  expect(answer(first, 'so \\boxed{0.5}')).toBe(1);
  expect(answer(first, 'so 2')).toBe(0);
  expect(answer(second, 'it is 3')).toBe(1);
  await expect(readQuestions('math', lines({ problem: 'x', solution: 'none' }))).rejects.toThrow(/line 1: "solution"/);
});

describe('hellaswag', () => {
  const item = 'A man: he\n2\nruns.\nsits.\neats.\nsleeps.\n';

  it('has a space before each ending', async () =>
    expect(await readChoices('hellaswag', item)).toEqual([
      { id: '1', context: 'A man: he', endings: [' runs.', ' sits.', ' eats.', ' sleeps.'], correct: 2 },
    ]));

  it.each([
    [`${item}A man`, /line 7: the file ends within an item/],
    [`${item}${item.replace('2', '4')}`, /line 8: must be the index/],
    [item.replace('sits.', ''), /line 4: is empty/],
    ['', /line 1/],
  ])('refuses a damaged file', async (text, message) => {
    await expect(readChoices('hellaswag', text)).rejects.toThrow(FormatError);
    await expect(readChoices('hellaswag', text)).rejects.toThrow(message);
  });
});

it('longeval reads the last number', async () => {
  const [question] = await readQuestions(
    'longeval',
    lines({ prompt: 'Which? ', expected_number: 2416, num_lines: 200 }),
  );
  expect(question).toMatchObject({ group: '200 lines', prompt: [{ role: 'user', content: 'Which?' }] });
  expect(answer(question, 'In line torpid-kid it is <2416>.')).toBe(1);
  expect(answer(question, '24161')).toBe(0);
});

describe('longbench', () => {
  const record = { input: 'Who?', context: 'Odin rode.', answers: ['Odin'], dataset: 'hotpotqa_e', all_classes: null };

  it('scores by the metric of the data set', async () => {
    const [question] = await readQuestions('longbench', lines(record));
    expect(question).toMatchObject({ group: 'hotpotqa', maxTokens: 32 });
    expect(answer(question, 'Odin')).toBe(1);
    expect(answer(question, 'It was Odin')).toBe(0.5);
    const [code] = await readQuestions('longbench', lines({ ...record, dataset: 'lcc', answers: ['    return x'] }));
    expect(code.prompt).toBe('Odin rode.Who?');
    expect(answer(code, '\n# comment\n    return x\nmore')).toBe(1);
    const classes = { dataset: 'trec', answers: ['Food'], all_classes: ['Food', 'Animal'] };
    const [trec] = await readQuestions('longbench', lines({ ...record, ...classes }));
    expect(answer(trec, 'Food\nQuestion: Animal')).toBe(1);
  });

  it('cuts long texts', async () => {
    const [{ prompt }] = await readQuestions('longbench', lines(record), {
      cutToFit: (_text, other) => `cut ${other}`,
    });
    expect(JSON.stringify(prompt)).toContain('cut 544');
  });

  it('refuses unknown data sets', async () => {
    const wrong = lines({ ...record, dataset: '__proto__' });
    await expect(readQuestions('longbench', wrong)).rejects.toThrow(/line 1: "__proto__" is not a data set/);
  });
});

describe('choice', () => {
  it('reads indices, letters, and the format of ARC', async () => {
    const arc = { question: 'q', choices: { text: ['x', 'y'], label: ['1', '2'] }, answerKey: '2', id: 'arc' };
    const data = lines(
      { question: 'q', choices: ['x', 'y', 'z'], answer: 2, subject: 's' },
      { question: 'q', choices: ['x', 'y'], answer: 'B' },
      arc,
    );
    const items = await readChoices('choice', data, {
      examples: lines({ question: 'e', choices: ['x', 'y'], answer: 0 }),
    });
    expect(items.map(({ correct }) => correct)).toEqual([2, 1, 1]);
    expect(items[0]).toMatchObject({
      context: 'Question: e\nA. x\nB. y\nAnswer: A\n\nQuestion: q\nA. x\nB. y\nC. z\nAnswer:',
      endings: [' A', ' B', ' C'],
      group: 's',
    });
    expect(items[2].id).toBe('arc');
  });

  it.each([{ choices: ['x'] }, { choices: 'xy' }, { answer: 2 }, { answer: 'C' }, { answer: '' }, { answer: null }])(
    'refuses %j',
    async wrong => {
      const text = lines({ question: 'q', choices: ['x', 'y'], answer: 0, ...wrong });
      await expect(readChoices('choice', text)).rejects.toThrow(FormatError);
    },
  );
});

describe('humaneval', () => {
  const data = lines({
    task_id: 'T/1',
    prompt: 'import os\ndef f(x):\n    """Doc."""\n',
    test: 'test',
    entry_point: 'f',
  });

  it('puts the prompt before a completion, and before a whole function', async () => {
    const [{ read }] = await readQuestions('humaneval', data, { chat: false });
    expect(read({ text: '    return x' })).toBe('import os\ndef f(x):\n    """Doc."""\n    return x');
    const program = read({ text: 'Here:\n```python\nimport re\n\ndef f(x):\n    return 1\n```\nDone.' });
    expect(program).toBe('import os\ndef f(x):\n    """Doc."""\n    pass\n\nimport re\n\ndef f(x):\n    return 1');
  });

  it('runs the program with its test', async () => {
    const [question] = await readQuestions('humaneval', data);
    expect(await answer(question, 'right')).toBe(1);
    expect(await answer(question, 'wrong')).toBe(0);
  });

  it('runs nothing unless it may', () =>
    expect(createTask('humaneval', input(data))).rejects.toThrow(/To allow that, give runCode/));

  it('refuses an entry point that is no name', () =>
    expect(readQuestions('humaneval', lines({ prompt: '', test: '', entry_point: 'f); import os' }))).rejects.toThrow(
      /line 1: "entry_point"/,
    ));
});

describe('tool-calls', () => {
  const tool = { type: 'function', function: { name: 'weather', parameters: { type: 'object' } } };
  const calls = [{ name: 'weather', arguments: { city: 'Oslo', days: 2 } }];
  const call = (given: unknown) => ({ function: { name: 'weather', arguments: given as string } });

  it('compares names and arguments, whatever their order', async () => {
    const [question] = await readQuestions('tool-calls', lines({ prompt: 'Weather?', tools: [tool], calls }));
    const score = (...toolCalls: ReturnType<typeof call>[]) => question.score(question.read({ text: '', toolCalls }));
    expect(score(call('{"days":2,"city":"Oslo"}'))).toBe(1);
    expect(score(call({ city: 'Oslo', days: 2 }))).toBe(1);
    expect(score(call('{"city":"Oslo"}'))).toBe(0);
    expect(score(call('{'))).toBe(0);
    expect(score()).toBe(0);
  });

  it.each([{ calls: undefined }, { calls: [{ name: 'x' }] }, { tools: 'weather' }, { tools: [{}] }])(
    'refuses %j',
    async wrong => {
      const text = lines({ prompt: 'q', tools: [tool], calls, ...wrong });
      await expect(readQuestions('tool-calls', text)).rejects.toThrow(FormatError);
    },
  );
});

describe('jsonl', () => {
  it('reads prompts or messages, answers and metrics', async () => {
    const messages = [
      { role: 'system', content: 'Be short.' },
      { role: 'user', content: 'Hi' },
    ];
    const data = lines(
      { prompt: 'Who?', answer: ['Odin', 'Woden'], metric: 'f1', maxTokens: 9, stop: ['\n'] },
      { messages, answer: 5 },
    );
    const [first, second] = await readQuestions('jsonl', data);
    expect(first).toMatchObject({ id: '1', maxTokens: 9, stop: ['\n'], prompt: [{ role: 'user', content: 'Who?' }] });
    expect(answer(first, 'Woden')).toBe(1);
    expect(second.prompt).toEqual(messages);
    expect(answer(second, 'It is 5.')).toBe(1);
    const [plain] = await readQuestions('jsonl', data, { chat: false });
    expect(plain.prompt).toBe('Who?\nAnswer:');
  });

  it.each([
    ['{', /line 1: is not JSON/],
    ['[1]', /line 1: must be a JSON object; got an array/],
    ['{"prompt":"a","answer":"b"}\n{"prompt":1,"answer":"b"}', /line 2: "prompt" must be a string; got the number 1/],
    ['{"prompt":"a"}', /"answer" must be a string or a number; got undefined/],
    ['{"prompt":"a","answer":"b","metric":"bleu"}', /"bleu" is not a metric/],
    ['{"prompt":"a","answer":"b","metric":"toString"}', /"toString" is not a metric/],
    ['{"prompt":"a","answer":"b","maxTokens":-1}', /"maxTokens"/],
    ['{"messages":[{"role":5}],"answer":"b"}', /line 1: messages\[0\]/],
    ['\n\n', /has no items/],
  ])('refuses %s', async (text, message) => {
    await expect(readQuestions('jsonl', text)).rejects.toThrow(FormatError);
    await expect(readQuestions('jsonl', text)).rejects.toThrow(message);
  });
});

it('takes worked examples only where they are used', async () => {
  const examples = lines({ prompt: 'a', answer: 'b' });
  await expect(createTask('jsonl', input(examples, { examples }))).rejects.toThrow(
    'jsonl takes no worked examples. Leave out shots.',
  );
});

it('says where the data of a task comes from', async () => {
  await expect(createTask('gsm8k', input())).rejects.toThrow(/grade-school-math.*Give its path as data/);
  await expect(createTask('toString', input('x'))).rejects.toThrow(InputError);
  expect(taskNames).toContain('ruler-words');
});

it('removes thinking blocks', () => {
  expect(withoutThinking('<think>3?</think>\n4')).toBe('\n4');
  expect(withoutThinking('3?</think>4')).toBe('4');
  expect(withoutThinking('    return 1')).toBe('    return 1');
  expect(withoutThinking('<think>and so on')).toBe('');
});

describe('the real files', () => {
  const files: [task: string, file: string, items: number][] = [
    ['gsm8k', 'gsm8k-dev.jsonl', 300],
    ['gsm8k', 'gsm8k-shots.jsonl', 8],
    ['hellaswag', 'hellaswag-dev.txt', 502],
    ['longeval', 'longeval-lines-200.jsonl', 20],
    ['longeval', 'longeval-lines-600.jsonl', 12],
    ['humaneval', 'humaneval-dev.jsonl', 82],
  ];
  it.for(files)('%s reads %s', async ([name, file, items], { skip }) => {
    const path = sharedFile(`data/tasks/${file}`);
    skip(!existsSync(path) && !process.env.CI, `../shared/data/tasks/${file} does not exist`);
    const text = readFileSync(path, 'utf8');
    const task = await createTask(name, input(text), async () => true);
    expect([...questionsOf(task), ...choicesOf(task)]).toHaveLength(items);
    // Every answer of the data set is right.
    if (name === 'gsm8k')
      for (const [i, question] of questionsOf(task).entries())
        expect(answer(question, JSON.parse(text.split('\n')[i]).answer)).toBe(1);
  });
});
