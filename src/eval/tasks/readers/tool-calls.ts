/** Tool calls: a question, the tools that the model has, and the calls that are right. */
import type { Tool } from '../../../chat/answer.ts';
import { checkTools } from '../../../chat/tools.ts';
import type { ToolCall } from '../../../model/template.ts';
import { describeValue, isPlainObject } from '../../../util/describe-value.ts';
import { type DataRecord, readRecords } from '../data-file.ts';
import type { Question, TaskSource } from '../task.ts';
import { messagesOf } from './jsonl.ts';

/** JSON with sorted keys: equal for equal values. */
function canonicalJson(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(canonicalJson).join(',')}]`;
  if (!isPlainObject(value)) return JSON.stringify(value);
  const entries = Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1));
  return `{${entries.map(([key, entry]) => `${JSON.stringify(key)}:${canonicalJson(entry)}`).join(',')}}`;
}

interface Call {
  name: string;
  arguments: unknown;
}

/** Calls in any order: models write independent calls in either. */
const canonicalCalls = (calls: readonly Call[]): string => calls.map(canonicalJson).sort().join('\n');

const parseCall = ({ function: { name, arguments: given } }: ToolCall): Call => {
  if (typeof given !== 'string') return { name, arguments: given };
  try {
    return { name, arguments: JSON.parse(given) };
  } catch {
    return { name, arguments: given };
  }
};

function callsOf(record: DataRecord): Call[] {
  const calls = record.value('calls');
  if (!Array.isArray(calls)) return record.fail(`"calls" must be an array; got ${describeValue(calls)}.`);
  return calls.map(call => {
    if (!isPlainObject(call) || typeof call.name !== 'string' || !isPlainObject(call.arguments))
      return record.fail('each of "calls" must have a name and an object of arguments.');
    return { name: call.name, arguments: call.arguments };
  });
}

function toolsOf(record: DataRecord): readonly Tool[] {
  const tools = record.value('tools');
  try {
    checkTools(tools, 'tools');
  } catch (error) {
    return record.fail((error as Error).message);
  }
  return tools as readonly Tool[];
}

/** An empty list of calls means that the model should answer in words. */
export const readToolCalls = ({ data }: TaskSource): Question[] =>
  readRecords(data).map(record => {
    const expected = canonicalCalls(callsOf(record));
    return {
      id: record.has('id') ? record.scalar('id') : String(record.line),
      prompt: messagesOf(record),
      tools: toolsOf(record),
      maxTokens: 512,
      read: ({ toolCalls = [] }) => canonicalCalls(toolCalls.map(parseCall)),
      score: said => (said === expected ? 1 : 0),
    };
  });
