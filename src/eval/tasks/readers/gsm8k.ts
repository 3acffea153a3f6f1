/** GSM8K: grade-school problems whose worked answers end in `#### NUMBER`. */
import { type DataRecord, readRecords } from '../data-file.ts';
import { boxedAnswer } from '../math-answer.ts';
import { numbersIn } from '../metrics.ts';
import { fewShotPrompt, type Question, type TaskSource } from '../task.ts';

const INSTRUCTION = 'Solve this step by step. End with a line "#### " and the final number.';

/** The calculator annotations of the data set: `<<48/2=24>>`. */
const withoutAnnotations = (text: string) => text.replace(/<<[^<>]*>>/g, '');

/** A number directly after `####`, as in the data set's own answers; a step with a number, as in `#### 1. ...`, is none. */
const MARKED = /####[ \t*]*(-?)[$€£]?[ \t]*(-?)(\d[\d,]*(?:\.\d+)?|\.\d+)(?![\d,]|[.:)][ \t*]+\S)/g;

/** The last such number; of text, where a model may go on with another question, the first; else a boxed or the last one. */
function finalNumber(text: string, chat: boolean): string {
  const marked = [...text.matchAll(MARKED)].map(([, sign, inner, digits]) => sign + inner + digits.replaceAll(',', ''));
  const number = numbersIn(marked.at(chat ? -1 : 0) ?? boxedAnswer(text) ?? '')[0] ?? numbersIn(text).at(-1);
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
    const expected = finalNumber(answer, chat);
    return {
      id: String(record.line),
      prompt: fewShotPrompt(examples, examples.length > 0 ? question : `${question}\n\n${INSTRUCTION}`, chat),
      maxTokens: 512,
      stop: chat ? [] : ['\nQuestion:'],
      read: ({ text }) => finalNumber(text, chat),
      score: said => (said === expected ? 1 : 0),
    };
  });
}
