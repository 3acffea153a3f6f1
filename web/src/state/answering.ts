/** Answers that are being made: at most one per conversation, in all tabs together. */
import { batch, computed, signal } from '@preact/signals';
import { type Engine, EngineError } from '../engine/engine.ts';
import { texts } from '../texts/index.ts';
import { connection, reconnect } from './connection.ts';
import {
  type Conversation,
  cachedTokens,
  type Message,
  newId,
  turnsOf,
  type Versions,
  withMessages,
} from './conversation.ts';
import { current, findConversation, save } from './conversations.ts';
import { readUpdated } from './database.ts';
import { announcement, describeStorageError, refuse, showNotice } from './notice.ts';
import { settings } from './settings.ts';
import { findUnfinished, type Growing, keepUnfinished, readUnfinished } from './unfinished.ts';
import { withAnswer } from './versions.ts';

/** An answer that is being made. */
export interface Run {
  /** The message that grows. */
  message: Message;
  /** Of the prompt; undefined before the engine has begun with it. */
  prefill?: { done: number; total: number; secondsLeft?: number };
  tokens: number;
  /** Tokens per second so far. */
  rate: number;
  stop(): void;
}

/** By conversation. */
export const runs = signal<ReadonlyMap<string, Run>>(new Map());

/** Of the conversation that is shown. */
export const run = computed(() => runs.value.get(current.value.id));

/** The messages that are shown: the saved ones, and the one that grows. */
export const messages = computed<readonly Message[]>(() =>
  run.value ? [...current.value.messages, run.value.message] : current.value.messages,
);

/** Tokens of this conversation in the cache, while an answer runs too. */
export const tokensInCache = computed(() => {
  const { prefill, tokens } = run.value ?? { tokens: 0 };
  if (prefill) return (tokens > 0 ? prefill.total : prefill.done) + tokens;
  const { engine } = connection.value;
  return engine ? cachedTokens(current.value.messages, engine.info) : 0;
});

const setRun = (conversation: string, run: Run | undefined): void => {
  const rest = [...runs.value].filter(([id]) => id !== conversation);
  runs.value = new Map(run ? [...rest, [conversation, run]] : rest);
};

export interface AnswerOptions {
  /** An answer that goes on. */
  begun?: Message;
  /** Of the answer that is made. */
  versions?: Versions;
  /** Called when nothing stands in the way of the answer. */
  onStart?(): void;
}

/** Runs alone in all tabs. Without `isFree`, another one has the lock. */
async function withLock(
  conversation: string,
  options: { ifAvailable: boolean },
  work: (isFree: boolean) => Promise<void>,
): Promise<void> {
  // Without https there are no locks.
  if (!navigator.locks) return work(true);
  await navigator.locks.request(`kvasir conversation ${conversation}`, options, lock => work(lock !== null));
}

/** Conversations that this tab is about to change. */
const changing = new Set<string>();
/** Of this tab, until they are saved. */
const changes = new Map<string, Promise<void>>();

/** Changes a conversation as it is shown here, unless another tab answers in it, or has changed it meanwhile. */
export async function changeAlone({ id, updated }: Conversation, work: () => Promise<void>): Promise<void> {
  if (runs.value.has(id) || changing.has(id)) return;
  changing.add(id);
  // An answer is shown as complete before it is saved.
  await changes.get(id);
  const change = withLock(id, { ifAvailable: true }, async isFree => {
    // What cannot be read is not newer: the conversation goes on, and saving tells why it cannot be saved.
    const [saved = 0, growing] = await Promise.all([
      readUpdated(id).catch(() => undefined),
      findUnfinished('answers', id).catch(() => undefined),
    ]);
    const isNewest = isFree && saved <= updated;
    // A tab that crashed may have left its answer: another one would take its place.
    const isRecovered = isNewest && growing && isLeftBehind(growing) && (await recover(id, growing).catch(() => false));
    changing.delete(id);
    if (isRecovered) refuse(texts.messages.recovered);
    else if (isNewest) await work();
    else refuse(texts.messages.otherTab);
  });
  const ended = change.catch(() => {});
  changes.set(id, ended);
  try {
    await change;
  } finally {
    changing.delete(id);
    if (changes.get(id) === ended) changes.delete(id);
  }
}

/** Answers the last of these messages, which become those of the conversation. */
export async function answer(
  conversation: Conversation,
  messages: readonly Message[],
  options: AnswerOptions = {},
): Promise<void> {
  const { engine } = connection.value;
  if (!engine || messages.length === 0) return;
  await changeAlone(conversation, async () => {
    const { size } = runs.value;
    if (size >= engine.info.maxAnswers) return refuse(texts.messages.tooMany(size));
    await answerWith(engine, withMessages(conversation, messages), options);
  });
}

/** At least this often an answer is saved while it grows: a page that is not seen has its timers slowed down. */
const SAVE_MS = 1000;

async function answerWith(engine: Engine, conversation: Conversation, { begun, versions, onStart }: AnswerOptions) {
  const { id } = conversation;
  const question = conversation.messages.at(-1)!.id;
  const abort = new AbortController();
  const started = performance.now();
  let message: Message = begun
    ? { ...begun, stats: undefined, error: undefined, isFull: undefined }
    : { id: newId(), role: 'assistant', text: '', ...(versions && { versions }) };
  let tokens = 0;
  let firstToken = 0;
  const rate = () => {
    const seconds = (performance.now() - firstToken) / 1000;
    // A few tokens that arrive together tell nothing.
    return tokens > 1 && seconds > MIN_RATE_SECONDS ? (tokens - 1) / seconds : 0;
  };
  const update = (changed: Partial<Run>) => {
    const run = runs.value.get(id);
    if (run) setRun(id, { ...run, ...changed });
  };
  const show = createFrame(() => update({ message, tokens, rate: rate() }));
  // One that takes the place of another is kept before it begins: the other one is among its versions.
  const isWorthKeeping = () => message.text || message.reasoning || message.versions;
  let isLeft = false;
  let lastKept = Date.now();
  const keep = () => {
    lastKept = Date.now();
    const { versions: _, ...growing } = message;
    if (isWorthKeeping()) keepUnfinished('answers', id, { message: growing, question, kept: isLeft ? 0 : lastKept });
  };
  const timer = setInterval(keep, SAVE_MS);
  const leave = () => {
    isLeft = true;
    keep();
  };
  // The browser may show a page again as it was.
  const comeBack = () => {
    isLeft = false;
  };
  addEventListener('pagehide', leave);
  addEventListener('pageshow', comeBack);
  keepUnfinished('versions', id, message.versions);
  keep();
  batch(() => {
    void save(conversation);
    setRun(id, { message, tokens, rate: 0, stop: () => abort.abort() });
    announcement.value = texts.messages.readingPrompt;
    onStart?.();
  });
  /** Tokens of the prompt in the cache: at first, and now. */
  let found: number | undefined;
  let read = 0;
  const onPrefill = (done: number, total: number) => {
    found ??= done;
    read = done;
    const seconds = (performance.now() - started) / 1000;
    const secondsLeft = done > found ? (seconds * (total - done)) / (done - found) : undefined;
    update({ prefill: { done, total, secondsLeft } });
  };
  try {
    const { temperature, topP, repetitionPenalty, seed, maxTokens, system, thinks } = settings.value;
    const parts = engine.ask(turnsOf(conversation.messages, { system, begun }), {
      ...{ conversation: id, temperature, topP, repetitionPenalty, seed },
      ...{ maxTokens: maxTokens || undefined, stopLoops: true, thinks },
      ...{ continueAnswer: begun !== undefined, signal: abort.signal, onPrefill },
    });
    let next = await parts.next();
    for (; !next.done; next = await parts.next()) {
      const { text, reasoning, tokens: count } = next.value;
      if (tokens === 0) {
        firstToken = performance.now();
        announcement.value = texts.messages.answering;
      }
      tokens += count;
      message = {
        ...message,
        text: message.text + text,
        ...((message.reasoning || reasoning) && { reasoning: (message.reasoning ?? '') + reasoning }),
      };
      show();
      if (Date.now() - lastKept >= SAVE_MS) keep();
    }
    const { finish, usage } = next.value;
    const { id: model, codec } = engine.info;
    message = {
      ...message,
      stats: {
        ...{ finish, model, codec, decodeRate: rate() },
        // A prompt that was stopped is in the cache as far as it was read.
        promptTokens: (tokens > 0 && usage?.promptTokens) || read,
        reusedTokens: usage?.reusedTokens ?? 0,
        completionTokens: usage?.completionTokens ?? tokens,
        prefillSeconds: ((firstToken || performance.now()) - started) / 1000,
      },
    };
    announcement.value =
      finish === 'cancelled' ? texts.messages.stoppedNow : texts.messages.answerIs(message.text.slice(0, 300));
  } catch (error) {
    const { message: reason } = error as Error;
    const isFull = error instanceof EngineError && error.reason === 'full';
    message = { ...message, error: reason, ...(isFull && { isFull }) };
    announcement.value = reason;
    if (error instanceof EngineError && error.reason === 'key') void reconnect();
  } finally {
    show.cancel();
    clearInterval(timer);
    removeEventListener('pagehide', leave);
    removeEventListener('pageshow', comeBack);
    const isComplete = message.stats !== undefined;
    // The page may be left before the conversation is saved with it.
    if (isComplete && findConversation(id)) keep();
    // One that broke off because the page is left stays unfinished: it goes on when the page is opened again.
    if (isComplete || !isLeft) await finish(engine, id, message, question);
    else setRun(id, undefined);
  }
}

/** Adds an answer to its conversation. The user may look at another one, or have deleted this one. */
async function finish(engine: Engine, id: string, message: Message, question: string): Promise<void> {
  const isKept = findConversation(id) !== undefined;
  await batch(() => {
    setRun(id, undefined);
    return add(id, message, question);
  });
  forgetAnswer(id);
  if (isKept && message.error === undefined)
    engine.keep(id).catch(error => showNotice(texts.conversations.cacheNotSaved(error.message)));
}

async function add(conversation: string, message: Message, question: string): Promise<void> {
  const saved = findConversation(conversation);
  if (saved) await save({ ...saved, messages: withAnswer(saved.messages, message, question), updated: Date.now() });
}

/** Answers of pages that were left before they were complete become part of their conversations. */
export async function recoverAnswers(): Promise<void> {
  // Another tab may still be making it: then this one waits.
  for (const id of (await readUnfinished('answers')).keys())
    void withLock(id, { ifAvailable: false }, async () => {
      const left = await readLeft(id);
      if (left) await recover(id, left);
    }).catch(error => showNotice(texts.conversations.notRead(describeStorageError(error))));
}

/** Of a conversation whose lock this tab has. Tells whether it was not there yet. */
async function recover(conversation: string, { message, question }: Growing): Promise<boolean> {
  const isPart = findConversation(conversation)?.messages.some(saved => saved.id === message.id);
  if (!isPart) {
    const versions = await findUnfinished('versions', conversation);
    await add(conversation, { ...message, ...(versions && { versions }) }, question);
  }
  forgetAnswer(conversation);
  return !isPart;
}

function forgetAnswer(conversation: string): void {
  keepUnfinished('answers', conversation, undefined);
  keepUnfinished('versions', conversation, undefined);
}

// A page that was left, and is shown again as it was.
addEventListener('pageshow', ({ persisted }) => persisted && void recoverAnswers().catch(() => {}));

/** What is kept of an answer that no tab makes. */
async function readLeft(conversation: string): Promise<Growing | undefined> {
  const growing = await findUnfinished('answers', conversation);
  if (!growing || isLeftBehind(growing)) return growing;
  await new Promise(resolve => setTimeout(resolve, LEFT_MS));
  return readLeft(conversation);
}

/** Without locks, it grows as long as it is kept again and again. */
const isLeftBehind = ({ kept }: Growing): boolean => navigator.locks !== undefined || Date.now() - kept > LEFT_MS;

/** An answer that was not kept for so long is left. */
const LEFT_MS = 3 * SAVE_MS;

/** Answers that are shorter have no speed. */
const MIN_RATE_SECONDS = 0.1;

/** At most once per frame: tokens may come faster than they can be shown. */
function createFrame(work: () => void) {
  let frame: number | undefined;
  const request = () => {
    frame ??= requestAnimationFrame(() => {
      frame = undefined;
      work();
    });
  };
  return Object.assign(request, { cancel: () => frame !== undefined && cancelAnimationFrame(frame) });
}
