/** The tasks by name: who reads their data, and where that comes from. */
import { InputError } from '../../util/errors.ts';
import { readGrammar } from '../needle/document.ts';
import { readChoice } from './readers/choice.ts';
import { readGsm8k } from './readers/gsm8k.ts';
import { readHellaswag } from './readers/hellaswag.ts';
import { readHumanEval } from './readers/humaneval.ts';
import { readJsonl } from './readers/jsonl.ts';
import { readLongBench } from './readers/longbench.ts';
import { readLongEval } from './readers/longeval.ts';
import { readMath } from './readers/math.ts';
import { readToolCalls } from './readers/tool-calls.ts';
import { createRuler, type RulerName, type RulerSource, rulerNames } from './ruler.ts';
import type { RunProgram } from './run-program.ts';
import type { Choice, Question, Task, TaskSource } from './task.ts';

interface Reader {
  /** What the data file is. */
  origin: string;
  /** Whether worked examples may come before its items. */
  takesShots?: true;
  read(source: TaskSource, run?: RunProgram): Question[];
}

const questionReaders: Record<string, Reader> = {
  gsm8k: { origin: 'test.jsonl of github.com/openai/grade-school-math', takesShots: true, read: readGsm8k },
  math: {
    origin: 'MATH-500 (HuggingFaceH4/MATH-500), AIME or AMC problems as lines of { problem, answer }',
    takesShots: true,
    read: readMath,
  },
  longeval: { origin: 'the lines task of LongEval (github.com/DachengLi1/LongChat)', read: readLongEval },
  longbench: { origin: 'one or more files of LongBench (THUDM/LongBench), joined', read: readLongBench },
  humaneval: { origin: 'HumanEval.jsonl of github.com/openai/human-eval', read: readHumanEval },
  'tool-calls': { origin: 'lines of { prompt, tools, calls: [{ name, arguments }] }', read: readToolCalls },
  jsonl: { origin: 'lines of { prompt, answer, metric } of your own', read: readJsonl },
};

const choiceReaders: Record<string, Omit<Reader, 'read'> & { read(source: TaskSource): Choice[] }> = {
  hellaswag: { origin: 'hellaswag_val_full.txt of github.com/klosax/hellaswag_text_data', read: readHellaswag },
  choice: {
    origin: 'MMLU, ARC or others as lines of { question, choices: [...], answer: index or letter }',
    takesShots: true,
    read: readChoice,
  },
};

/** The names of all tasks. */
export const taskNames: readonly string[] = [
  ...Object.keys(questionReaders),
  ...Object.keys(choiceReaders),
  ...rulerNames,
];

/** Whether the endings of a task are given, and the model writes nothing. */
export const isChoiceTask = (name: string): boolean => Object.hasOwn(choiceReaders, name);

/** Whether a task writes its own documents. */
export const isGenerated = (name: string): name is RulerName => (rulerNames as readonly string[]).includes(name);

export type TaskInput = Omit<TaskSource, 'data'> & Partial<Pick<TaskSource, 'data'>> & Omit<RulerSource, 'grammar'>;

export async function createTask(name: string, input: TaskInput, run?: RunProgram): Promise<Task> {
  if (isGenerated(name)) return { name, questions: createRuler(name, { ...input, grammar: await readGrammar() }) };
  if (!taskNames.includes(name))
    throw new InputError(`Unknown task "${name}". Use one of ${taskNames.join(', ')}.`, { option: 'task' });
  const reader = questionReaders[name] ?? choiceReaders[name];
  const { data, shots } = input;
  if (shots && !reader.takesShots)
    throw new InputError(option => `${name} takes no worked examples. Leave out ${option('shots')}.`, {
      option: 'shots',
    });
  if (!data)
    throw new InputError(option => `${name} needs a data file: ${reader.origin}. Give its path as ${option('data')}.`, {
      option: 'data',
    });
  const source = { ...input, data };
  return isChoiceTask(name)
    ? { name, choices: choiceReaders[name].read(source) }
    : { name, questions: questionReaders[name].read(source, run) };
}
