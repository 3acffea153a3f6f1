/** Tasks with real models: the packaged one answers, a tiny one chooses. */
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { writeGguf } from '../../../test/support/gguf-writer.ts';
import { tinyModel } from '../../../test/support/tiny-model.ts';
import { parseSpec } from '../../codec/spec.ts';
import { loadEngine, openModelFile, planShape } from '../../engine/engine.ts';
import { logSoftmax } from '../../engine/log-probs.ts';
import { createPlan } from '../../plan/plan.ts';
import { FormatError, InputError } from '../../util/errors.ts';
import { teacherForce } from '../divergence.ts';
import { mimirPath } from '../needle/demo.ts';
import { evaluateTask, type TaskOptions } from './evaluate-task.ts';
import { accuracyPlot, groupTable, taskPage, taskTable } from './report.ts';
import type { Choice, Question, Task } from './task.ts';

const folder = mkdtempSync(join(tmpdir(), 'kvasir-task-'));
afterAll(() => rmSync(folder, { recursive: true }));

const FACTS =
  'The door code of the old mill is 4817. The door code of the old barn is 2265. The tall mill belongs to Ada.';
const ask = (id: string, question: string, answer: string): Question => ({
  id,
  prompt: [{ role: 'user', content: `${FACTS}\n\n${question}` }],
  maxTokens: 8,
  read: ({ text }) => text.trim(),
  score: said => (said === answer ? 1 : 0),
});
const task: Task = {
  name: 'codes',
  questions: [
    ask('mill', 'Which code opens the door of the old mill?', '4817'),
    ask('owner', 'Who owns the tall mill?', 'Ada'),
    ask('wrong', 'Who owns the tall mill?', 'Odin'),
  ],
};
const wasm = { device: 'wasm', threads: 1 } satisfies Partial<TaskOptions>;

describe('evaluateTask with questions', () => {
  const results = join(folder, 'results.jsonl');
  const options = { ...wasm, task, kv: ['tq4'], results };

  it('stops when the signal aborts it, and continues from the file', async () => {
    const stop = new AbortController();
    const stopped = await evaluateTask(mimirPath, {
      ...options,
      signal: stop.signal,
      onProgress: ({ done }) => done === 4 && stop.abort(),
    });
    const before = readFileSync(results, 'utf8').trim().split('\n').length;
    expect(before).toBeGreaterThanOrEqual(4);
    expect(stopped.rows[0]).toMatchObject({ kv: 'f16', items: 3 });

    const progress: number[] = [];
    const { rows } = await evaluateTask(mimirPath, { ...options, onProgress: ({ done }) => progress.push(done) });
    expect(progress[0]).toBe(3);
    expect(progress.at(-1)).toBe(6);
    expect(rows.map(({ kv, items, accuracy }) => [kv, items, accuracy])).toEqual([
      ['f16', 3, 2 / 3],
      ['tq4', 3, 2 / 3],
    ]);
    expect(rows[0].tokensPerSecond).toBeUndefined();
    expect(rows[1].comparison).toMatchObject({ items: 3, difference: 0, p: 1, agreement: 1 });
    expect(readFileSync(results, 'utf8').trim().split('\n')).toHaveLength(6);
  });

  it('runs nothing again, unless a setting that matters has changed', async () => {
    const again = await evaluateTask(mimirPath, options);
    expect(again.rows.every(({ tokensPerSecond }) => tokensPerSecond === undefined)).toBe(true);
    const limited = await evaluateTask(mimirPath, { ...options, kv: ['f16'], limit: 2 });
    expect(limited.rows[0]).toMatchObject({ items: 2, tokensPerSecond: undefined });
    const shorter = await evaluateTask(mimirPath, { ...options, kv: ['f16'], limit: 1, maxTokens: 1 });
    expect(shorter.rows[0]).toMatchObject({ items: 1, accuracy: 0, tokensPerSecond: expect.any(Number) });
  });

  it('reads kept answers again when the right ones, or how they are read, have changed', async () => {
    const data = join(folder, 'corrected.jsonl');
    const write = (answer: string, metric: string) =>
      writeFileSync(data, `${JSON.stringify({ prompt: `${FACTS}\n\nWho owns the tall mill?`, answer, metric })}\n`);
    const kept = { ...wasm, kv: ['f16'], task: 'jsonl', data, results: join(folder, 'corrected-results.jsonl') };
    write('Odin', 'exact');
    expect((await evaluateTask(mimirPath, kept)).rows[0].accuracy).toBe(0);
    write('Ada', 'exact');
    expect((await evaluateTask(mimirPath, kept)).rows[0]).toMatchObject({ accuracy: 1, tokensPerSecond: undefined });
    write('Ada of the mill', 'f1');
    expect((await evaluateTask(mimirPath, kept)).rows[0]).toMatchObject({ accuracy: 0.5, tokensPerSecond: undefined });
    const [first, second, third] = task.questions.map(question => ({ ...question, read: () => 'Odin' }));
    const reread = { ...task, questions: [first, second, third] };
    const { rows } = await evaluateTask(mimirPath, { ...options, kv: ['f16'], task: reread });
    expect(rows[0]).toMatchObject({ accuracy: 1 / 3, tokensPerSecond: undefined });
  });

  it('runs items again of which only the score was kept', async () => {
    const path = join(folder, 'old-results.jsonl');
    const lines = readFileSync(results, 'utf8').replace(/"answers":\[\{.*?\}\],/g, '');
    writeFileSync(path, lines);
    const { rows } = await evaluateTask(mimirPath, { ...options, kv: ['f16'], limit: 1, results: path });
    expect(rows[0]).toMatchObject({ accuracy: 1, tokensPerSecond: expect.any(Number) });
  });

  it('says which items are too short for a page', async () => {
    const short = { ...wasm, task, kv: ['tq4'], limit: 2 };
    const { notices } = await evaluateTask(mimirPath, short);
    expect(notices).toEqual([expect.stringMatching(/^2 of 2 items are too short for a page of 128 tokens/)]);
    const packed = await evaluateTask(mimirPath, { ...short, pageTokens: 16 });
    expect(packed.notices).toEqual([]);
    const exact = await evaluateTask(mimirPath, { ...short, kv: ['f16'] });
    expect(exact.notices).toEqual([]);
  });

  it('says which prompt or document is too long for the context', async () => {
    await expect(evaluateTask(mimirPath, { ...wasm, task, kv: ['f16'], context: 32 })).rejects.toThrow(
      /^The prompt of item "(mill|owner|wrong)" does not fit into a context of 32 tokens\. Use shorter items/,
    );
    const ruler = { ...wasm, task: 'ruler-words', lengths: [200, 512], context: 512 };
    await expect(evaluateTask(mimirPath, ruler)).rejects.toThrow(
      /^Documents of 512 tokens do not fit .* shorter lengths/,
    );
  });

  it('has several answers per question', async () => {
    const { rows } = await evaluateTask(mimirPath, {
      ...wasm,
      task,
      kv: ['f16'],
      limit: 1,
      samples: 3,
      temperature: 2,
    });
    expect(rows[0].results[0].said).toHaveLength(3);
    const greedy = await evaluateTask(mimirPath, { ...wasm, task, kv: ['f16'], limit: 1, samples: 2, temperature: 0 });
    expect(greedy.rows[0].results[0]).toMatchObject({ said: ['4817', '4817'], scores: [1, 1] });
  });

  it('ends with the error of an item', async () => {
    const [first, ...rest] = task.questions;
    const broken: Question = {
      ...first,
      score() {
        throw new Error('broken metric');
      },
    };
    const failing = { ...task, questions: [broken, ...rest] };
    await expect(evaluateTask(mimirPath, { ...wasm, kv: ['f16'], task: failing })).rejects.toThrow('broken metric');
  });

  it('reads data files', async () => {
    const data = join(folder, 'data.jsonl');
    const record = { prompt: `${FACTS}\n\nWho owns the tall mill?`, answer: 'Ada', metric: 'exact', group: 'owners' };
    writeFileSync(data, `${JSON.stringify(record)}\n`);
    const { rows, model, device } = await evaluateTask(mimirPath, { ...wasm, kv: ['f16'], task: 'jsonl', data });
    expect(rows[0]).toMatchObject({ accuracy: 1, items: 1 });
    expect([model, device]).toEqual(['Mimir', expect.stringContaining('wasm')]);
    writeFileSync(data, 'x\n');
    await expect(evaluateTask(mimirPath, { ...wasm, task: 'jsonl', data })).rejects.toThrow(FormatError);
    await expect(evaluateTask(mimirPath, { ...wasm, task: 'jsonl', data: `${data}.absent` })).rejects.toThrow(/ENOENT/);
    await expect(evaluateTask(mimirPath, { ...wasm, task: 'jsonl' })).rejects.toThrow(InputError);
    await expect(evaluateTask(mimirPath, { task: 5 } as never)).rejects.toThrow(/task must be/);
    await expect(evaluateTask(mimirPath, { task: { name: 'none' } } as never)).rejects.toThrow(/task must be/);
    const twice = { name: 'twice', questions: [task.questions[0], task.questions[0]] };
    await expect(evaluateTask(mimirPath, { ...wasm, task: twice })).rejects.toThrow(/have the id "mill"/);
    await expect(evaluateTask(mimirPath, { ...wasm, task, results: folder })).rejects.toThrow(
      /cannot be read \(EISDIR\)/,
    );
  });
});

describe('evaluateTask with choices', () => {
  const model = new Blob([writeGguf(tinyModel({ tied: false }))]);
  const before = 'The mead of poetry was brewed from honey and the blood of Kvasir. ';
  const choices: Choice[] = ['Odin', 'Thor', 'Frigg', 'Loki', 'Tyr', 'Heimdall', 'Baldr', 'Njord', 'Freyja'].map(
    (name, i) => ({
      id: name,
      context: `${before}Then ${name}`,
      endings: [' drank it all.', ' slept', ' left for the hall of the giants, in the night.', '!'],
      correct: i % 4,
    }),
  );
  const expected: { normalized: number; total: number }[] = [];

  beforeAll(async () => {
    const file = await openModelFile(model);
    const plan = createPlan(parseSpec('tq2'), planShape(file, 32));
    const engine = await loadEngine(file, { plan, context: 512 }, { ...wasm, precise: true });
    const { tokenizer } = engine;
    for (const { context, endings } of choices) {
      const start = tokenizer.encode(context, { bos: tokenizer.addBos }).length;
      const sums: { sum: number; count: number }[] = [];
      for (const ending of endings) {
        const ids = tokenizer.encode(context + ending, { bos: tokenizer.addBos });
        let sum = 0;
        await teacherForce(engine, plan, ids, start - 1, {
          onLogits(position, logits) {
            sum += logSoftmax(logits)[ids[position + 1]];
          },
        });
        sums.push({ sum, count: ids.length - start });
      }
      const best = (values: number[]) => values.indexOf(Math.max(...values));
      expected.push({
        normalized: best(sums.map(({ sum, count }) => sum / count)),
        total: best(sums.map(({ sum }) => sum)),
      });
    }
    await engine.dispose();
  });

  it('prefers the endings that are most likely one by one, with pages in codes', async () => {
    const { rows } = await evaluateTask(model, {
      ...{ task: { name: 'gods', choices }, kv: ['tq2'], ...wasm, precise: true, pageTokens: 32 },
    });
    const row = rows[1];
    expect(row.kv).toBe('tq2');
    expect(row.results.map(({ said }) => Number(said[0]))).toEqual(expected.map(({ normalized }) => normalized));
    const right = expected.filter(({ total }, i) => total === choices[i].correct).length;
    expect(row.unnormalized).toBeCloseTo(right / choices.length, 10);
    expect(row.comparison?.items).toBe(choices.length);
  });
});

it('reports a table, groups, a plot and a page', () => {
  const row = { bits: 4, items: 2, accuracy: 0.5, interval: [0.1, 0.9] as const, results: [] };
  const comparison = { items: 2, difference: -0.25, interval: [-0.5, 0] as const, p: 0.0001, agreement: 0.75 };
  const rows = [
    { ...row, kv: 'f16', unnormalized: 0.5, groups: { a: 1, b: 0 }, tokensPerSecond: 12.3 },
    { ...row, kv: 'tq4<', unnormalized: 0.25, comparison },
  ];
  const { header, lines } = taskTable(rows);
  expect(lines[1]).toEqual([
    'tq4<',
    '4.000',
    '2',
    '50.0',
    '10.0 to 90.0',
    '25.0',
    '-25.0',
    '-50.0 to 0.0',
    '<.001',
    '75.0',
    '',
  ]);
  expect(header).toHaveLength(lines[0].length);
  expect(header).toContain('its 95 % interval');
  expect(groupTable(rows)?.lines).toEqual([
    ['a', '100.0', ''],
    ['b', '0.0', ''],
  ]);
  expect(groupTable([rows[1]])).toBeUndefined();
  const titles = { title: 'Model & task', subtitle: '2 items' };
  expect(accuracyPlot(rows, titles)).toMatch(/^<svg[\s\S]*tq4&lt;[\s\S]*<\/svg>\n$/);
  expect(taskPage(rows, titles)).toContain('<h1>Model &amp; task</h1>');
  expect(taskPage(rows, titles)).toContain('-50.0 to 0.0');
});
