/** HellaSwag in the text format of llama.cpp: six lines per item, which are the context, the index of the right ending, and four endings. */
import { lineError } from '../data-file.ts';
import type { Choice, TaskSource } from '../task.ts';

const ENDINGS = 4;
const LINES = 2 + ENDINGS;

export function readHellaswag({ data }: TaskSource): Choice[] {
  const lines = data.text.replace(/\r?\n$/, '').split(/\r?\n/);
  if (lines.length % LINES !== 0)
    throw lineError(
      data,
      lines.length,
      `the file ends within an item: it has ${lines.length} lines, and items have ${LINES} (context, index, ${ENDINGS} endings).`,
    );
  return Array.from({ length: lines.length / LINES }, (_, item) => {
    const at = item * LINES;
    const [context, correct, ...endings] = lines.slice(at, at + LINES);
    if (!/^[0-3]$/.test(correct))
      throw lineError(data, at + 2, `must be the index of the right ending, 0 to 3; got "${correct.slice(0, 60)}".`);
    const empty = [context, correct, ...endings].findIndex(line => line.trim() === '');
    if (empty >= 0) throw lineError(data, at + 1 + empty, 'is empty.');
    return {
      id: String(item + 1),
      context,
      endings: endings.map(ending => ` ${ending}`),
      correct: Number(correct),
    };
  });
}
