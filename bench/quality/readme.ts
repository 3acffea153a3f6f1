/** The table of README.md: the summary of the largest model, between two comments. */
import { InputError } from '../../src/util/errors.ts';

const [BEGIN, END] = ['<!-- quality:begin -->', '<!-- quality:end -->'];

export function replaceTable(readme: string, path: string, content: string): string {
  const [start, end] = [readme.indexOf(BEGIN), readme.indexOf(END)];
  if (start < 0 || end < start) throw new InputError(`--readme: ${path} has no ${BEGIN} followed by ${END}.`);
  return `${readme.slice(0, start + BEGIN.length)}\n\n${content}\n\n${readme.slice(end)}`;
}
