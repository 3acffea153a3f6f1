/** Texts that a user gives: files, and what is piped in. */
import { fstatSync } from 'node:fs';
import { readFile, stat } from 'node:fs/promises';
import { InputError } from '../errors.ts';
import { formatFileSize } from '../units.ts';

/** More than any context holds: a larger file was given by mistake. */
const MAX_PROMPT_BYTES = 64e6;
const SAY_AFTER_MS = 2000;

/** A file of text in UTF-8. `hint` says where its path was given. */
export async function readText(path: string, hint: string, maxBytes = Number.POSITIVE_INFINITY): Promise<string> {
  const cannot = (error: NodeJS.ErrnoException) => {
    throw new InputError(`${path} cannot be read (${error.code ?? error.message}). Check ${hint}.`);
  };
  const { size } = await stat(path).catch(cannot);
  if (size > maxBytes)
    throw new InputError(`${path} has ${formatFileSize(size)}, and a prompt at most ${formatFileSize(maxBytes)}.`);
  return decode(await readFile(path).catch(cannot), path);
}

export const readPromptFile = (path: string, hint: string): Promise<string> => readText(path, hint, MAX_PROMPT_BYTES);

function decode(bytes: Uint8Array, name: string): string {
  try {
    // A NUL is valid UTF-8, and in no text.
    if (!bytes.includes(0)) return new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch {}
  throw new InputError(`${name} is not text in UTF-8. Convert it to plain text first.`);
}

export interface PromptParts {
  /** The prompt on the command line; `-` stands for stdin. */
  given?: string;
  files?: readonly string[];
  signal: AbortSignal;
}

/** Files and what is piped in, then the prompt, with blank lines between. */
export async function readPrompt({ given, files = [], signal }: PromptParts): Promise<string> {
  const asked = given === '-' ? undefined : given;
  if (given === undefined && files.length === 0 && process.stdin.isTTY)
    throw new InputError('There is no prompt. Give one: kvasir run MODEL "Who was Kvasir?"');
  const documents = await Promise.all(files.map(async path => ({ path, text: await readPromptFile(path, '--file') })));
  const piped = given === '-' || hasPipedInput() ? await readStdin(signal) : '';
  if (piped.trim() === '' && (given === '-' || (asked === undefined && files.length === 0)))
    throw new InputError('The prompt from stdin is empty. Give some text.');
  return joinPrompt(documents, piped, asked);
}

export interface Document {
  path: string;
  text: string;
}

/** Documents, by name where there are several, and further texts, with blank lines between. */
export function joinPrompt(documents: readonly Document[], ...texts: (string | undefined)[]): string {
  const named = documents.map(({ path, text }) => (documents.length > 1 ? `${path}\n${text}` : text));
  const parts = [...named, ...texts].filter(text => text !== undefined && text.trim() !== '');
  return parts.map((text, i) => (i < parts.length - 1 ? text?.trimEnd() : text)).join('\n\n');
}

/** A pipe, a file or a socket. Not a terminal, and not /dev/null, which cron and services have in its place. */
function hasPipedInput(): boolean {
  if (process.stdin.isTTY) return false;
  try {
    const input = fstatSync(0);
    return input.isFIFO() || input.isFile() || input.isSocket();
  } catch {
    return false; // stdin was closed
  }
}

/** All of stdin. A pipe that nobody closes would be waited for in vain, so after a while it says what it waits for. */
async function readStdin(signal: AbortSignal): Promise<string> {
  const { stdin } = process;
  const stop = () => stdin.destroy(signal.reason);
  signal.addEventListener('abort', stop, { once: true });
  const say = setTimeout(() => {
    if (!stdin.isTTY) console.error('Reading stdin until it ends… (add </dev/null if there is nothing to read)');
  }, SAY_AFTER_MS);
  const chunks: Buffer[] = [];
  let bytes = 0;
  try {
    signal.throwIfAborted();
    for await (const chunk of stdin) {
      chunks.push(chunk);
      bytes += chunk.length;
      if (bytes > MAX_PROMPT_BYTES)
        throw new InputError(`stdin has more than ${formatFileSize(MAX_PROMPT_BYTES)}, which is no prompt.`);
    }
  } finally {
    clearTimeout(say);
    signal.removeEventListener('abort', stop);
  }
  return decode(Buffer.concat(chunks), 'stdin');
}
