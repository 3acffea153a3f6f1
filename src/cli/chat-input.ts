/**
 * The user's messages in a chat. At a terminal, Readline edits the line. Keys typed while the model answers are held
 * back and appear in the next line, so that they do not mix with the answer; only Ctrl-C and Ctrl-D act at once. A
 * paste is one message, whatever its number of lines. From a pipe or file every line is a message.
 */
import { writeSync } from 'node:fs';
import { createInterface, type Interface } from 'node:readline';
import { PassThrough } from 'node:stream';
import { StringDecoder } from 'node:string_decoder';
import {
  createPasteSplitter,
  decodeLine,
  encodePaste,
  type InputPiece,
  PASTE_OFF,
  PASTE_ON,
} from './bracketed-paste.ts';

export interface Message {
  text: string;
  /** From a """ block or a paste: never a command. */
  literal: boolean;
}

export interface ChatInput {
  readonly isTerminal: boolean;
  /** The next message; undefined at the end of input. */
  next(): Promise<Message | undefined>;
  close(): void;
}

const PROMPT = '> ';
const CONTINUATION_PROMPT = '... ';
const FENCE = '"""';
/** Ctrl-C, Ctrl-D, and Ctrl-Z, which would otherwise suspend the chat after the answer. */
const [INTERRUPT, EXIT, SUSPEND] = ['\x03', '\x04', '\x1a'];
const CONTROLS = new RegExp(`[${INTERRUPT}${EXIT}${SUSPEND}]`, 'g');
/** The rest of a split paste marker arrives within this time; after it, a partial marker is an Escape key. */
const PARTIAL_MARKER_MS = 50;

/** `onStop` is called when the user interrupts the current answer. */
export function openChatInput(onStop: () => void): ChatInput {
  const terminal = Boolean(process.stdin.isTTY && process.stdout.isTTY);
  return terminal ? createTerminalInput(onStop) : createPipedInput(onStop);
}

/** Joins the lines of a """ block into one message. */
function createMultilineParser() {
  let block: string | undefined;
  return {
    /** The message that this line completes; undefined inside a block. */
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

function createPipedInput(onStop: () => void): ChatInput {
  const lines = createInterface({ input: process.stdin });
  const iterator = lines[Symbol.asyncIterator]();
  const blocks = createMultilineParser();
  let interrupts = 0;
  const onInterrupt = () => {
    onStop();
    if (++interrupts > 1) lines.close();
  };
  process.on('SIGINT', onInterrupt);
  return {
    isTerminal: false,
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

function createTerminalInput(onStop: () => void): ChatInput {
  const { stdin, stdout } = process;
  const setRawMode = (on: boolean) => stdin.setRawMode(on);
  const keyboard = Object.assign(new PassThrough(), { isTTY: true, setRawMode });
  const editor = createInterface({ input: keyboard, output: stdout, terminal: true, prompt: PROMPT });
  const splitter = createPasteSplitter();
  const decoder = new StringDecoder('utf8');
  const blocks = createMultilineParser();
  const pending: InputPiece[] = [];
  let listener: ((message?: Message) => void) | undefined;
  let interrupts = 0;
  let closed = false;
  let markerTimer: NodeJS.Timeout | undefined;

  const deliver = (message?: Message) => {
    const resolve = listener;
    listener = undefined;
    interrupts = 0;
    resolve?.(message);
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
    stdout.write('\n(press Ctrl-C again to exit)\n');
    prompt(PROMPT);
  };

  /** Handles and removes the control keys that act during an answer. */
  const handleControlKeys = (keys: string) =>
    keys.replace(CONTROLS, key => {
      if (key === INTERRUPT) onInterrupt();
      else if (key === EXIT) close();
      return '';
    });
  const receive = (pieces: InputPiece[]) => {
    for (const piece of pieces)
      pending.push('keys' in piece && !listener ? { keys: handleControlKeys(piece.keys) } : piece);
    feedEditor();
  };
  /** Passes pending pieces to the editor, up to the Enter that completes a message. */
  const feedEditor = () => {
    while (listener && !closed && pending.length > 0) {
      const piece = pending.shift()!;
      if ('paste' in piece) editor.write(encodePaste(piece.paste));
      else {
        const end = piece.keys.search(/[\r\n]/) + 1 || piece.keys.length;
        if (end < piece.keys.length) pending.unshift({ keys: piece.keys.slice(end) });
        const keys = piece.keys.slice(0, end);
        if (keys !== INTERRUPT) interrupts = 0;
        keyboard.write(keys);
      }
    }
  };
  const onData = (bytes: Buffer) => {
    clearTimeout(markerTimer);
    receive(splitter.push(decoder.write(bytes)));
    if (splitter.hasPartialMarker) markerTimer = setTimeout(() => receive(splitter.flush()), PARTIAL_MARKER_MS);
  };
  const onContinue = () => stdout.write(PASTE_ON);
  // For the exits that skip `close`: an uncaught exception, process.exit, a signal.
  const restore = () => writeSync(1, PASTE_OFF);
  const onKill = (_: NodeJS.Signals, number: number) => process.exit(128 + number);

  function close() {
    if (closed) return;
    closed = true;
    clearTimeout(markerTimer);
    onStop();
    stdin.off('data', onData).off('end', close).pause();
    process.off('SIGINT', onInterrupt).off('SIGTERM', onKill).off('SIGHUP', onKill).off('SIGCONT', onContinue);
    process.off('exit', restore);
    editor.close();
    stdout.write(listener ? `\n${PASTE_OFF}` : PASTE_OFF);
    deliver(undefined);
  }

  editor.on('line', line => {
    const message = blocks.push(decodeLine(line));
    if (message) deliver(message);
    else prompt(CONTINUATION_PROMPT);
  });
  editor.on('SIGINT', onInterrupt);
  editor.on('close', close);
  stdin.on('data', onData).on('end', close);
  process.on('SIGINT', onInterrupt).on('SIGTERM', onKill).on('SIGHUP', onKill).on('SIGCONT', onContinue);
  process.on('exit', restore);
  stdout.write(PASTE_ON);
  return {
    isTerminal: true,
    next() {
      if (closed) return Promise.resolve(undefined);
      interrupts = 0;
      return new Promise(resolve => {
        listener = resolve;
        prompt(PROMPT);
        feedEditor();
      });
    },
    close,
  };
}

function clearLine(editor: Interface): void {
  editor.write(null, { ctrl: true, name: 'e' });
  editor.write(null, { ctrl: true, name: 'u' });
}
