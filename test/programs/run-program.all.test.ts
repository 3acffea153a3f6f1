/** Programs of HumanEval: what they may do, and what ends them. */
import { readdirSync, readFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { beforeAll, expect, it } from 'vitest';
import { readHumanEval } from '../../src/eval/tasks/readers/humaneval.ts';
import { createProgramRunner, type ProgramRunner } from '../../src/eval/tasks/run-program.ts';
import { describeWithFile } from '../support/shared.ts';

let runner: ProgramRunner;
beforeAll(async () => {
  runner = await createProgramRunner();
});

it.each([
  ['ends without an error', 'assert 1 + 1 == 2', true],
  ['prints a lot', 'print("x" * 10**6)', true],
  ['fails an assertion', 'assert 1 + 1 == 3', false],
  ['is no Python', 'def f(:', false],
  ['leaves before its tests', 'import sys; sys.exit(0)', false],
  ['leaves by force before its tests', 'import os; os._exit(0)', false],
  ['takes too much memory', 'x = bytearray(4 * 2**30)', false],
  ['writes a file that is too large', 'open("f", "wb").write(bytes(64 * 2**20))', false],
  ['has no environment', 'import os; assert "HOME" not in os.environ and "CI" not in os.environ', true],
  ['is in an empty folder', 'import os; assert os.listdir() == ["program.py"]', true],
])('%s', async (_what, program, passes) => expect(await runner.run(program)).toBe(passes));

it('has no network, or says that it has', async () => {
  const program = 'import socket\nassert [name for _, name in socket.if_nameindex()] in (["lo"], [])';
  expect((await runner.run(program)) || runner.notice !== undefined).toBe(true);
});

it('ends a program that does not end, with what it has started', async () => {
  const started = Date.now();
  const program = 'import subprocess\nsubprocess.Popen(["sleep", "1000"])\nwhile True: pass';
  expect(await runner.run(program)).toBe(false);
  expect(Date.now() - started).toBeLessThan(60_000);
});

describeWithFile('data/tasks/humaneval-dev.jsonl', 'HumanEval', path => {
  it('accepts the solutions of the data set, and no others', async () => {
    const text = readFileSync(path, 'utf8').split('\n').slice(0, 8).join('\n');
    const source = { data: { path, text }, chat: false, cutToFit: (text: string) => text };
    const scores = readHumanEval(source, runner.run).map(async ({ read, score }, i) => [
      await score(read({ text: JSON.parse(text.split('\n')[i]).canonical_solution })),
      await score(read({ text: '    return None\n' })),
    ]);
    expect(await Promise.all(scores)).toEqual(scores.map(() => [1, 0]));
  });
});

it('leaves nothing behind', () =>
  expect(readdirSync(tmpdir()).filter(name => name.startsWith('kvasir-program-'))).toEqual([]));
