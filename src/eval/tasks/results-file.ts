/** A file of results, one JSON line per finished item, so that a stopped evaluation continues where it was. */
import { type FileHandle, open, readFile } from 'node:fs/promises';
import { isPlainObject } from '../../util/describe-value.ts';
import { FormatError, InputError } from '../../util/errors.ts';
import type { TaskAnswer } from './task.ts';

/** The result of one item. */
export interface ItemResult {
  id: string;
  group?: string;
  /** Of a question: what the model wrote, from which `said` and `scores` are read again when the evaluation continues. */
  answers?: TaskAnswer[];
  /** What counts of each answer; of a choice, the index of the ending. */
  said: string[];
  /** The score of each answer, 0 to 1; of a choice, by the mean log probability per token. */
  scores: number[];
  /** Of a choice: its score by the total log probability, which prefers short endings. */
  unnormalized?: number;
  /** Tokens that were generated, or of a choice, read. */
  tokens: number;
}

export interface ResultsFile {
  /** The result that the file has for a key. */
  get(key: string): ItemResult | undefined;
  add(key: string, result: ItemResult, labels: { task: string; kv: string }): Promise<void>;
  close(): Promise<void>;
}

/** Results in memory only, for evaluations without a file. */
export const noResults: ResultsFile = { get: () => undefined, add: async () => {}, close: async () => {} };

/** Opens a file of results, or creates it. A last line that was not written to its end is dropped. */
export async function openResults(path: string): Promise<ResultsFile> {
  const text = await readFile(path, 'utf8').catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return '';
    throw new InputError(`${path} cannot be read (${error.code ?? error.message}). Give the name of another file.`);
  });
  const end = text.lastIndexOf('\n') + 1;
  const known = new Map<string, ItemResult>();
  for (const [i, line] of text.slice(0, end).split('\n').slice(0, -1).entries()) {
    const { key, result } = parseLine(line) ?? fail(path, i + 1);
    known.set(key, result);
  }
  // Never shorten a file that is not ours.
  if (end < text.length && !text.slice(end).startsWith('{"key":')) fail(path, known.size + 1);
  const file = await open(path, 'a').catch((error: NodeJS.ErrnoException) => {
    throw new InputError(`${path} cannot be written (${error.code ?? error.message}). Give the name of another file.`);
  });
  await file.truncate(Buffer.byteLength(text.slice(0, end)));
  return {
    get: key => known.get(key),
    add: createAppender(file, known),
    close: () => file.close(),
  };
}

function createAppender(file: FileHandle, known: Map<string, ItemResult>): ResultsFile['add'] {
  let last: Promise<unknown> = Promise.resolve();
  return async (key, result, labels) => {
    known.set(key, result);
    // One after the other: lines must not mix.
    last = last.then(() => file.appendFile(`${JSON.stringify({ key, ...labels, ...result })}\n`));
    await last;
  };
}

function fail(path: string, line: number): never {
  throw new FormatError(`${path}, line ${line}: is not a result of an evaluation. Give the name of a new file.`);
}

function parseLine(line: string): { key: string; result: ItemResult } | undefined {
  try {
    const parsed: unknown = JSON.parse(line);
    if (!isPlainObject(parsed)) return undefined;
    const { key, task: _task, kv: _kv, ...result } = parsed;
    return typeof key === 'string' && isResult(result) ? { key, result } : undefined;
  } catch {
    return undefined;
  }
}

const isScore = (value: unknown) => typeof value === 'number' && value >= 0 && value <= 1;

const isAnswer = (value: unknown): value is TaskAnswer =>
  isPlainObject(value) &&
  typeof value.text === 'string' &&
  (value.toolCalls === undefined || (Array.isArray(value.toolCalls) && value.toolCalls.every(isCall)));

const isCall = (value: unknown) =>
  isPlainObject(value) && isPlainObject(value.function) && typeof value.function.name === 'string';

const isResult = (value: object): value is ItemResult => {
  const { id, answers, said, scores, tokens, unnormalized } = value as Partial<ItemResult>;
  return (
    typeof id === 'string' &&
    Array.isArray(said) &&
    said.every(text => typeof text === 'string') &&
    Array.isArray(scores) &&
    scores.length === said.length &&
    scores.length > 0 &&
    scores.every(isScore) &&
    (answers === undefined || (Array.isArray(answers) && answers.length === said.length && answers.every(isAnswer))) &&
    (unnormalized === undefined || isScore(unnormalized)) &&
    typeof tokens === 'number'
  );
};
