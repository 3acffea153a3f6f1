/** Reads text from files and from stdin. */
import { fstatSync } from 'node:fs';
import { readFile, stat } from 'node:fs/promises';
import { InputError } from '../util/errors.ts';
import { formatFileSize } from '../util/units.ts';

/** More than any context holds. */
const MAX_PROMPT_BYTES = 64e6;
const STDIN_HINT_MS = 2000;

/** Reads a UTF-8 file. `hint` names the option that gave the path. */
export async function readTextFile(path: string, hint: string, maxBytes = Number.POSITIVE_INFINITY): Promise<string> {
  const fail = (error: NodeJS.ErrnoException) => {
    throw new InputError(`${path} cannot be read (${error.code ?? error.message}). Check ${hint}.`);
  };
  const { size } = await stat(path).catch(fail);
  if (size > maxBytes)
    throw new InputError(
      `${path} is ${formatFileSize(size)}; a prompt file may have at most ${formatFileSize(maxBytes)}.`,
    );
  return decode(await readFile(path).catch(fail), path);
}

export const readPromptFile = (path: string, hint: string): Promise<string> =>
  readTextFile(path, hint, MAX_PROMPT_BYTES);

function decode(bytes: Uint8Array, name: string): string {
  try {
    // NUL is valid UTF-8 but a sign of a binary file.
    if (!bytes.includes(0)) return new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch {}
  throw new InputError(`${name} is not UTF-8 text. Convert it to plain text first.`);
}

export interface PromptParts {
  /** The prompt on the command line; `-` reads stdin. */
  argument?: string;
  files?: readonly string[];
  signal: AbortSignal;
}

/** Joins files, piped input and the prompt, in this order. */
export async function readPrompt({ argument, files = [], signal }: PromptParts): Promise<string> {
  const prompt = argument === '-' ? undefined : argument;
  if (argument === undefined && files.length === 0 && process.stdin.isTTY)
    throw new InputError('No prompt was given. Example: kvasir run MODEL "Who was Kvasir?"');
  const documents = await Promise.all(files.map(async path => ({ path, text: await readPromptFile(path, '--file') })));
  const piped = argument === '-' || hasPipedInput() ? await readStdin(signal) : '';
  if (piped.trim() === '' && (argument === '-' || (prompt === undefined && files.length === 0)))
    throw new InputError('The prompt from stdin is empty. Pipe some text in, or give a prompt.');
  return joinPromptParts(documents, piped, prompt);
}

export interface Document {
  path: string;
  text: string;
}

/** Joins documents and texts with blank lines. Several documents each start with their path. */
export function joinPromptParts(documents: readonly Document[], ...texts: (string | undefined)[]): string {
  const named = documents.map(({ path, text }) => (documents.length > 1 ? `${path}\n${text}` : text));
  const parts = [...named, ...texts].filter(text => text !== undefined && text.trim() !== '');
  return parts.map((text, i) => (i < parts.length - 1 ? text?.trimEnd() : text)).join('\n\n');
}

/** Whether stdin is a pipe, a file or a socket; not a terminal, and not /dev/null (cron, services). */
function hasPipedInput(): boolean {
  if (process.stdin.isTTY) return false;
  try {
    const input = fstatSync(0);
    return input.isFIFO() || input.isFile() || input.isSocket();
  } catch {
    return false; // stdin was closed
  }
}

/** Reads stdin to its end. Prints a hint after a while, because an inherited pipe may never close. */
async function readStdin(signal: AbortSignal): Promise<string> {
  const { stdin } = process;
  const stop = () => stdin.destroy(signal.reason);
  signal.addEventListener('abort', stop, { once: true });
  const hint = setTimeout(() => {
    if (!stdin.isTTY) console.error('Waiting for the end of stdin… (add </dev/null if there is no input)');
  }, STDIN_HINT_MS);
  const chunks: Buffer[] = [];
  let bytes = 0;
  try {
    signal.throwIfAborted();
    for await (const chunk of stdin) {
      chunks.push(chunk);
      bytes += chunk.length;
      if (bytes > MAX_PROMPT_BYTES)
        throw new InputError(`stdin has more than ${formatFileSize(MAX_PROMPT_BYTES)}, the limit of a prompt.`);
    }
  } finally {
    clearTimeout(hint);
    signal.removeEventListener('abort', stop);
  }
  return decode(Buffer.concat(chunks), 'stdin');
}
