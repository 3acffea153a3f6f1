/** LongBench: `input`, `context` and `answers`, with the metric of each of its data sets. */
import { type DataRecord, readRecords } from '../data-file.ts';
import { bestScore, type MetricName } from '../metrics.ts';
import { promptFor, type Question, type TaskAnswer, type TaskSource } from '../task.ts';

/** How the items of a data set are asked and scored. */
interface Kind {
  metric: MetricName;
  /** The whole text of the prompt. */
  write(context: string, input: string): string;
  /** Continued as text even by chat models, since the context shows the format. */
  isPlain?: boolean;
  read?(answer: TaskAnswer): string;
}

const firstLine = ({ text }: TaskAnswer) => text.trimStart().split('\n')[0];

const question: Kind = {
  metric: 'f1',
  write: (context, input) =>
    `${context}\n\nAnswer the question from the text above, in as few words as possible.\n\nQuestion: ${input}`,
};
const summary: Kind = {
  metric: 'rouge-l',
  write: (context, input) => `${context}\n\n${input || 'Summarize the text above in one page or less.'}`,
};
const examples = (metric: MetricName): Kind => ({
  metric,
  write: (context, input) => `${context}\n${input}`,
  isPlain: true,
  read: firstLine,
});
const count: Kind = {
  metric: 'count',
  write: context =>
    `${context}\n\nSome of these paragraphs may be repeated. How many different paragraphs are there? Answer with the number only.`,
};
const retrieval: Kind = {
  metric: 'retrieval',
  write: (context, input) =>
    `${context}\n\nWhich paragraph does this summary describe? Answer with its name only, such as "Paragraph 1".\n\n${input}`,
};
const code: Kind = {
  metric: 'edit',
  write: (context, input) => context + input,
  isPlain: true,
  read: ({ text }) => text.split('\n').find(line => line.trim() !== '' && !/[`#]|\/\//.test(line)) ?? '',
};

/** Kind and max tokens of an answer, by data set; those of LongBench-E have the suffix `_e`. */
const DATA_SETS: Record<string, readonly [kind: Kind, maxTokens: number]> = {
  narrativeqa: [question, 128],
  qasper: [question, 128],
  multifieldqa_en: [question, 64],
  multifieldqa_zh: [question, 64],
  hotpotqa: [question, 32],
  '2wikimqa': [question, 32],
  musique: [question, 32],
  dureader: [{ ...question, metric: 'rouge-l' }, 128],
  gov_report: [summary, 512],
  qmsum: [summary, 512],
  multi_news: [summary, 512],
  vcsum: [summary, 512],
  trec: [examples('classification'), 64],
  triviaqa: [examples('f1'), 32],
  samsum: [examples('rouge-l'), 128],
  lsht: [examples('classification'), 64],
  passage_count: [count, 32],
  passage_retrieval_en: [retrieval, 32],
  passage_retrieval_zh: [retrieval, 32],
  lcc: [code, 64],
  'repobench-p': [code, 64],
};

function kindOf(record: DataRecord): readonly [name: string, kind: Kind, maxTokens: number] {
  const name = record.string('dataset').replace(/_e$/, '');
  if (!Object.hasOwn(DATA_SETS, name))
    record.fail(`"${name.slice(0, 60)}" is not a data set of LongBench: ${Object.keys(DATA_SETS).join(', ')}.`);
  return [name, ...DATA_SETS[name]];
}

/** Tokens of the instruction, the question and the chat template. */
const OTHER_TOKENS = 512;

export const readLongBench = ({ data, chat, cutToFit }: TaskSource): Question[] =>
  readRecords(data).map(record => {
    const [group, { metric, write, isPlain, read }, maxTokens] = kindOf(record);
    const answers = record.strings('answers');
    const classes = record.has('all_classes') ? record.strings('all_classes') : [];
    const text = write(cutToFit(record.string('context'), maxTokens + OTHER_TOKENS), record.string('input'));
    return {
      id: record.has('_id') ? record.string('_id') : String(record.line),
      group,
      prompt: isPlain ? text : promptFor(text, chat),
      maxTokens,
      read: read ?? (({ text }) => text),
      score: said => bestScore(metric, said, answers, classes),
    };
  });
