/** Multiple choice, as in MMLU and ARC: the model prefers one of the letters after the question and its options. */
import { isPlainObject } from '../../../util/describe-value.ts';
import { type DataRecord, readRecords } from '../data-file.ts';
import type { Choice, TaskSource } from '../task.ts';

const LETTERS = 'ABCDEFGHIJKLMNOPQRSTUVWXYZ';

/** An array of texts; in ARC an object `{ text, label }` of two arrays. */
function optionsOf(record: DataRecord): { texts: string[]; labels?: string[] } {
  const choices = record.value('choices');
  const isArc = isPlainObject(choices);
  const texts = isArc ? choices.text : choices;
  const labels = isArc ? choices.label : undefined;
  const areTexts = (value: unknown): value is string[] =>
    Array.isArray(value) && value.length > 1 && value.every(one => typeof one === 'string');
  if (!areTexts(texts) || texts.length > LETTERS.length)
    return record.fail(`"choices" must have 2 to ${LETTERS.length} texts.`);
  return { texts, labels: areTexts(labels) ? labels : undefined };
}

/** The right option: an index, or a letter, or a label of ARC. */
function correctIndex(record: DataRecord, labels: readonly string[], count: number): number {
  const answer = record.scalar(record.has('answerKey') ? 'answerKey' : 'answer');
  const labelled = labels.indexOf(answer);
  const index = labelled >= 0 ? labelled : Number(answer);
  return Number.isInteger(index) && index >= 0 && index < count && answer.trim() !== ''
    ? index
    : record.fail(`the answer must be an index from 0 to ${count - 1} or a letter; got "${answer.slice(0, 60)}".`);
}

function readQuestion(record: DataRecord) {
  const { texts, labels = [...LETTERS.slice(0, texts.length)] } = optionsOf(record);
  const lines = texts.map((text, i) => `${LETTERS[i]}. ${text}`);
  return {
    text: `Question: ${record.string('question').trim()}\n${lines.join('\n')}\nAnswer:`,
    letters: texts.map((_, i) => ` ${LETTERS[i]}`),
    correct: correctIndex(record, labels, texts.length),
  };
}

export function readChoice({ data, shots }: TaskSource): Choice[] {
  const examples = (shots ? readRecords(shots) : []).map(readQuestion);
  const before = examples.map(({ text, letters, correct }) => `${text}${letters[correct]}\n\n`).join('');
  return readRecords(data).map(record => {
    const { text, letters, correct } = readQuestion(record);
    return {
      id: record.has('id') ? record.scalar('id') : String(record.line),
      group: record.has('subject') ? record.string('subject') : undefined,
      context: before + text,
      endings: letters,
      correct,
    };
  });
}
