/** `kvasir chat` as somebody has it: at a real pseudo-terminal, with a tiny random model. */
import { writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { afterEach, beforeAll, describe, expect, it } from 'vitest';
import { loadModel } from '../src/index.ts';
import { kvasir } from './command.ts';
import { writeTempModel } from './gguf-writer.ts';
import { missing, openTerminal, type Terminal, tool } from './terminal.ts';
import { tinyModel } from './tiny-model.ts';

let model: string;
let terminal: Terminal;

beforeAll(async () => {
  model = await writeTempModel(tinyModel({ tied: false, headDim: 32, context: 4096 }));
});

const short = ['--temperature', '0', '--max-tokens', '8'];
const long = ['--temperature', '0', '--max-tokens', '3500'];
const [CTRL_C, CTRL_D] = ['\x03', '\x04'];

async function chat(...options: string[]) {
  terminal = openTerminal(['chat', model, '--device', 'js', ...options]);
  await terminal.see(/\/help shows commands\.\n> $/);
  return terminal;
}

/** Waits for a prompt below everything that is there. */
const seePrompt = () => terminal.see(/\n> $/);

/** Asks for the statistics: how many tokens the last prompt had. */
async function promptTokens(): Promise<number> {
  terminal.type('/stats\r');
  await terminal.see(/prompt [\d,]+ tokens .*[\s\S]*\n> $/);
  return Number(terminal.screen.match(/prompt ([\d,]+) tokens(?![\s\S]*prompt [\d,]+ tokens)/)?.[1].replace(',', ''));
}

/** Tokens of a first message, by the library. */
async function tokensOf(content: string): Promise<number> {
  await using loaded = await loadModel(model, { device: 'js' });
  const { usage } = await loaded.complete([{ role: 'user', content }], { temperature: 0, maxTokens: 1 });
  return usage.promptTokens;
}

describe.skipIf(missing)(`a terminal${missing ? ` (${missing})` : ''}`, () => {
  afterEach(() => terminal.close());

  it('a pasted text of three lines is one message, sent by Enter', async () => {
    await chat(...short);
    const text = 'first line\n\tsecond line\nthird line';
    terminal.paste(text);
    await terminal.see(/> first line⏎⇥second line⏎third line$/);
    terminal.type('\r');
    await seePrompt();
    expect(await promptTokens()).toBe(await tokensOf(text));
  });

  it('a block between """ is one message', async () => {
    await chat(...short);
    terminal.type('"""one\r');
    await terminal.see(/> """one\n\.\.\. $/);
    terminal.type('/two\rthree"""\r');
    await seePrompt();
    expect(await promptTokens()).toBe(await tokensOf('one\n/two\nthree'));
  });

  it('/file puts a text before the next message', async () => {
    const file = join(dirname(model), 'notes.txt');
    writeFileSync(file, 'Odin drank.\n');
    await chat(...short);
    terminal.type(`/file ${file}\r/file ./none.txt\r`);
    await terminal.see(
      /notes\.txt: 12 tokens, of 4,096 that fit[\s\S]*none\.txt cannot be read \(ENOENT\)[\s\S]*\n> $/,
    );
    terminal.type('Who?\r');
    await seePrompt();
    expect(await promptTokens()).toBe(await tokensOf('Odin drank.\n\nWho?'));
  });

  it('what is typed during an answer stands in the next line, or is sent if Enter was pressed', async () => {
    await chat('--temperature', '0', '--max-tokens', '120');
    terminal.type('hello\r');
    await terminal.see(/> hello\n.{3}/);
    terminal.type('/stats\rstill typing');
    await terminal.see(/\n> still typing$/);
    const [answer, rest] = terminal.screen.split('\n> /stats\n');
    expect(answer).not.toMatch(/stats|typing/);
    expect(rest).toMatch(/^cache: .*\nprompt \d+ tokens[\s\S]*\n> still typing$/);
    terminal.type('\x7f'.repeat(12));
    await seePrompt();
  });

  it('Ctrl-C stops an answer, and the next question is answered', async () => {
    await chat(...long);
    terminal.type('hello\r');
    await terminal.see(/> hello\n.{3}/);
    terminal.type(CTRL_C);
    await terminal.see(/ \(stopped\)\n> $/);
    terminal.type('again\r');
    await terminal.see(/> again\n.{3}/);
    terminal.type(CTRL_C);
    await terminal.see(/\(stopped\)[\s\S]*\(stopped\)\n> $/);
  });

  it('Ctrl-C twice leaves; a key between them does not', async () => {
    await chat(...short);
    terminal.type(`gone${CTRL_C}`);
    await terminal.see(/\(Ctrl-C again to leave\)\n> $/);
    terminal.type('x');
    await terminal.see(/\n> x$/);
    terminal.type(CTRL_C);
    await terminal.see(/to leave\)[\s\S]*to leave\)\n> $/);
    terminal.type(CTRL_C);
    expect(await terminal.exit).toBe(0);
    expectRestored();
  });

  it('Ctrl-D leaves: at the prompt, and during an answer, which it stops', async () => {
    await chat(...long);
    terminal.type('hello\r');
    await terminal.see(/> hello\n.{3}/);
    terminal.type(CTRL_D);
    expect(await terminal.exit).toBe(0);
    expect(terminal.screen).toMatch(/ \(stopped\)\n/);
    expectRestored();
    terminal.close();
    await chat(...short);
    terminal.type(CTRL_D);
    expect(await terminal.exit).toBe(0);
  });

  it.skipIf(tool !== 'python3')('a line longer than the screen is edited after a resize', async () => {
    await chat(...short);
    terminal.resize(40, 20);
    terminal.type('x'.repeat(50));
    await terminal.see(/> x{38}\nx{12}$/);
    terminal.type('\x7f'.repeat(45));
    await terminal.see(/\n> x{5}\n?$/);
  });
});

/** Marks of pastes are off, and the terminal edits lines again. */
function expectRestored() {
  expect(terminal.raw.lastIndexOf('\x1b[?2004l')).toBeGreaterThan(terminal.raw.lastIndexOf('\x1b[?2004h'));
  expect(terminal.raw).toMatch(/(?<!-)\bicanon\b[\s\S]*(?<!-)\becho\b/);
}

describe('a pipe', () => {
  it('the same seed gives the same chat, but each turn counts on from it', async () => {
    const args = ['chat', model, '--device', 'js', '--seed', '5', '--temperature', '2', '--max-tokens', '16'];
    const turns = 'hello\n/stats\nhello\n/stats\n';
    const { stdout } = await kvasir(args, { input: `${turns}/reset\n${turns}` });
    expect(stdout.match(/seed \d+/g)).toEqual(['seed 5', 'seed 6', 'seed 5', 'seed 6']);
    const [first, again] = stdout.split('Forgotten.\n').map(text => text.split('cache:')[0]);
    expect(again).toBe(first);
  });

  it('a wrong command names the nearest', async () => {
    const { stdout } = await kvasir(['chat', model, '--device', 'js'], { input: '/rest\n/exit\n' });
    expect(stdout).toMatch(/There is no \/rest\. Did you mean \/reset\?/);
  });
});
