/** Session files and branches of the built `kvasir chat` and `kvasir run`, with a tiny random model. */
import { existsSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { loadModel, type Model } from '../../src/index.ts';
import { kvasir } from '../support/command.ts';
import { writeTempModel } from '../support/gguf-writer.ts';
import { itAll, matrix } from '../support/matrix.ts';
import { answerTo, noTerminal, openTerminal, WIDE } from '../support/terminal.ts';
import { tinyModel } from '../support/tiny-model.ts';

let model: string;
let loaded: Model;
let folder: string;
let file: string;
let files = 0;

beforeAll(async () => {
  model = await writeTempModel(tinyModel({ endless: true, tied: false, headDim: 32, context: 2048 }));
  // The js device starts fastest; sessions are the same on every device.
  loaded = await loadModel(model, { device: 'js' });
  folder = await mkdtemp(join(tmpdir(), 'kvasir-cli-sessions-'));
});
beforeEach(() => {
  file = join(folder, `${files++}.kvsession`);
});
afterAll(async () => {
  await loaded.dispose();
  await rm(folder, { recursive: true });
});

const greedy = ['--device', 'js', '--temperature', '0', '--max-tokens', '12'];
const command = async (args: string[], input?: string) => {
  const { status, stdout, stderr } = await kvasir(args, { input });
  // A slow machine shows its progress.
  const expected = /^(The model file has no chat template; ChatML is used\..*|reading .*%.*)\n/gm;
  return { status, stdout, stderr: stderr.replace(expected, '') };
};
const chat = (lines: string[], ...options: string[]) =>
  command(['chat', model, ...greedy, ...options], `${lines.join('\n')}\n`);
const run = (prompt: string, ...options: string[]) => command(['run', model, prompt, ...greedy, ...options]);
const readMessages = async (path: string) => {
  await using conversation = await loaded.restore(path);
  return conversation.messages.map(({ content }) => content);
};

describe('--session', () => {
  const system = ['--system', 'Be brief.'];
  let whole: string;
  beforeAll(async () => {
    whole = (await chat(['hello', 'and?', 'why?'], ...system)).stdout;
  });

  it('a chat goes on in another process as if it had not ended', async () => {
    const first = await chat(['hello', 'and?'], ...system, '--session', file);
    expect([first.status, statSync(file).mode & 0o777]).toEqual([0, 0o600]);
    const second = await chat(['why?', '/stats'], '--session', file);
    expect(first.stdout + second.stdout.split('cache:')[0]).toBe(whole);
    expect(second.stderr).toMatch(/^Resumed .*\.kvsession: 5 messages, \d+ tokens\.\n> and\?\n.+\n/);
    expect(Number(second.stdout.match(/\((\d+) reused\)/)?.[1])).toBeGreaterThan(100);
    expect(await readMessages(file)).toHaveLength(7);
    expect(readdirSync(folder).filter(name => name.endsWith('.part'))).toEqual([]);
  });

  itAll('the seeds of a resumed chat go on too', async () => {
    const seeded = ['--temperature', '2', '--seed', '5', '--session', file];
    const first = await chat(['hello', '/stats'], ...seeded);
    const second = await chat(['hello', '/stats'], ...seeded);
    expect([first, second].map(({ stdout }) => stdout.match(/seed \d+/)?.[0])).toEqual(['seed 5', 'seed 6']);
  });

  it('`run` answers in the conversation, and adds to it', async () => {
    const first = await run('hello', ...system, '--session', file);
    const second = await run('and?', '--session', file, '--stats');
    expect(first.stderr).not.toMatch(/Resumed/);
    expect(second.stderr).toMatch(/^Resumed .*: 3 messages, \d+ tokens\.\nprompt \d+ tokens \([1-9]\d* reused\)/);
    const other = await run('why?', '--session', file, '--system', 'Be long.');
    expect(other.stderr).toMatch(/--system is not used: .* has its own messages/);
    expect(first.stdout + second.stdout + other.stdout).toBe(whole);
    expect((await readMessages(file)).filter((_, i) => i % 2 === 1)).toEqual(['hello', 'and?', 'why?']);
  });

  it('an answer that Ctrl-C stopped is saved', async () => {
    const { status } = await kvasir(['run', model, 'hello', '--session', file, '--max-tokens', '1500'], {
      interruptWhen: ({ stdout }) => stdout.length > 3,
    });
    expect(status).toBe(130);
    expect(await readMessages(file)).toHaveLength(2);
  });

  const REFUSED: [string, string[], RegExp][] = [
    ['another codec', ['--kv', 'tq3'], /another plan \(tq4 .*, here tq3 .*\)\. To resume it, use the same --kv;/],
    ['a context that is too small', ['--context', '16'], /The session has \d+ tokens.*larger --context/],
  ];
  it.each(matrix(REFUSED, { 'another codec': 'another plan' }, ([name]) => name))(
    'a file of %s is refused and left as it is',
    async (_, options, message) => {
      {
        await using conversation = loaded.conversation();
        await conversation.send('hello', { temperature: 0, maxTokens: 12 }).result();
        await conversation.save(file);
      }
      const before = readFileSync(file);
      for (const { status, stdout, stderr } of [
        await run('again', '--session', file, ...options),
        await chat(['again'], '--session', file, ...options),
      ]) {
        expect([status, stdout]).toEqual([1, '']);
        expect(stderr).toMatch(message);
        expect(stderr).toMatch(/The file is left as it is; use another one for a new conversation\.\n$/);
      }
      expect(readFileSync(file)).toEqual(before);
    },
  );

  it('a file that is not a session, or a path that cannot be written, is refused before the answer', async () => {
    writeFileSync(file, 'my notes');
    const notes = await run('hello', '--session', file);
    expect([notes.status, notes.stdout, readFileSync(file, 'utf8')]).toEqual([1, '', 'my notes']);
    const missing = await run('hello', '--session', join(folder, 'none', 'a'));
    expect([missing.status, missing.stdout]).toEqual([1, '']);
    expect(missing.stderr).toMatch(/cannot be written \(ENOENT\)\. Check the path\./);
    expect((await run('hello', '--session', file, '--raw')).stderr).toMatch(/Use one of them/);
  });

  itAll('what cannot be saved is said once, and at the end', async () => {
    const long = 'word '.repeat(60);
    const small = ['--context', '300', '--overflow', 'slide', '--session', file];
    const { status, stderr } = await chat([long, 'and?', 'why?', 'so?', 'then?'], ...small);
    expect(status).toBe(0);
    const problem = /oldest tokens were dropped \(--overflow slide\) cannot be saved/g;
    expect(stderr.match(problem)).toHaveLength(2);
    expect(stderr).toMatch(/does not have the last changes\.\n$/);
  });
});

describe('commands of a chat', () => {
  it('/undo removes the last exchange, also from the file', async () => {
    const saved = await chat(['hello', 'and?', '/undo'], '--session', file);
    expect([saved.status, saved.stderr]).toEqual([0, '']);
    expect(saved.stdout).toMatch('Removed "and?" and its answer.\n');
    expect(await readMessages(file)).toEqual(['hello', expect.any(String)]);

    await using conversation = loaded.conversation();
    const options = { temperature: 0, maxTokens: 12 };
    await conversation.send('hello', options).result();
    const { text } = await conversation.send('why?', options).result();
    const emptied = await chat(['why?', '/undo', '/undo', '/undo'], '--session', file);
    expect(emptied.stdout.startsWith(text)).toBe(true);
    expect(emptied.stdout).toMatch(/Removed "hello" and its answer\. .* keeps the conversation that it has until/);
    expect(emptied.stderr).toMatch(/kvasir: There is no user message to remove/);
    expect(await readMessages(file)).toHaveLength(2);
  });

  itAll('/regenerate replaces the last answer, with another seed', async () => {
    const { stdout, stderr } = await chat(
      ['/regenerate', 'hello', '/stats', '/regenerate', '/stats', '/save'],
      ...['--temperature', '2', '--seed', '5', '--session', file],
    );
    expect(stderr).toMatch(/^kvasir: There is no user message to answer again\. Send one first\.\n/);
    expect(stdout.match(/seed \d+/g)).toEqual(['seed 5', 'seed 6']);
    expect(await readMessages(file)).toHaveLength(2);
  });

  it('/fork continues in a copy, and /branch goes back', async () => {
    const { stdout, stderr } = await chat(
      ['hello', '/fork', 'and?', '/branch', '/branch 1', 'why?', '/branch 3', '/branch'],
      ...['--session', file],
    );
    expect(stdout).toMatch('This is branch 2, a copy of branch 1. /branch 1 goes back. /save FILE saves it.\n');
    expect(stdout).toMatch(/\n {2}branch 1 \(.*\): 2 messages, \d+ tokens\n\* branch 2: 4 messages, \d+ tokens\n/);
    expect(stdout).toMatch(/\nThis is branch 1 \(.*\): 2 messages, \d+ tokens\.\n> hello\n/);
    expect(stdout).toMatch(/\n\* branch 1 \(.*\): 4 messages, \d+ tokens\n {2}branch 2: 4 messages/);
    expect(stderr).toBe('kvasir: There is no branch 3; branches are 1 to 2.\n');
    expect((await readMessages(file))[2]).toBe('why?');
  });

  it('/save FILE saves now and after each answer; it does not replace a file', async () => {
    const other = `${file}.other`;
    writeFileSync(other, 'my notes');
    const { stdout, stderr } = await chat([
      '/save',
      `/save ${file}`,
      'hello',
      `/save ${other}`,
      `/save ${file}`,
      'and?',
    ]);
    expect(stderr).toBe(
      'kvasir: This branch has no file yet. Usage: /save FILE\n' +
        'kvasir: There is nothing to save yet. Send a message first.\n' +
        `kvasir: ${other} exists. Use another name, or delete it first.\n`,
    );
    expect(stdout).toMatch(`Saved to ${file}. Further answers are saved there too.\n`);
    expect(await readMessages(file)).toHaveLength(4);
    expect(readFileSync(other, 'utf8')).toBe('my notes');
  });

  itAll('/load FILE continues a saved conversation as a branch', async () => {
    await run('hello', '--session', file);
    const { stdout, stderr } = await chat([
      `/load "${file}"`,
      'and?',
      '/branch 1',
      `/load ${file}`,
      '/load',
      '/load ./x',
    ]);
    const shown = /This is branch 2 \(.*\): (\d) messages, \d+ tokens\./g;
    expect([...stdout.matchAll(shown)].map(([, messages]) => messages)).toEqual(['2', '4']);
    expect(stderr).toBe(
      'kvasir: No file was given. Usage: /load FILE\nkvasir: ./x cannot be read (ENOENT). Check the path.\n',
    );
    expect(await readMessages(file)).toHaveLength(4);
  });

  itAll('/reset leaves the file until the next answer', async () => {
    const { stdout } = await chat(['hello', '/reset'], '--session', file);
    expect(stdout).toMatch(/Conversation cleared\. .* keeps the conversation that it has until the next answer\.\n/);
    expect((await readMessages(file))[0]).toBe('hello');
    await chat(['/reset', 'new'], '--session', file);
    expect((await readMessages(file))[0]).toBe('new');
  });

  it('/stats counts what is reused and kept for later prompts, and /help lists every command', async () => {
    const { stdout } = await chat(['word '.repeat(30), '/stats', '/reset', 'and?', 'why?', '/stats', '/help']);
    expect(stdout).toMatch(/prompt \d+ tokens \([1-9]\d* reused\)/);
    expect(stdout).toMatch(
      /cache: balanced: tq4, .*\n[\d.]+ KiB of cache, and [\d.]+ KiB kept for later prompts, of at most .*\n.* in all on js/,
    );
    for (const name of [
      'stats',
      'file',
      'regenerate',
      'undo',
      'fork',
      'branch',
      'save',
      'load',
      'reset',
      'exit',
      'help',
    ])
      expect(stdout).toMatch(new RegExp(`^/${name} `, 'm'));
  });
});

it.skipIf(noTerminal)(`a terminal shows the last exchange, and saves an answer that Ctrl-D ends`, async () => {
  const options = ['--device', 'wasm', '--max-tokens', '1500', '--session', file];
  const open = () => openTerminal(['chat', model, ...options], {}, WIDE);
  const first = open();
  await first.waitFor(/\/help shows commands\.\n> $/);
  first.type('hello\r');
  await first.waitFor(answerTo('hello'));
  first.type('\x04');
  expect(await first.exit).toBe(0);
  expect(existsSync(file)).toBe(true);
  const second = open();
  await second.waitFor(
    /\/help shows commands\.\nResumed [\s\S]*: 2 messages, [\s\S]*tokens\.\n> hello\n.+[\s\S]*\n> $/,
  );
  second.type('/exit\r');
  expect(await second.exit).toBe(0);
});
