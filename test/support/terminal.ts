/** The command at a pseudo-terminal: type, wait for text, resize, read the screen. */
import { spawn, spawnSync } from 'node:child_process';
import type { Writable } from 'node:stream';
import { fileURLToPath } from 'node:url';
import { onTestFinished } from 'vitest';

const main = fileURLToPath(new URL('../../dist/cli/main.js', import.meta.url));

/** Runs a command on a pseudo-terminal: stdin and stdout are its other end, "COLUMNS ROWS" on fd 3 resizes it. */
const PTY = `
import fcntl, os, pty, select, struct, sys, termios
pid, fd = pty.fork()
if pid == 0: os.execvp(sys.argv[1], sys.argv[1:])
def resize(cols, rows): fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
sources = [0, 3, fd]
while fd in sources:
    for source in select.select(sources, [], [])[0]:
        try: data = os.read(source, 65536)
        except OSError: data = b""
        if not data: sources.remove(source)
        elif source == fd: os.write(1, data)
        elif source == 0: os.write(fd, data)
        else: resize(*map(int, data.split()[-2:]))
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
`;

/** Prints the terminal's settings after the command. */
const SHELL = '"$@"; status=$?; stty -a; exit $status';

/** The program that opens a pseudo-terminal: every Debian has `script`, but it cannot resize. */
export const ptyTool = ['python3', 'script'].find(name => spawnSync(name, ['--version']).status === 0);

/** Why there is no pseudo-terminal; undefined if there is one. */
export const noTerminal = ptyTool ? undefined : 'a pseudo-terminal needs python3 or script';
if (noTerminal && process.env.CI) throw new Error(noTerminal);

/** Columns of a terminal that wraps neither paths nor what follows a long answer. */
export const WIDE = 20_000;

export interface Terminal {
  /** The whole output with control sequences. */
  readonly raw: string;
  /** The output as a screen of unlimited height shows it. */
  readonly screen: string;
  type(keys: string): void;
  /** Pastes text in bracketed paste mode. */
  paste(text: string): void;
  resize(columns: number, rows: number): void;
  /** Waits until the screen matches. */
  waitFor(pattern: RegExp): Promise<void>;
  /** The exit status. */
  readonly exit: Promise<number | null>;
  /** Kills the command. */
  close(): void;
}

/** `width`: columns of the terminal. Longer lines are wrapped, at any character. */
export function openTerminal(args: readonly string[], env: Record<string, string> = {}, width = 80): Terminal {
  const command = ['sh', '-c', `stty cols ${width} rows 24; ${SHELL}`, 'sh', process.execPath, main, ...args];
  const quoted = command.map(part => `'${part.replaceAll("'", `'\\''`)}'`).join(' ');
  const start = ptyTool === 'python3' ? ['-c', PTY, ...command] : ['-qfec', quoted, '/dev/null'];
  const child = spawn(ptyTool ?? '', start, {
    env: { ...process.env, ...env },
    stdio: ['pipe', 'pipe', 'inherit', 'pipe'],
  });
  // Whatever becomes of the test: a terminal that lives on keeps the test runner from ending.
  onTestFinished(() => void child.kill('SIGKILL'));
  let [raw, columns] = ['', width];
  child.stdout?.setEncoding('utf8').on('data', text => {
    raw += text;
  });
  return {
    get raw() {
      return raw;
    },
    get screen() {
      return screenOf(raw, columns);
    },
    type: keys => child.stdin?.write(keys),
    paste: text => child.stdin?.write(`\x1b[200~${text.replaceAll('\n', '\r')}\x1b[201~`),
    resize(newWidth, rows) {
      columns = newWidth;
      (child.stdio[3] as Writable).write(`${newWidth} ${rows}\n`);
    },
    async waitFor(pattern) {
      for (const started = Date.now(); !pattern.test(screenOf(raw, columns)); ) {
        if (Date.now() - started > 30_000 || child.exitCode !== null)
          throw new Error(`The screen does not show ${pattern}:\n${screenOf(raw, columns)}`);
        await new Promise(resolve => setTimeout(resolve, 20));
      }
    },
    exit: new Promise(resolve => child.on('close', resolve)),
    close: () => child.kill('SIGKILL'),
  };
}

/** The screen when the answer to a question has begun. A slow machine first shows how much of the prompt is read. */
export const answerTo = (question: string) => new RegExp(`> ${question}\\n(?!reading).{3}`);

/** A control sequence, or a character. */
const PRINTED = new RegExp(`${'\x1b'}\\[([?\\d;]*)([A-Za-z])|([\\s\\S])`, 'gu');

/** Applies the control sequences that Readline and progress bars use: cursor moves and erasing. */
function screenOf(raw: string, columns: number): string {
  const lines: string[][] = [[]];
  let [row, column] = [0, 0];
  const line = () => {
    while (lines.length <= row) lines.push([]);
    return lines[row];
  };
  const erase: Record<string, (how: string) => void> = {
    J() {
      line().length = Math.min(column, line().length);
      lines.length = row + 1;
    },
    K(how) {
      if (how === '2') line().length = 0;
      else line().length = Math.min(column, line().length);
    },
  };
  const move: Record<string, (n: number) => void> = {
    A: n => (row = Math.max(0, row - n)),
    B: n => (row += n),
    C: n => (column += n),
    D: n => (column = Math.max(0, column - n)),
    G: n => (column = n - 1),
  };
  for (const [, how, letter, character] of raw.matchAll(PRINTED)) {
    if (letter) {
      move[letter]?.(Number(how || 1));
      erase[letter]?.(how);
    } else if (character === '\r') column = 0;
    else if (character === '\n') row++;
    else if (character === '\b') column = Math.max(0, column - 1);
    else {
      if (column >= columns) [row, column] = [row + 1, 0];
      while (line().length < column) line().push(' ');
      line()[column++] = character;
    }
  }
  return lines.map(cells => cells.join('')).join('\n');
}
