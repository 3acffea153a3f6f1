import { appendFileSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { FormatError } from '../../util/errors.ts';
import { openResults } from './results-file.ts';

let folder: string;
let path: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'kvasir-results-'));
  path = join(folder, 'results.jsonl');
});
afterEach(() => rmSync(folder, { recursive: true }));

const labels = { task: 'gsm8k', kv: 'tq4' };
const result = (id: string) => ({ id, said: ['ä'], scores: [0.5], tokens: 3 });

async function write(...ids: string[]) {
  const file = await openResults(path);
  await Promise.all(ids.map(id => file.add(`key ${id}`, result(id), labels)));
  await file.close();
}

it('finds what was added, also later', async () => {
  await write('1', '2');
  await write('3');
  const file = await openResults(path);
  expect(['1', '2', '3'].map(id => file.get(`key ${id}`))).toEqual([result('1'), result('2'), result('3')]);
  expect(file.get('key 4')).toBeUndefined();
  await file.close();
  expect(readFileSync(path, 'utf8').split('\n')).toHaveLength(4);
});

it('drops a last line that was not written to its end', async () => {
  await write('1');
  const before = readFileSync(path, 'utf8');
  appendFileSync(path, '{"key":"key 2","id":"2","sa');
  await write();
  expect(readFileSync(path, 'utf8')).toBe(before);
});

it.each([
  ['some text', 1],
  ['some text\n', 1],
  ['{"key":"a"}\n', 1],
  [
    '{"key":"a","id":"1","said":["x"],"scores":[1],"tokens":1}\n{"key":"b","id":"2","said":["x"],"scores":[7],"tokens":1}\n',
    2,
  ],
  ['{"key":"a","id":"1","said":["x"],"scores":[1],"tokens":1}\nsome text', 2],
  ['{"key":"a","id":"1","answers":[{"text":1}],"said":["x"],"scores":[1],"tokens":1}\n', 1],
  ['{"key":"a","id":"1","answers":[],"said":["x"],"scores":[1],"tokens":1}\n', 1],
  ['{"key":"a","id":"1","answers":[{"text":"x","toolCalls":[{}]}],"said":["x"],"scores":[1],"tokens":1}\n', 1],
])('refuses another file, and leaves it as it is: %s', async (text, line) => {
  writeFileSync(path, text);
  await expect(openResults(path)).rejects.toThrow(FormatError);
  await expect(openResults(path)).rejects.toThrow(`line ${line}: is not a result`);
  expect(readFileSync(path, 'utf8')).toBe(text);
});
