/** LongEval lines, of LongChat: recall the number of one line among many. */
import { readRecords } from '../data-file.ts';
import { numbersIn } from '../metrics.ts';
import { promptFor, type Question, type TaskSource } from '../task.ts';

export const readLongEval = ({ data, chat }: TaskSource): Question[] =>
  readRecords(data).map(record => {
    const expected = record.scalar('expected_number');
    return {
      id: String(record.line),
      group: record.has('num_lines') ? `${record.scalar('num_lines')} lines` : undefined,
      prompt: promptFor(record.string('prompt').trimEnd(), chat),
      maxTokens: 64,
      stop: chat ? [] : ['\n'],
      read: ({ text }) => String(numbersIn(text.replace(/[<>]/g, ' ')).at(-1) ?? ''),
      score: said => (said === String(Number(expected)) ? 1 : 0),
    };
  });
