/** The prompt of `kvasir run`: from the command line, from files and from stdin. */
import { mkdirSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { loadModel, type Model } from '../../src/index.ts';
import { kvasir, type RunOptions } from '../support/command.ts';
import { writeTempModel } from '../support/gguf-writer.ts';
import { matrix } from '../support/matrix.ts';
import { noTerminal, openTerminal } from '../support/terminal.ts';
import { tinyModel } from '../support/tiny-model.ts';

let model: string;
let folder: string;
let loaded: Model;

beforeAll(async () => {
  // A byte vocabulary: a prompt has as many tokens as bytes.
  model = await writeTempModel(tinyModel({ endless: true, tied: false, headDim: 32, context: 2048 }));
  loaded = await loadModel(model, { device: 'js' });
  folder = join(dirname(model), 'texts');
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, 'one.txt'), 'Odin drank.\n\n');
  writeFileSync(join(folder, 'two.txt'), 'Kvasir bled.\n');
});

afterAll(() => loaded.dispose());

async function ask(args: string[], act?: RunOptions) {
  const options = ['--raw', '--json', '--temperature', '0', '--max-tokens', '6', '--device', 'js'];
  const { status, stdout, stderr } = await kvasir(['run', model, ...args, ...options], act);
  return { status, stderr, result: status === 0 ? JSON.parse(stdout) : undefined };
}

/** The prompt is correct if its length and the answer are. */
async function expectPrompt(asked: ReturnType<typeof ask>, prompt: string) {
  const { result } = await asked;
  expect(result?.usage.promptTokens).toBe(Buffer.byteLength(prompt));
  expect(result.ids).toEqual((await loaded.complete(prompt, { temperature: 0, maxTokens: 6 })).ids);
}

describe('the prompt', () => {
  it('comes after piped input and a blank line', () =>
    expectPrompt(ask(['Who drank?'], { input: 'Odin drank.\n' }), 'Odin drank.\n\nWho drank?'));

  it('is only stdin for -', () => expectPrompt(ask(['-'], { input: 'Odin drank.' }), 'Odin drank.'));

  it('comes after files, which are named if there are several; stdin may be /dev/null', async () => {
    const [one, two] = ['one.txt', 'two.txt'].map(name => join(folder, name));
    await expectPrompt(ask(['Who?', '--file', one], { stdin: 'none' }), 'Odin drank.\n\nWho?');
    await expectPrompt(
      ask(['Who?', '--file', one, '--file', two], { input: 'Then a third.\n' }),
      `${one}\nOdin drank.\n\n${two}\nKvasir bled.\n\nThen a third.\n\nWho?`,
    );
  });

  it('may have an empty stdin', () => expectPrompt(ask(['Who?'], { input: '' }), 'Who?'));

  it('waits for an open pipe with a message, and Ctrl-C ends it', async () => {
    const interruptWhen = ({ stderr }: { stderr: string }) => /Waiting for the end of stdin/.test(stderr);
    const { status, stderr } = await ask(['Who?'], { stdin: 'open', interruptWhen });
    expect(status).toBe(130);
    expect(stderr).not.toMatch(/ at |kvasir:/);
  });

  it.skipIf(noTerminal)('is the text typed until Ctrl-D for - at a terminal', async () => {
    const options = ['--raw', '--stats', '--temperature', '0', '--max-tokens', '3', '--device', 'js'];
    const terminal = openTerminal(['run', model, '-', ...options]);
    terminal.type('Odin\ndrank.\n\x04');
    expect(await terminal.exit).toBe(0);
    expect(terminal.screen).toMatch(/prompt 12 tokens/);
  });

  const MISTAKES: [string, string[], RegExp][] = [
    ['a missing file', ['--file', './none.txt'], /none.txt cannot be read \(ENOENT\). Check --file/],
    ['a binary file', ['--file', 'MODEL'], /is not UTF-8 text/],
    ['a folder', ['--file', '.'], /cannot be read \(EISDIR\)/],
    ['an empty stdin for -', ['-'], /prompt from stdin is empty/],
  ];
  const REPRESENTATIVES = { 'a binary file': 'its text', 'an empty stdin for -': 'no text' };
  it.each(matrix(MISTAKES, REPRESENTATIVES, ([name]) => name))('reports %s', async (_, args, message) => {
    const { status, stderr } = await ask(args.map(arg => (arg === 'MODEL' ? model : arg)));
    expect(status).toBe(1);
    expect(stderr).toMatch(message);
  });
});

describe('errors name options of the command line', () => {
  const MISTAKES: [string[], RegExp][] = [
    [['hi', '--context', '2'], /a larger --context, or use --overflow slide/],
    [['hi', '--top-p', '7'], /--top-p .*must be .*above 0/],
    [['hi', '--kv', 'tq4', '--context-memory', '1MB'], /use --kv auto with it, not "tq4"/],
    [['hi', '--temperature', 'hot'], /option '--temperature <t>' argument 'hot' is invalid/],
    [['hi', '--max-token', '3'], /unknown option '--max-token'\n\(Did you mean --max-tokens\?\)/],
  ];
  const REPRESENTATIVES = { '--context': 'an error of the library', '--max-token': 'an error of the parser' };
  it.each(matrix(MISTAKES, REPRESENTATIVES, ([[, ...options]]) => options.at(-2)!))('%j', async (args, message) => {
    const { status, stderr } = await ask(args, { stdin: 'none' });
    expect(status).toBe(1);
    expect(stderr).toMatch(message);
  });
});

describe('kvasir', () => {
  it('without arguments shows its commands, like `help`', async () => {
    const bare = await kvasir([]);
    expect(bare.status).toBe(0);
    expect(bare.stdout).toMatch(/Usage: kvasir[\s\S]*Commands:[\s\S]*Next:\n {2}npx kvasir demo/);
    expect(await kvasir(['help'])).toEqual(bare);
    expect((await kvasir(['help', 'run'])).stdout).toMatch(/Usage: kvasir run[\s\S]*--max-tokens/);
    expect((await kvasir(['help', 'cache', 'rm'])).stdout).toMatch(/Usage: kvasir cache rm[\s\S]*--tenant/);
  });

  const UNKNOWN: [string, RegExp][] = [
    ['rnu', /Did you mean run\?/],
    ['help esitmate', /estimate\?/],
    ['zzzzzz', /^(?!.*mean)/s],
  ];
  it.each(matrix(UNKNOWN, { rnu: 'a near one' }, ([args]) => args))(
    'suggests the nearest command for an unknown one, if it is near: %s',
    async (args, message) => {
      expect(await kvasir(args.split(' '))).toMatchObject({ status: 1, stderr: expect.stringMatching(message) });
    },
  );
});
