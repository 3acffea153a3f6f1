/** Tasks of one's own: lines of `{ prompt, answer, metric }`. */
import { checkMessages } from '../../../model/message.ts';
import type { ChatMessage } from '../../../model/template.ts';
import { type DataRecord, readRecords } from '../data-file.ts';
import { bestScore, type MetricName, metricNames } from '../metrics.ts';
import { promptFor, type Question, type TaskSource } from '../task.ts';

const DEFAULT_MAX_TOKENS = 256;

/** The messages of a line: `messages`, or `prompt` as the user's. */
export function messagesOf(record: DataRecord): readonly ChatMessage[] {
  if (!record.has('messages')) return [{ role: 'user', content: record.string('prompt') }];
  const messages = record.value('messages');
  try {
    checkMessages(messages);
  } catch (error) {
    return record.fail((error as Error).message);
  }
  return messages;
}

function metricOf(record: DataRecord): MetricName {
  if (!record.has('metric')) return 'contains';
  const name = record.string('metric');
  return (
    metricNames.find(metric => metric === name) ??
    record.fail(`"${name.slice(0, 60)}" is not a metric. Use one of ${metricNames.join(', ')}.`)
  );
}

function maxTokensOf(record: DataRecord): number {
  if (!record.has('maxTokens')) return DEFAULT_MAX_TOKENS;
  const count = Number(record.scalar('maxTokens'));
  return Number.isSafeInteger(count) && count > 0 ? count : record.fail('"maxTokens" must be an integer, 1 or more.');
}

export const readJsonl = ({ data, chat }: TaskSource): Question[] =>
  readRecords(data).map(record => {
    const metric = metricOf(record);
    const answers = Array.isArray(record.value('answer')) ? record.strings('answer') : [record.scalar('answer')];
    const classes = record.has('classes') ? record.strings('classes') : [];
    return {
      id: record.has('id') ? record.scalar('id') : String(record.line),
      group: record.has('group') ? record.scalar('group') : undefined,
      prompt: record.has('messages') || chat ? messagesOf(record) : promptFor(record.string('prompt'), false),
      maxTokens: maxTokensOf(record),
      stop: record.has('stop') ? record.strings('stop') : undefined,
      read: ({ text }) => text,
      score: said => bestScore(metric, said, answers, classes),
    };
  });
