/** The texts of `--texts`: a folder, or a list of `name=path[:special][:skip]`. */
import { readdir, stat } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { readTextFile } from '../../src/cli/read-text.ts';
import type { Tokenizer } from '../../src/model/tokenizer.ts';
import { InputError } from '../../src/util/errors.ts';
import type { TextInfo } from './results.ts';

export interface TextSpec extends Pick<TextInfo, 'special' | 'skip'> {
  /** The kind of text: a column of the tables. */
  name: string;
  path: string;
}

export interface Text extends TextSpec {
  ids: readonly number[];
  info: TextInfo;
}

/** In a folder, every .txt file is a kind of text; special tokens are parsed in those that end in .special.txt. */
export async function parseTexts(option: string): Promise<TextSpec[]> {
  const isFolder = await stat(option).then(
    found => found.isDirectory(),
    () => false,
  );
  if (!isFolder) return option.split(',').map(parseText);
  const files = (await readdir(option)).filter(file => file.endsWith('.txt')).sort();
  if (files.length === 0) throw new InputError(`--texts ${option} has no .txt files.`);
  return files.map(file => ({
    name: file.replace(/(\.special)?\.txt$/, ''),
    path: join(option, file),
    special: file.endsWith('.special.txt'),
    skip: 0,
  }));
}

export function parseText(text: string): TextSpec {
  const [, name, path, special, skip = '0'] = text.match(/^([\w -]+)=(.+?)(:special)?(?::(\d+))?$/) ?? [];
  if (name === undefined)
    throw new InputError(`--texts: "${text}" must be name=path, optionally with :special and :ROWS-TO-SKIP.`);
  return { name, path, special: special !== undefined, skip: Number(skip) };
}

/** Tokenizes a text and checks that it has enough rows. */
export async function loadText(spec: TextSpec, tokenizer: Tokenizer, context: number, rows: number): Promise<Text> {
  const { name, path, special, skip } = spec;
  const text = await readTextFile(path, '--texts');
  const ids = tokenizer.encode(text, { bos: tokenizer.addBos, parseSpecialTokens: special });
  const available = Math.floor(ids.length / context) - skip;
  if (available < rows)
    throw new InputError(
      `${path} has ${Math.max(0, available)} rows of ${context} tokens after the skipped ${skip}; --rows ${rows} needs ` +
        'more. Use a longer text or fewer rows.',
    );
  const digest = await crypto.subtle.digest('SHA-256', Uint32Array.from(ids));
  const hash = Buffer.from(digest).toString('hex').slice(0, 16);
  return { name, path, special, skip, ids, info: { file: basename(path), special, skip, hash } };
}
