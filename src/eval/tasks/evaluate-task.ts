/** Evaluation of KV cache formats on a task: how many answers are right with each, against f16 on the same questions. */
import { usesProfile } from '../../codec/kv.ts';
import type { ModelFile } from '../../engine/engine.ts';
import { modelFingerprint } from '../../engine/model-fingerprint.ts';
import { loadRules } from '../../engine/options.ts';
import { packedPages } from '../../kernel/visibility.ts';
import { defaultContext } from '../../model/config.ts';
import type { ModelInput } from '../../model/input.ts';
import { isAuto, parsePlanSpec } from '../../plan/auto.ts';
import type { Plan } from '../../plan/plan.ts';
import { isPlainObject } from '../../util/describe-value.ts';
import { InputError } from '../../util/errors.ts';
import { hashValue } from '../../util/hash-value.ts';
import { pick } from '../../util/pick.ts';
import { boolean, callback, checkOptions, integer, number, type Rule, rule, string } from '../../util/rules.ts';
import type { EvaluationContext } from '../evaluate.ts';
import { openForEvaluation, specs } from '../open.ts';
import { grade } from './answer-questions.ts';
import { createTask, isGenerated } from './create-task.ts';
import { readDataFile } from './data-file.ts';
import { type LoadSettings, measureItems, type TaskItem } from './measure-items.ts';
import { type ItemResult, noResults, openResults } from './results-file.ts';
import { createProgramRunner } from './run-program.ts';
import { type PlanResults, summarize, type TaskRow } from './summarize.ts';
import type { Task } from './task.ts';

/** Options of `evaluateTask`. */
export interface TaskOptions extends LoadSettings {
  /** The name of a task, such as `gsm8k`, or a task of your own. */
  task: string | Task;
  /** The codec specs to compare. f16 is always measured, and comes first. Default: the presets. */
  kv?: readonly string[];
  /** Path of the data set's file, in its own format. */
  data?: string;
  /** Path of worked examples in the same format, which come before each question. */
  shots?: string;
  /** Items to evaluate, from the first. Default: all. */
  limit?: number;
  /** Ask in the model's chat template, or as plain text. Default: the template, if the model has one. */
  chat?: boolean;
  /** Answers per question; an item's score is their mean. Default: 1. */
  samples?: number;
  /** Default: 0 for one answer, .7 for several. */
  temperature?: number;
  /** Of the first answer to each question, and of the documents of ruler tasks. Default: 1. */
  seed?: number;
  /** Let models think that can, before they answer, with room for it. Default: false; some think always. */
  think?: boolean;
  /** Max tokens of an answer. Default: enough for the task, and for thinking. */
  maxTokens?: number;
  /** Ruler tasks: lengths of the documents in tokens. Default: 1000, 2000 and 4000. */
  lengths?: readonly number[];
  /** Ruler tasks: questions per length. Default: 20. */
  documents?: number;
  /** Run the programs that the model writes, on this machine. Needed by `humaneval`. Default: false. */
  runCode?: boolean;
  /** A file to which each finished item is added; items that it has already are not run again. */
  results?: string;
  signal?: AbortSignal;
  /** Called with items done and in total, over all codecs. */
  onProgress?: (progress: { done: number; total: number }) => void;
}

/** The result of `evaluateTask`. */
export interface TaskEvaluation extends EvaluationContext {
  task: string;
  /** f16 first, then one row per spec. */
  rows: TaskRow[];
}

const LOAD_SETTINGS = [
  ...(['device', 'threads', 'memoryLimit', 'prefillChunk', 'precise', 'batchInvariant'] as const),
  ...(['context', 'pageTokens', 'profile'] as const),
];

const DEFAULT_LENGTHS = [1000, 2000, 4000];
const DEFAULT_DOCUMENTS = 20;
const PLAIN_NOTICE = 'The model has no chat template that can be used: questions are asked as plain text.';
const SAMPLING_TEMPERATURE = 0.7;

const isTask = (value: unknown) =>
  isPlainObject(value) &&
  typeof value.name === 'string' &&
  (Array.isArray(value.questions) || Array.isArray(value.choices));

const rules: Record<keyof TaskOptions, Rule> = {
  ...pick(loadRules, LOAD_SETTINGS),
  signal: loadRules.signal,
  task: rule(
    'the name of a task, or an object with a name and questions or choices',
    value => typeof value === 'string' || isTask(value),
  ),
  kv: specs,
  data: string('the path of a file'),
  shots: string('the path of a file'),
  limit: integer(1),
  chat: boolean,
  samples: integer(1, 1000),
  temperature: number('a number, 0 or more', value => value >= 0),
  seed: integer(0),
  think: boolean,
  maxTokens: integer(1),
  lengths: rule('an array of lengths in tokens', value => Array.isArray(value) && value.length > 0),
  documents: integer(1),
  runCode: boolean,
  results: string('the path of a file'),
  onProgress: callback,
};

/**
 * Measures how well a model does a task with each cache format, and whether the difference from f16 on the same items means
 * anything. Node only. If the signal aborts it, the result has what was measured so far.
 */
export async function evaluateTask(model: ModelInput, options: TaskOptions): Promise<TaskEvaluation> {
  checkOptions('evaluateTask', options, rules);
  rules.task(options?.task, 'task');
  const { signal, onProgress, samples = 1, seed = 1, think, maxTokens } = options;
  const { temperature = samples > 1 ? SAMPLING_TEMPERATURE : 0 } = options;
  const sampling = { samples, temperature, seed, think: think || undefined, maxTokens };
  const { name, items, plans, keyOf, ...setup } = await prepare(model, options, sampling);
  const notices = new Set(setup.notices);
  const results = options.results === undefined ? noResults : await openResults(options.results);
  const measured: PlanResults[] = [];
  const unpacked = new Set<string>();
  const total = plans.length * items.length;
  let done = 0;
  let device = '';
  try {
    for (const plan of plans) {
      const found = new Map<string, ItemResult>();
      for (const item of items) {
        const kept = await gradeAgain(item, results.get(keyOf(plan, item)));
        if (kept) found.set(item.id, kept);
        signal?.throwIfAborted();
      }
      done += found.size;
      onProgress?.({ done, total });
      const missing = items.filter(({ id }) => !found.has(id));
      const info = await measureItems(model, plan, missing, {
        ...sampling,
        signal,
        load: pick(options, LOAD_SETTINGS),
        onNotice: notice => notices.add(`${plan.spec}: ${notice}`),
        async onResult(item, result, length) {
          if (plan.spec !== 'f16' && isUnpacked(plan, length)) unpacked.add(item.id);
          await results.add(keyOf(plan, item), result, { task: name, kv: plan.spec });
          found.set(item.id, result);
          onProgress?.({ done: ++done, total });
        },
      });
      device = info?.device ?? device;
      const inOrder = items.flatMap(({ id }) => found.get(id) ?? []);
      measured.push({ plan, results: inOrder, tokensPerSecond: info?.tokensPerSecond });
      if (signal?.aborted) break;
    }
  } catch (error) {
    if (!signal?.aborted || error !== signal.reason) throw error;
  } finally {
    await results.close();
  }
  if (unpacked.size > 0) notices.add(unpackedNotice(unpacked.size, items.length, plans[0]));
  return { ...setup, notices: [...notices], plans, task: name, device, rows: summarize(measured) };
}

/** Whether a text of this many tokens has no page that is read from codes. */
const isUnpacked = ({ pageTokens, window: { recent } }: Plan, tokens: number): boolean =>
  packedPages(tokens, { pageTokens, recent }) === 0;

const unpackedNotice = (count: number, total: number, { pageTokens }: Plan): string =>
  `${count} of ${total} items are too short for a page of ${pageTokens} tokens: all codecs keep them in f16, so they show no ` +
  'difference. Smaller pages (pageTokens, --page-tokens) are packed sooner.';

/** What the model wrote is kept, and not what it was worth: the right answers may have been corrected since. */
async function gradeAgain(item: TaskItem, result?: ItemResult): Promise<ItemResult | undefined> {
  if (!result || 'endings' in item) return result;
  return result.answers && { ...result, ...(await grade(item, result.answers)) };
}

type Sampling = Pick<TaskOptions, 'samples' | 'temperature' | 'seed' | 'think' | 'maxTokens'>;

/** Reads all that is needed before the weights: the plans, the items, and the keys of their results. */
async function prepare(model: ModelInput, options: TaskOptions, sampling: Sampling) {
  const kv = options.kv && [...new Set(['f16', ...options.kv])];
  const { file, plans, profile, notices } = await openForEvaluation(model, { ...options, kv });
  try {
    const { task, notices: ofTask } = await readTask(file, options);
    const all: readonly TaskItem[] = 'choices' in task ? task.choices : task.questions;
    checkIds(all);
    const fingerprint = options.results === undefined ? '' : await modelFingerprint(file, { signal: options.signal });
    const keyOf = ({ spec, pageTokens }: Plan, { id, ...item }: TaskItem): string => {
      const parsed = parsePlanSpec(spec);
      const calibration = isAuto(parsed) || usesProfile(parsed) ? profile?.hash : undefined;
      const settings = 'endings' in item ? {} : sampling;
      const content = JSON.stringify(item);
      return hashValue({ fingerprint, spec, pageTokens, calibration, task: task.name, id, content, settings });
    };
    return {
      model: file.config.name,
      name: task.name,
      items: all.slice(0, options.limit),
      plans,
      profile,
      notices: [...notices, ...ofTask],
      keyOf,
    };
  } finally {
    await file.gguf.close();
  }
}

/** Results are found by the ids of their items. */
function checkIds(items: readonly TaskItem[]): void {
  const ids = new Set<string>();
  for (const { id } of items) {
    if (ids.has(id)) throw new InputError(`Two items of the task have the id "${id}". Give each its own.`);
    ids.add(id);
  }
}

async function readTask({ config, tokenizer, template }: ModelFile, options: TaskOptions) {
  const { task, data, shots, runCode, lengths = DEFAULT_LENGTHS, documents = DEFAULT_DOCUMENTS, seed = 1 } = options;
  if (typeof task !== 'string') return { task, notices: [] };
  const hasTemplate = template.note === undefined;
  const { context = defaultContext(config), chat = hasTemplate } = options;
  const runner = runCode ? await createProgramRunner() : undefined;
  const longest = Math.max(...lengths);
  if (isGenerated(task) && longest >= context)
    throw new InputError(
      option =>
        `Documents of ${longest} tokens do not fit into a context of ${context} tokens. Give shorter ${option('lengths')}, ` +
        `or a larger ${option('context')} if the model allows it.`,
      { option: 'lengths' },
    );
  const cutToFit = (text: string, otherTokens: number) => {
    const ids = tokenizer.encode(text);
    const half = Math.max(0, Math.floor((context - otherTokens) / 2));
    const [start, end] = [ids.slice(0, half), ids.slice(ids.length - half)];
    return ids.length <= 2 * half ? text : tokenizer.decode(start) + tokenizer.decode(end);
  };
  const input = {
    ...{ chat, cutToFit, lengths, documents, seed },
    data: data === undefined ? undefined : await readDataFile(data),
    shots: shots === undefined ? undefined : await readDataFile(shots),
    count: (text: string) => tokenizer.encode(text).length,
  };
  return {
    task: await createTask(task, input, runner?.run),
    notices: [runner?.notice, options.chat === undefined && !hasTemplate && PLAIN_NOTICE].filter(
      text => !!text,
    ) as string[],
  };
}
