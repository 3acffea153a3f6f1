/** `kvasir chat` at a pseudo-terminal and with piped input, with a tiny random model. */
import { writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { afterEach, beforeAll, describe, expect, it } from 'vitest';
import { loadModel } from '../../src/index.ts';
import { kvasir } from '../support/command.ts';
import { writeTempModel } from '../support/gguf-writer.ts';
import { itAll } from '../support/matrix.ts';
import { answerTo, noTerminal, openTerminal, ptyTool, type Terminal, WIDE } from '../support/terminal.ts';
import { tinyModel } from '../support/tiny-model.ts';

let model: string;
let terminal: Terminal;

beforeAll(async () => {
  model = await writeTempModel(tinyModel({ endless: true, tied: false, headDim: 32, context: 4096 }));
});

const short = ['--temperature', '0', '--max-tokens', '8'];
const long = ['--temperature', '0', '--max-tokens', '3500'];
const [CTRL_C, CTRL_D] = ['\x03', '\x04'];

const chat = (...options: string[]) => chatAt(80, ...options);

async function chatAt(columns: number, ...options: string[]) {
  terminal = openTerminal(['chat', model, '--device', 'js', ...options], {}, columns);
  await terminal.waitFor(/\/help shows commands\.\n> $/);
  return terminal;
}

/** Waits for a prompt on the last line. */
const seePrompt = () => terminal.waitFor(/\n> $/);

/** The number of tokens of the last prompt, from /stats. */
async function promptTokens(): Promise<number> {
  terminal.type('/stats\r');
  await terminal.waitFor(/prompt [\d,]+ tokens .*[\s\S]*\n> $/);
  return Number(terminal.screen.match(/prompt ([\d,]+) tokens(?![\s\S]*prompt [\d,]+ tokens)/)?.[1].replace(',', ''));
}

/** The number of tokens of a first message, from the library. */
async function tokensOf(content: string): Promise<number> {
  await using loaded = await loadModel(model, { device: 'js' });
  const { usage } = await loaded.complete([{ role: 'user', content }], { temperature: 0, maxTokens: 1 });
  return usage.promptTokens;
}

describe.skipIf(noTerminal)(`a terminal${noTerminal ? ` (${noTerminal})` : ''}`, () => {
  afterEach(() => terminal.close());

  it('a pasted text of three lines is one message, sent by Enter', async () => {
    await chat(...short);
    const text = 'first line\n\tsecond line\nthird line';
    terminal.paste(text);
    await terminal.waitFor(/> first line⏎⇥second line⏎third line$/);
    terminal.type('\r');
    await seePrompt();
    expect(await promptTokens()).toBe(await tokensOf(text));
  });

  itAll('a block between """ is one message', async () => {
    await chat(...short);
    terminal.type('"""one\r');
    await terminal.waitFor(/> """one\n\.\.\. $/);
    terminal.type('/two\rthree"""\r');
    await seePrompt();
    expect(await promptTokens()).toBe(await tokensOf('one\n/two\nthree'));
  });

  itAll('/file puts the text of a file before the next message', async () => {
    const file = join(dirname(model), 'notes.txt');
    writeFileSync(file, 'Odin drank.\n');
    await chatAt(WIDE, ...short);
    terminal.type(`/file ${file}\r/file ./none.txt\r`);
    await terminal.waitFor(
      /notes\.txt: 12 tokens \(the context holds 4,096\)[\s\S]*none\.txt cannot be read \(ENOENT\)[\s\S]*\n> $/,
    );
    terminal.type('Who?\r');
    await seePrompt();
    expect(await promptTokens()).toBe(await tokensOf('Odin drank.\n\nWho?'));
  });

  it('text typed during an answer appears at the next prompt, or is sent if Enter was pressed', async () => {
    await chat('--temperature', '0', '--max-tokens', '120');
    terminal.type('hello\r');
    await terminal.waitFor(answerTo('hello'));
    terminal.type('/stats\rstill typing');
    await terminal.waitFor(/\n> still typing$/);
    const [answer, rest] = terminal.screen.split('\n> /stats\n');
    expect(answer).not.toMatch(/stats|typing/);
    expect(rest).toMatch(/^cache: .*\nprompt \d+ tokens[\s\S]*\n> still typing$/);
    terminal.type('\x7f'.repeat(12));
    await seePrompt();
  });

  it('Ctrl-C while a file is read drops the message, says that the file stays attached, and /undo detaches it', async () => {
    const file = join(dirname(model), 'long.txt');
    writeFileSync(file, 'Odin drank. '.repeat(250));
    await chatAt(WIDE, ...short);
    terminal.type(`/file ${file}\r`);
    await terminal.waitFor(/long\.txt: [\d,]+ tokens[\s\S]*\n> $/);
    terminal.type('Who?\r');
    await terminal.waitFor(/reading/);
    terminal.type(CTRL_C);
    await terminal.waitFor(
      /Your message was dropped\. Still attached to the next one: .*long\.txt\. \/undo detaches\.\n> $/,
    );
    terminal.type('/undo\r');
    await terminal.waitFor(/Detached .*long\.txt\.\n> $/);
    terminal.type('Who?\r');
    await seePrompt();
    expect(await promptTokens()).toBe(await tokensOf('Who?'));
  });

  it('Ctrl-C stops an answer, and the next question is answered', async () => {
    await chatAt(WIDE, ...long);
    terminal.type('hello\r');
    await terminal.waitFor(answerTo('hello'));
    terminal.type(CTRL_C);
    await terminal.waitFor(/ \(stopped\)\n> $/);
    terminal.type('again\r');
    await terminal.waitFor(answerTo('again'));
    terminal.type(CTRL_C);
    await terminal.waitFor(/\(stopped\)[\s\S]*\(stopped\)\n> $/);
  });

  itAll('Ctrl-C twice exits, unless a key is pressed in between', async () => {
    await chat(...short);
    terminal.type(`gone${CTRL_C}`);
    await terminal.waitFor(/\(press Ctrl-C again to exit\)\n> $/);
    terminal.type('x');
    await terminal.waitFor(/\n> x$/);
    terminal.type(CTRL_C);
    await terminal.waitFor(/to exit\)[\s\S]*to exit\)\n> $/);
    terminal.type(CTRL_C);
    expect(await terminal.exit).toBe(0);
    expectRestored();
  });

  it('Ctrl-D exits at the prompt and during an answer', async () => {
    await chatAt(WIDE, ...long);
    terminal.type('hello\r');
    await terminal.waitFor(answerTo('hello'));
    terminal.type(CTRL_D);
    expect(await terminal.exit).toBe(0);
    expect(terminal.screen).toMatch(/ \(stopped\)\n/);
    expectRestored();
    terminal.close();
    await chat(...short);
    terminal.type(CTRL_D);
    expect(await terminal.exit).toBe(0);
  });

  it.skipIf(ptyTool !== 'python3')('a line longer than the screen can be edited after a resize', async () => {
    await chat(...short);
    terminal.resize(40, 20);
    terminal.type('x'.repeat(50));
    await terminal.waitFor(/> x{38}\nx{12}$/);
    terminal.type('\x7f'.repeat(45));
    await terminal.waitFor(/\n> x{5}\n?$/);
  });
});

/** Bracketed paste is off, and the terminal is back in line mode. */
function expectRestored() {
  expect(terminal.raw.lastIndexOf('\x1b[?2004l')).toBeGreaterThan(terminal.raw.lastIndexOf('\x1b[?2004h'));
  expect(terminal.raw).toMatch(/(?<!-)\bicanon\b[\s\S]*(?<!-)\becho\b/);
}

describe('a pipe', () => {
  it('the same seed gives the same chat; each turn adds one to the seed', async () => {
    const args = ['chat', model, '--device', 'js', '--seed', '5', '--temperature', '2', '--max-tokens', '16'];
    const turns = 'hello\n/stats\nhello\n/stats\n';
    const { stdout } = await kvasir(args, { input: `${turns}/reset\n${turns}` });
    expect(stdout.match(/seed \d+/g)).toEqual(['seed 5', 'seed 6', 'seed 5', 'seed 6']);
    const [first, again] = stdout.split('Conversation cleared.\n').map(text => text.split('cache:')[0]);
    expect(again).toBe(first);
  });

  it('an unknown command suggests the nearest one', async () => {
    const { stdout } = await kvasir(['chat', model, '--device', 'js'], { input: '/rest\n/exit\n' });
    expect(stdout).toMatch(/Unknown command \/rest\. Did you mean \/reset\?/);
  });
});
