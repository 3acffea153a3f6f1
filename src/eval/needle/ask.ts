/**
 * A document read once through a cache, then asked for its facts one by one: each question starts from the document
 * alone, as if it were the only one.
 */
import type { Engine } from '../../engine/engine.ts';
import { generate } from '../../engine/generate.ts';
import { createSlot } from '../../engine/slot.ts';
import { emptyResult, type Result } from '../../engine/stream.ts';
import { packedPages } from '../../kernel/visibility.ts';
import { encodeChat } from '../../model/chat.ts';
import type { Plan } from '../../plan/plan.ts';
import { type ForceOptions, force } from '../divergence.ts';
import { type DocumentRequest, makeDocument, type NeedleDocument, type PlantedFact } from './document.ts';
import type { Grammar } from './grammar.ts';

/** When an answer counts: it is the expected words and then ends, or it has them somewhere. */
export type Match = 'exact' | 'contains';

/** Mimir was taught to answer with the words of the fact alone; other models put sentences around them. */
export const matchOf = (modelName: string): Match => (modelName === 'Mimir' ? 'exact' : 'contains');

const MAX_TOKENS: Record<Match, number> = { exact: 12, contains: 32 };

export function isRight(match: Match, { text, finish }: Pick<Result, 'text' | 'finish'>, answer: string): boolean {
  return match === 'exact' ? finish === 'stop' && text.trim() === answer : words(text).includes(words(answer));
}

/** Lower case, with one space around each word. */
const words = (text: string): string =>
  ` ${text
    .toLowerCase()
    .replace(/[^\p{L}\p{N}]+/gu, ' ')
    .trim()} `;

export interface Question extends PlantedFact {
  /** The document and this question, as token ids. */
  prompt: number[];
}

export interface Task extends NeedleDocument {
  questions: Question[];
  /** Tokens at the beginning that all prompts share: the document. */
  shared: number;
  match: Match;
  maxTokens: number;
  /** A model without a template would go on and ask itself the next question. */
  stop: string[];
  /** Tokens that a sequence needs room for. */
  context: number;
}

export type TaskRequest = Omit<DocumentRequest, 'count'>;

type Reader = Pick<Engine, 'config' | 'tokenizer' | 'template'>;

/**
 * A document and its questions for one model. A sealed page cannot be cut, so a question that fills one would make the
 * document be read anew for the next: the document is made a little shorter where its last page lacks the room.
 */
export function makeTask(reader: Reader, grammar: Grammar, request: TaskRequest, plans: readonly Plan[]): Task {
  const { tokenizer } = reader;
  const count = (text: string) => tokenizer.encode(text).length;
  const make = (less: number) =>
    taskOf(reader, makeDocument(grammar, { ...request, tokens: request.tokens - less, count }));
  const whole = make(0);
  if (leavesRoom(whole, plans)) return whole;
  const least = Math.min(request.tokens / 2, plans[0]!.pageTokens);
  for (let less = SHORTER; less < least; less += SHORTER) {
    const task = make(less);
    if (leavesRoom(task, plans)) return task;
  }
  return whole;
}

/** About a sentence. */
const SHORTER = 16;

function taskOf({ config, tokenizer, template }: Reader, document: NeedleDocument): Task {
  const match = matchOf(config.name);
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

/** Templates of models that think aloud know this; others pass over it. */
const NO_THINKING = { variables: { enable_thinking: false } };

/** A prompt's last token is never shared: it is the one that predicts. */
function sharedLength(a: readonly number[], b: readonly number[]): number {
  const most = Math.min(a.length, b.length) - 1;
  let length = 0;
  while (length < most && a[length] === b[length]) length++;
  return length;
}

function leavesRoom({ shared, context }: Task, plans: readonly Plan[]): boolean {
  return plans.every(({ pageTokens, window }) => {
    const pages = (tokens: number) => packedPages(tokens, { pageTokens, recent: window.recent });
    return pages(shared) === pages(context);
  });
}

export interface Answer {
  fact: PlantedFact;
  said: string;
  right: boolean;
  /** Tokens after the first, and the time that they took. */
  decoded: number;
  decodeMs: number;
}

export interface ReadOptions extends Partial<ForceOptions> {
  /** Of how many of the last tokens `onLogits` is to see the logits: none unless given. */
  scored?: number;
}

export interface Asker {
  /** Bytes of the cache. */
  readonly bytes: number;
  /** Reads the document, and says whether it was done: false if the signal came first. */
  read(options: ReadOptions): Promise<boolean>;
  /** Undefined if the signal came first. */
  ask(question: Question, signal?: AbortSignal): Promise<Answer | undefined>;
  dispose(): void;
}

export function openAsker(engine: Engine, plan: Plan, task: Task): Asker {
  const { context, match, maxTokens, stop, questions, shared } = task;
  const slot = createSlot(() => engine.openSequence(plan, context));
  return {
    get bytes() {
      return slot.bytes;
    },
    read({ scored = 0, onLogits = () => {}, ...options }) {
      // The slot must know which tokens its sequence is about to hold.
      const { prompt } = questions[0]!;
      slot.reusePrefix(prompt);
      const from = Math.max(0, shared - scored);
      return force(engine, slot.sequence, prompt.slice(0, shared + 1), from, { ...options, onLogits });
    },
    async ask({ prompt, ...fact }, signal) {
      const result = emptyResult();
      const setting = { engine, slot, context, overflow: 'error' as const };
      for await (const _ of generate(setting, prompt, { temperature: 0, maxTokens, stop, signal }, result));
      if (signal?.aborted) return undefined;
      return {
        fact,
        said: result.text.trim(),
        right: isRight(match, result, fact.answer),
        decoded: result.usage.completionTokens - 1,
        decodeMs: result.timings.decodeMs,
      };
    },
    dispose: slot.reset,
  };
}
