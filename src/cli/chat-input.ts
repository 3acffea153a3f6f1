/**
 * What somebody says in a chat, message by message. At a terminal, Readline edits the line, but does not get the keys
 * before somebody waits for a message: what is typed during an answer is held back and stands in the next line, so that
 * it never runs into the answer. Only Ctrl-C and Ctrl-D are heeded at once. A pasted text is one message, however many
 * lines it has. Elsewhere (a pipe, a file) every line is a message.
 */
import { writeSync } from 'node:fs';
import { createInterface, type Interface } from 'node:readline';
import { PassThrough } from 'node:stream';
import { StringDecoder } from 'node:string_decoder';
import { createPasteSplitter, fromLine, PASTE_OFF, PASTE_ON, type Piece, toLine } from './paste.ts';

export interface Message {
  text: string;
  /** From a block or a paste: never a command. */
  literal: boolean;
}

export interface ChatInput {
  readonly terminal: boolean;
  /** The next message; undefined once the user has left. */
  next(): Promise<Message | undefined>;
  close(): void;
}

const PROMPT = '> ';
const MORE = '... ';
const FENCE = '"""';
/** Ctrl-C, Ctrl-D; Ctrl-Z, which would otherwise stop the chat when the answer has ended. */
const [INTERRUPT, LEAVE, SUSPEND] = ['\x03', '\x04', '\x1a'];
const CONTROLS = new RegExp(`[${INTERRUPT}${LEAVE}${SUSPEND}]`, 'g');
/** A mark of a paste that is cut in two by the terminal's buffer comes whole within this; a lone Escape does not. */
const MARK_MS = 50;

/** `onStop`: the answer that is being given is not wanted any more. */
export function openChatInput(onStop: () => void): ChatInput {
  const terminal = Boolean(process.stdin.isTTY && process.stdout.isTTY);
  return terminal ? terminalInput(onStop) : pipedInput(onStop);
}

/** A message of several lines: from a line that starts with """ to one that ends with it. */
export function createBlocks() {
  let block: string | undefined;
  return {
    /** The message that a line completes; undefined if it goes on. */
    push(line: string): Message | undefined {
      if (block === undefined) {
        if (line.includes('\n')) return { text: line, literal: true };
        if (!line.startsWith(FENCE)) return { text: line, literal: false };
      }
      const text = block === undefined ? line.slice(FENCE.length) : `${block}\n${line}`;
      if (!text.trimEnd().endsWith(FENCE)) {
        block = text;
        return undefined;
      }
      block = undefined;
      return { text: text.trimEnd().slice(0, -FENCE.length), literal: true };
    },
    reset() {
      block = undefined;
    },
  };
}

function pipedInput(onStop: () => void): ChatInput {
  const lines = createInterface({ input: process.stdin });
  const iterator = lines[Symbol.asyncIterator]();
  const blocks = createBlocks();
  let interrupts = 0;
  const onInterrupt = () => {
    onStop();
    if (++interrupts > 1) lines.close();
  };
  process.on('SIGINT', onInterrupt);
  return {
    terminal: false,
    async next() {
      for (;;) {
        const { done, value } = await iterator.next();
        if (done) return undefined;
        interrupts = 0;
        const message = blocks.push(value);
        if (message) return message;
      }
    },
    close() {
      process.off('SIGINT', onInterrupt);
      lines.close();
    },
  };
}

function terminalInput(onStop: () => void): ChatInput {
  const { stdin, stdout } = process;
  const setRawMode = (on: boolean) => stdin.setRawMode(on);
  const keyboard = Object.assign(new PassThrough(), { isTTY: true, setRawMode });
  const editor = createInterface({ input: keyboard, output: stdout, terminal: true, prompt: PROMPT });
  const splitter = createPasteSplitter();
  const decoder = new StringDecoder('utf8');
  const blocks = createBlocks();
  const held: Piece[] = [];
  let listener: ((message?: Message) => void) | undefined;
  let interrupts = 0;
  let closed = false;
  let mark: NodeJS.Timeout | undefined;

  const deliver = (message?: Message) => {
    const listening = listener;
    listener = undefined;
    interrupts = 0;
    listening?.(message);
  };
  const prompt = (text: string) => {
    editor.setPrompt(text);
    editor.prompt();
  };
  const onInterrupt = () => {
    interrupts++;
    if (!listener) onStop();
    if (interrupts > 1) return close();
    if (!listener) return;
    blocks.reset();
    clearLine(editor);
    stdout.write('\n(Ctrl-C again to leave)\n');
    prompt(PROMPT);
  };

  /** Keys that count during an answer; the others wait for its end. */
  const heedControls = (keys: string) =>
    keys.replace(CONTROLS, key => {
      if (key === INTERRUPT) onInterrupt();
      else if (key === LEAVE) close();
      return '';
    });
  const take = (pieces: Piece[]) => {
    for (const piece of pieces) held.push('keys' in piece && !listener ? { keys: heedControls(piece.keys) } : piece);
    pump();
  };
  /** Hands held pieces to the editor, up to the Enter that completes a message. */
  const pump = () => {
    while (listener && !closed && held.length > 0) {
      const piece = held.shift()!;
      if ('paste' in piece) editor.write(toLine(piece.paste));
      else {
        const end = piece.keys.search(/[\r\n]/) + 1 || piece.keys.length;
        if (end < piece.keys.length) held.unshift({ keys: piece.keys.slice(end) });
        const keys = piece.keys.slice(0, end);
        if (keys !== INTERRUPT) interrupts = 0;
        keyboard.write(keys);
      }
    }
  };
  const onData = (bytes: Buffer) => {
    clearTimeout(mark);
    take(splitter.push(decoder.write(bytes)));
    if (splitter.holds) mark = setTimeout(() => take(splitter.flush()), MARK_MS);
  };
  const onContinue = () => stdout.write(PASTE_ON);
  // What no other clean-up reaches: an exception that nobody caught, process.exit, a signal.
  const restore = () => writeSync(1, PASTE_OFF);
  const onKill = (_: NodeJS.Signals, number: number) => process.exit(128 + number);

  function close() {
    if (closed) return;
    closed = true;
    clearTimeout(mark);
    onStop();
    stdin.off('data', onData).off('end', close).pause();
    process.off('SIGINT', onInterrupt).off('SIGTERM', onKill).off('SIGHUP', onKill).off('SIGCONT', onContinue);
    process.off('exit', restore);
    editor.close();
    stdout.write(listener ? `\n${PASTE_OFF}` : PASTE_OFF);
    deliver(undefined);
  }

  editor.on('line', line => {
    const message = blocks.push(fromLine(line));
    if (message) deliver(message);
    else prompt(MORE);
  });
  editor.on('SIGINT', onInterrupt);
  editor.on('close', close);
  stdin.on('data', onData).on('end', close);
  process.on('SIGINT', onInterrupt).on('SIGTERM', onKill).on('SIGHUP', onKill).on('SIGCONT', onContinue);
  process.on('exit', restore);
  stdout.write(PASTE_ON);
  return {
    terminal: true,
    next() {
      if (closed) return Promise.resolve(undefined);
      interrupts = 0;
      return new Promise(resolve => {
        listener = resolve;
        prompt(PROMPT);
        pump();
      });
    },
    close,
  };
}

function clearLine(editor: Interface): void {
  editor.write(null, { ctrl: true, name: 'e' });
  editor.write(null, { ctrl: true, name: 'u' });
}
