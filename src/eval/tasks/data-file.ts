/** Data files of tasks: lines of JSON, checked field by field, with errors that name the line. */
import { readFile } from 'node:fs/promises';
import { describeValue, isPlainObject } from '../../util/describe-value.ts';
import { FormatError, InputError } from '../../util/errors.ts';

/** The text of a data file. */
export interface DataFile {
  path: string;
  text: string;
}

export async function readDataFile(path: string): Promise<DataFile> {
  const bytes = await readFile(path).catch((error: NodeJS.ErrnoException) => {
    throw new InputError(`${path} cannot be read (${error.code ?? error.message}). Check its name.`);
  });
  try {
    return { path, text: new TextDecoder('utf-8', { fatal: true }).decode(bytes) };
  } catch {
    throw new FormatError(`${path} is not UTF-8 text.`);
  }
}

/** One line of a data file. Its methods throw a FormatError that names the line and the field. */
export interface DataRecord {
  readonly line: number;
  has(name: string): boolean;
  string(name: string): string;
  /** A string, or a number as text. */
  scalar(name: string): string;
  strings(name: string): string[];
  /** Any value; undefined if it is absent. */
  value(name: string): unknown;
  fail(problem: string): never;
}

export const lineError = ({ path }: DataFile, line: number, problem: string): FormatError =>
  new FormatError(`${path}, line ${line}: ${problem}`);

/** The objects of a file with one JSON object per line; empty lines are skipped. */
export function readRecords(file: DataFile): DataRecord[] {
  const lines = file.text.replace(/^\ufeff/, '').split('\n');
  const records = lines.flatMap((text, i) => (text.trim() === '' ? [] : [parseRecord(file, text, i + 1)]));
  if (records.length === 0) throw new FormatError(`${file.path} has no items.`);
  return records;
}

function parseRecord(file: DataFile, text: string, line: number): DataRecord {
  const fail = (problem: string): never => {
    throw lineError(file, line, problem);
  };
  const fields = parseObject(text, fail);
  const value = (name: string) => (Object.hasOwn(fields, name) ? fields[name] : undefined);
  const check = <T>(name: string, expected: string, is: (value: unknown) => value is T): T => {
    const found = value(name);
    return is(found) ? found : fail(`"${name}" must be ${expected}; got ${describeValue(found)}.`);
  };
  return {
    line,
    has: name => value(name) !== undefined && value(name) !== null,
    string: name => check(name, 'a string', isString),
    scalar: name => String(check(name, 'a string or a number', isScalar)),
    strings: name => check(name, 'an array of strings, not empty', isStrings),
    value,
    fail,
  };
}

function parseObject(text: string, fail: (problem: string) => never): Record<string, unknown> {
  let parsed: unknown;
  try {
    parsed = JSON.parse(text);
  } catch {
    return fail('is not JSON. Each line must be one JSON object.');
  }
  return isPlainObject(parsed) ? parsed : fail(`must be a JSON object; got ${describeValue(parsed)}.`);
}

const isString = (value: unknown): value is string => typeof value === 'string';
const isScalar = (value: unknown): value is string | number =>
  typeof value === 'string' || (typeof value === 'number' && Number.isFinite(value));
const isStrings = (value: unknown): value is string[] =>
  Array.isArray(value) && value.length > 0 && value.every(isString);
