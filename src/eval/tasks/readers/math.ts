/** MATH-500, AIME, AMC: a problem and its final answer, which the model puts in \boxed{}. */
import { type DataRecord, readRecords } from '../data-file.ts';
import { boxedAnswer, isSameMath, normalizeMath } from '../math-answer.ts';
import { numbersIn } from '../metrics.ts';
import { fewShotPrompt, type Question, type TaskSource } from '../task.ts';

const INSTRUCTION = 'Solve this step by step, and put the final answer in \\boxed{}.';

const problemOf = (record: DataRecord) => record.string(record.has('problem') ? 'problem' : 'question');

/** The field `answer`, or what is boxed in the solution. */
function answerOf(record: DataRecord): string {
  if (record.has('answer')) return record.scalar('answer');
  return boxedAnswer(record.string('solution')) ?? record.fail('"solution" has no \\boxed{} answer.');
}

const solutionOf = (record: DataRecord) =>
  record.has('solution') ? record.string('solution') : `\\boxed{${record.scalar('answer')}}`;

export function readMath({ data, shots, chat }: TaskSource): Question[] {
  const examples = shots
    ? readRecords(shots).map(record => ({ question: problemOf(record), answer: solutionOf(record) }))
    : [];
  return readRecords(data).map(record => {
    const problem = problemOf(record);
    const answer = answerOf(record);
    const question = examples.length > 0 ? problem : `${problem}\n\n${INSTRUCTION}`;
    return {
      id: record.has('unique_id') ? record.string('unique_id') : String(record.line),
      group: record.has('subject') ? record.string('subject') : undefined,
      prompt: fewShotPrompt(examples, question, chat, ['Problem:', 'Solution:']),
      maxTokens: 2048,
      stop: chat ? [] : ['\nProblem:'],
      read: ({ text }) => normalizeMath(boxedAnswer(text) ?? String(numbersIn(text).at(-1) ?? '')),
      score: said => (isSameMath(said, answer) ? 1 : 0),
    };
  });
}
