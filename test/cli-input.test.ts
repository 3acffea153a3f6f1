/** What `kvasir run` makes a prompt of: words on the command line, files, and what is piped in. */
import { mkdirSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { loadModel, type Model } from '../src/index.ts';
import { type Act, kvasir } from './command.ts';
import { writeTempModel } from './gguf-writer.ts';
import { missing, openTerminal } from './terminal.ts';
import { tinyModel } from './tiny-model.ts';

let model: string;
let folder: string;
let loaded: Model;

beforeAll(async () => {
  // Of a vocabulary of bytes: a prompt has as many tokens as bytes.
  model = await writeTempModel(tinyModel({ tied: false, headDim: 32, context: 2048 }));
  loaded = await loadModel(model, { device: 'js' });
  folder = join(dirname(model), 'texts');
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, 'one.txt'), 'Odin drank.\n\n');
  writeFileSync(join(folder, 'two.txt'), 'Kvasir bled.\n');
});

afterAll(() => loaded.dispose());

async function ask(args: string[], act?: Act) {
  const options = ['--raw', '--json', '--temperature', '0', '--max-tokens', '6', '--device', 'js'];
  const { status, stdout, stderr } = await kvasir(['run', model, ...args, ...options], act);
  return { status, stderr, result: status === 0 ? JSON.parse(stdout) : undefined };
}

/** The prompt is this one if the answer to it is the same, and it is as long. */
async function expectPrompt(made: ReturnType<typeof ask>, prompt: string) {
  const { result } = await made;
  expect(result?.usage.promptTokens).toBe(Buffer.byteLength(prompt));
  expect(result.ids).toEqual((await loaded.complete(prompt, { temperature: 0, maxTokens: 6 })).ids);
}

describe('the prompt', () => {
  it('comes after what is piped in, with a blank line between', () =>
    expectPrompt(ask(['Who drank?'], { input: 'Odin drank.\n' }), 'Odin drank.\n\nWho drank?'));

  it('is stdin alone for -', () => expectPrompt(ask(['-'], { input: 'Odin drank.' }), 'Odin drank.'));

  it('comes after files, which are named where there are several', async () => {
    const [one, two] = ['one.txt', 'two.txt'].map(name => join(folder, name));
    await expectPrompt(ask(['Who?', '--file', one], { stdin: 'none' }), 'Odin drank.\n\nWho?');
    await expectPrompt(
      ask(['Who?', '--file', one, '--file', two], { input: 'Then a third.\n' }),
      `${one}\nOdin drank.\n\n${two}\nKvasir bled.\n\nThen a third.\n\nWho?`,
    );
  });

  it('needs no stdin: an empty one and /dev/null are no error', async () => {
    await expectPrompt(ask(['Who?'], { input: '' }), 'Who?');
    await expectPrompt(ask(['Who?'], { stdin: 'none' }), 'Who?');
  });

  it('waits for a pipe that stays open, but says so, and Ctrl-C ends it', async () => {
    const interruptWhen = ({ stderr }: { stderr: string }) => /Reading stdin until it ends/.test(stderr);
    const { status, stderr } = await ask(['Who?'], { stdin: 'open', interruptWhen });
    expect(status).toBe(130);
    expect(stderr).not.toMatch(/ at |kvasir:/);
  });

  it.skipIf(missing)('is what is typed until Ctrl-D for - at a terminal', async () => {
    const options = ['--raw', '--stats', '--temperature', '0', '--max-tokens', '3', '--device', 'js'];
    const terminal = openTerminal(['run', model, '-', ...options]);
    terminal.type('Odin\ndrank.\n\x04');
    expect(await terminal.exit).toBe(0);
    expect(terminal.screen).toMatch(/prompt 12 tokens/);
  });

  it.each([
    ['a file that is not there', ['--file', './none.txt'], /none.txt cannot be read \(ENOENT\). Check --file/],
    ['a file that is no text', ['--file', 'MODEL'], /is not text in UTF-8/],
    ['a folder', ['--file', '.'], /cannot be read \(EISDIR\)/],
    ['an empty stdin for -', ['-'], /prompt from stdin is empty/],
  ])('says what is wrong with %s', async (_, args, message) => {
    const { status, stderr } = await ask(args.map(arg => (arg === 'MODEL' ? model : arg)));
    expect(status).toBe(1);
    expect(stderr).toMatch(message);
  });
});

describe('errors name options of the command line', () => {
  it.each([
    [['hi', '--context', '2'], /use a larger --context, or use --overflow slide/],
    [['hi', '--top-p', '7'], /--top-p .*must be .*above 0/],
    [['hi', '--kv', 'tq4', '--kv-memory', '1MB'], /use --kv auto with it, not "tq4"/],
    [['hi', '--temperature', 'hot'], /option '--temperature <t>' argument 'hot' is invalid/],
    [['hi', '--max-token', '3'], /unknown option '--max-token'\n\(Did you mean --max-tokens\?\)/],
  ])('%j', async (args, message) => {
    const { status, stderr } = await ask(args, { stdin: 'none' });
    expect(status).toBe(1);
    expect(stderr).toMatch(message);
  });
});

describe('kvasir', () => {
  it('alone shows what there is, and `help` does too', async () => {
    const bare = await kvasir([]);
    expect(bare.status).toBe(0);
    expect(bare.stdout).toMatch(/Usage: kvasir[\s\S]*Commands:[\s\S]*Next:\n {2}npx kvasir demo/);
    expect(await kvasir(['help'])).toEqual(bare);
    expect((await kvasir(['help', 'run'])).stdout).toMatch(/Usage: kvasir run[\s\S]*--max-tokens/);
  });

  it('names the nearest command for a wrong one', async () => {
    expect(await kvasir(['rnu'])).toMatchObject({ status: 1, stderr: expect.stringMatching(/Did you mean run\?/) });
    expect(await kvasir(['help', 'esitmate'])).toMatchObject({
      status: 1,
      stderr: expect.stringMatching(/estimate\?/),
    });
    expect((await kvasir(['zzzzzz'])).stderr).not.toMatch(/mean/);
  });
});
