/**
 * Questions about a document: the document is prefilled once, then each question is answered from that cache, as if it were
 * the only one.
 */
import type { Engine } from '../../engine/engine.ts';
import { generate } from '../../engine/generate.ts';
import { createScheduler } from '../../engine/scheduler.ts';
import { emptyResult, type Result } from '../../engine/stream.ts';
import { packedPages } from '../../kernel/visibility.ts';
import { encodeChat } from '../../model/chat.ts';
import { thinkVariables } from '../../model/thinking.ts';
import type { Plan } from '../../plan/plan.ts';
import { type TeacherForceOptions, teacherForceSequence } from '../divergence.ts';
import { createDocument, type DocumentRequest, type NeedleDocument, type PlantedFact } from './document.ts';
import type { Grammar } from './grammar.ts';

/** When an answer is correct: it equals the expected words, or contains them. */
export type MatchRule = 'exact' | 'contains';

/** Mimir was trained to answer with the words of the fact only; other models answer in sentences. */
export const matchFor = (modelName: string): MatchRule => (modelName === 'Mimir' ? 'exact' : 'contains');

const MAX_TOKENS: Record<MatchRule, number> = { exact: 12, contains: 32 };

export function isCorrect(
  match: MatchRule,
  { text, finish }: Pick<Result, 'text' | 'finish'>,
  answer: string,
): boolean {
  return match === 'exact'
    ? finish === 'stop' && text.trim() === answer
    : normalizeWords(text).includes(normalizeWords(answer));
}

/** Lower case, with a single space around each word. */
const normalizeWords = (text: string): string =>
  ` ${text
    .toLowerCase()
    .replace(/[^\p{L}\p{N}]+/gu, ' ')
    .trim()} `;

export interface Question extends PlantedFact {
  /** Token ids of the document and this question. */
  prompt: number[];
}

export interface NeedleTask extends NeedleDocument {
  questions: Question[];
  /** Number of tokens at the start that all prompts share: the document. */
  shared: number;
  match: MatchRule;
  /** Max tokens of an answer. */
  maxTokens: number;
  /** A model without a chat template would continue with another question. */
  stop: string[];
  /** Tokens of the longest prompt with its answer. */
  context: number;
}

export type TaskRequest = Omit<DocumentRequest, 'count'>;

type ModelText = Pick<Engine, 'config' | 'tokenizer' | 'template'>;

/**
 * A document and its questions for one model. If a question sealed a page, the cache could not be cropped back to the
 * document, which would then be prefilled again. So the document is shortened until its last page has room for a question.
 */
export function createNeedleTask(
  reader: ModelText,
  grammar: Grammar,
  request: TaskRequest,
  plans: readonly Plan[],
): NeedleTask {
  const { tokenizer } = reader;
  const count = (text: string) => tokenizer.encode(text).length;
  const make = (less: number) =>
    taskForDocument(reader, createDocument(grammar, { ...request, tokens: request.tokens - less, count }));
  const whole = make(0);
  if (leavesRoom(whole, plans)) return whole;
  const maxLess = Math.min(request.tokens / 2, plans[0]!.pageTokens);
  for (let less = SHORTEN_STEP; less < maxLess; less += SHORTEN_STEP) {
    const task = make(less);
    if (leavesRoom(task, plans)) return task;
  }
  return whole;
}

/** In tokens: about a sentence. */
const SHORTEN_STEP = 16;

function taskForDocument({ config, tokenizer, template }: ModelText, document: NeedleDocument): NeedleTask {
  const match = matchFor(config.name);
  const maxTokens = MAX_TOKENS[match];
  const { text, facts } = document;
  const hasTemplate = template.note === undefined;
  const encode = (question: string) =>
    hasTemplate
      ? encodeChat(tokenizer, template, [{ role: 'user', content: `${text}\n\n${question}` }], NO_THINKING)
      : tokenizer.encode(`${text}\n\nQuestion: ${question} Answer:`, { bos: tokenizer.addBos });
  const questions = facts.map(fact => ({ ...fact, prompt: encode(fact.question) }));
  const prompts = questions.map(({ prompt }) => prompt);
  const shared = Math.min(...prompts.map(prompt => sharedLength(prompt, prompts[0]!)));
  const context = maxTokens + Math.max(...prompts.map(prompt => prompt.length));
  return { ...document, questions, shared, match, maxTokens, stop: hasTemplate ? [] : ['\n'], context };
}

/** For templates of reasoning models; others ignore it. */
const NO_THINKING = { variables: thinkVariables(false) };

/** The last token of a prompt is never shared: its logits are needed. */
function sharedLength(a: readonly number[], b: readonly number[]): number {
  const max = Math.min(a.length, b.length) - 1;
  let length = 0;
  while (length < max && a[length] === b[length]) length++;
  return length;
}

function leavesRoom({ shared, context }: NeedleTask, plans: readonly Plan[]): boolean {
  return plans.every(({ pageTokens, window }) => {
    const pages = (tokens: number) => packedPages(tokens, { pageTokens, recent: window.recent });
    return pages(shared) === pages(context);
  });
}

export interface QuestionAnswer {
  fact: PlantedFact;
  said: string;
  right: boolean;
  /** Tokens decoded after the first one, and their time. */
  decoded: number;
  decodeMs: number;
}

export interface ReadOptions extends Partial<TeacherForceOptions> {
  /** `onLogits` gets the logits of this many tokens at the end. Default: 0. */
  scored?: number;
}

export interface DocumentSession {
  /** Bytes of the cache. */
  readonly bytes: number;
  /** Prefills the document; false if the signal aborted it. */
  read(options: ReadOptions): Promise<boolean>;
  /** Answers a question; undefined if the signal aborted it. */
  ask(question: Question, signal?: AbortSignal): Promise<QuestionAnswer | undefined>;
  dispose(): void;
}

export function openDocumentSession(engine: Engine, plan: Plan, task: NeedleTask): DocumentSession {
  const { context, match, maxTokens, stop, questions, shared } = task;
  const cache = engine.openCache(plan, { context });
  const scheduler = createScheduler(engine, cache, plan, { maxSequences: 1 });
  const generation = { engine, cache, scheduler, plan, context, overflow: 'error' as const };
  /** Continues the document's sequence. */
  const reader = {};
  return {
    get bytes() {
      return cache.idleOf(reader)?.bytes ?? 0;
    },
    async read({ scored = 0, onLogits = () => {}, ...options }) {
      const { prompt } = questions[0]!;
      const sequence = await engine.exclusive(async pause => cache.open(pause, prompt));
      const from = Math.max(0, shared - scored);
      const tokens = prompt.slice(0, shared + 1);
      try {
        return await teacherForceSequence(engine, sequence, tokens, from, { ...options, onLogits });
      } finally {
        cache.keep(sequence, reader);
      }
    },
    async ask({ prompt, ...fact }, signal) {
      const result = emptyResult();
      const options = { temperature: 0, maxTokens, stop, signal };
      for await (const _ of generate(generation, prompt, options, result, signal, reader));
      if (signal?.aborted) return undefined;
      return {
        fact,
        said: result.text.trim(),
        right: isCorrect(match, result, fact.answer),
        decoded: result.usage.completionTokens - 1,
        decodeMs: result.timings.decodeMs,
      };
    },
    dispose: cache.dispose,
  };
}
