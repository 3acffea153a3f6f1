/** GSM8K: grade-school problems whose worked answers end in `#### NUMBER`. */
import { type DataRecord, readRecords } from '../data-file.ts';
import { boxedAnswer } from '../math-answer.ts';
import { numbersIn } from '../metrics.ts';
import { fewShotPrompt, type Question, type TaskSource } from '../task.ts';

const INSTRUCTION = 'Solve this step by step. End with a line "#### " and the final number.';

/** The calculator annotations of the data set: `<<48/2=24>>`. */
const withoutAnnotations = (text: string) => text.replace(/<<[^<>]*>>/g, '');

/** The first number after `####`, where a plain model may go on with another question; else a boxed or the last one. */
function finalNumber(text: string): string {
  const marked = text.match(/####\s*([^\n]*)/)?.[1];
  const number = numbersIn(marked ?? boxedAnswer(text) ?? '')[0] ?? numbersIn(text).at(-1);
  return number === undefined ? '' : String(number);
}

function readProblem(record: DataRecord) {
  const answer = record.string('answer');
  if (!/####\s*[^\s\d]?-?[\d.,]*\d\s*$/.test(answer))
    record.fail('"answer" must end in "#### " and a number, as in GSM8K.');
  return { question: record.string('question'), answer: withoutAnnotations(answer) };
}

export function readGsm8k({ data, shots, chat }: TaskSource): Question[] {
  const examples = shots ? readRecords(shots).map(readProblem) : [];
  return readRecords(data).map(record => {
    const { question, answer } = readProblem(record);
    const expected = finalNumber(answer);
    return {
      id: String(record.line),
      prompt: fewShotPrompt(examples, examples.length > 0 ? question : `${question}\n\n${INSTRUCTION}`, chat),
      maxTokens: 512,
      stop: chat ? [] : ['\nQuestion:'],
      read: ({ text }) => finalNumber(text),
      score: said => (said === expected ? 1 : 0),
    };
  });
}
