/** The same questions with two codecs, one after the other, so that both have the whole machine. */
import { batch, computed, effect, signal } from '@preact/signals';
import { openBrowser } from '../engine/browser.ts';
import { codecsFor } from '../engine/codecs.ts';
import type { Engine, ScoredToken } from '../engine/engine.ts';
import { browserModel, browserProfile, hasProfile } from '../state/connection.ts';
import { type Attachment, contentOf, newId } from '../state/conversation.ts';
import { current } from '../state/conversations.ts';
import { clearDraft, draft, draftOf } from '../state/drafts.ts';
import { gaugeOf } from '../state/gauge.ts';
import { announcement } from '../state/notice.ts';
import { loadSample } from '../state/sample.ts';
import { settings } from '../state/settings.ts';
import { type CompareAddress, writeAddress } from './address.ts';
import { differenceOf } from './difference.ts';
import type { Pace } from './measures.ts';
import { summarize } from './summary.ts';

export interface Pane {
  codec: string;
  phase: 'idle' | 'waiting' | 'loading' | 'reading' | 'answering' | 'done';
  /** Of the prompt. */
  read: { done: number; total: number };
  /** One per question. */
  answers: readonly (readonly ScoredToken[])[];
  /** Tokens of prompts, but those that the cache had already. */
  reading: Pace;
  /** Tokens of answers, but the first one of each, which includes reading. */
  answering: Pace;
  /** Of the longest prompt and its answer, and what they take in the cache. */
  tokens: number;
  bytes: number;
}

const NONE: Pace = { tokens: 0, seconds: 0 };

const emptyPane = (codec: string): Pane => ({
  ...{ codec, phase: 'idle', read: { done: 0, total: 0 }, answers: [], tokens: 0, bytes: 0 },
  ...{ reading: NONE, answering: NONE },
});

export const panes = [signal(emptyPane('f16')), signal(emptyPane('mead2'))] as const;
type PaneSignal = (typeof panes)[number];

/** For models without a profile. */
const UNCALIBRATED = 'tq3';
effect(() => {
  const names = codecsFor(hasProfile.value).map(({ name }) => name);
  for (const pane of panes) if (!names.includes(pane.value.codec)) pane.value = emptyPane(UNCALIBRATED);
});

/** What is compared: names of documents, and the questions. */
export const documents = signal<readonly string[]>([]);
export const questions = signal<readonly string[]>([]);
export const failure = signal('');
/** One per question that both have answered. */
export const differences = computed(() => {
  const [left, right] = panes.map(({ value }) => value.answers);
  return left!.slice(0, right!.length).map((tokens, i) => differenceOf(tokens, right![i]!));
});
/** In a few words; undefined before both have answered. */
export const summary = computed((): string | undefined => {
  const [left, right] = panes.map(({ value }) => value) as [Pane, Pane];
  const isDone = [left, right].every(({ phase, answers }) => phase === 'done' && answers.length > 0);
  return isDone ? summarize([left, right], differences.value) : undefined;
});

const MAX_TOKENS = 200;

let running: AbortController | undefined;
export const isComparing = signal(false);

export const stopComparing = (): void => running?.abort();

export function chooseCodec(pane: PaneSignal, codec: string): void {
  pane.value = emptyPane(codec);
}

/** Compares the codecs of an address, and starts with the sample if it says so. */
export async function openAddress({ codecs, hasSample }: CompareAddress): Promise<void> {
  if (isComparing.value) return;
  for (const [i, pane] of panes.entries()) chooseCodec(pane, codecs[i]!);
  if (hasSample) await compareSample();
}

export async function compareSample(): Promise<void> {
  const { name, text, questions } = await loadSample();
  const [left, right] = panes;
  history.replaceState(null, '', writeAddress({ codecs: [left.value.codec, right.value.codec], hasSample: true }));
  await compare(questions, [{ id: newId(), name, text }]);
}

/** Compares answers to what is written. It stays until both have answered, for another try. */
export async function compareDraft(): Promise<void> {
  const { id } = current.value;
  const asked = draft.value;
  const isDone = await compare([asked.text.trim()], asked.attachments);
  if (isDone && draftOf(id) === asked) clearDraft(id);
}

/**
 * Answers with the likeliest token each time, so that only the codecs differ. Tells whether both have answered all
 * questions.
 */
async function compare(asked: readonly string[], attachments: readonly Attachment[]): Promise<boolean> {
  if (isComparing.value) return false;
  const abort = new AbortController();
  running = abort;
  batch(() => {
    isComparing.value = true;
    failure.value = '';
    documents.value = attachments.map(({ name }) => name);
    questions.value = asked;
    for (const pane of panes) pane.value = { ...emptyPane(pane.value.codec), phase: 'waiting' };
  });
  const prompts = asked.map(text => contentOf({ id: '', role: 'user', text, attachments }));
  try {
    for (const pane of panes) if (!abort.signal.aborted) await answerAll(pane, prompts, abort.signal);
    announcement.value = summary.value ?? '';
    return !abort.signal.aborted;
  } catch (error) {
    failure.value = (error as Error).message;
    return false;
  } finally {
    isComparing.value = false;
  }
}

async function answerAll(pane: PaneSignal, prompts: readonly string[], stop: AbortSignal): Promise<void> {
  const show = (changed: Partial<Pane>) => {
    pane.value = { ...pane.value, ...changed };
  };
  let engine: Engine | undefined;
  show({ phase: 'loading' });
  try {
    engine = await openBrowser({
      ...{ model: browserModel.value, profile: browserProfile.value },
      ...{ device: settings.value.device, codec: pane.value.codec },
    });
    for (const prompt of prompts) if (!stop.aborted) await answer(engine, prompt, { pane, show, stop });
  } finally {
    show({ phase: 'done' });
    await engine?.close();
  }
}

interface Progress {
  pane: PaneSignal;
  show(changed: Partial<Pane>): void;
  stop: AbortSignal;
}

async function answer(engine: Engine, prompt: string, { pane, show, stop }: Progress): Promise<void> {
  const { answers: earlier, reading, answering } = pane.value;
  const hold = (count: number) => {
    const tokens = Math.max(pane.value.tokens, count);
    return { tokens, bytes: gaugeOf(tokens, engine.info).bytes };
  };
  /** What was done before, and so many tokens since then. */
  const add = (before: Pace, tokens: number, since: number): Pace => ({
    tokens: before.tokens + tokens,
    seconds: before.seconds + (performance.now() - since) / 1000,
  });
  /** Tokens that the cache had already, and when reading began. */
  let begun: { found: number; at: number } | undefined;
  let tokens: readonly ScoredToken[] = [];
  let [text, firstToken] = ['', 0];
  show({ phase: 'reading', read: { done: 0, total: 0 } });
  const parts = engine.ask([{ role: 'user', content: prompt }], {
    ...{ temperature: 0, maxTokens: MAX_TOKENS, scored: true, signal: stop },
    onPrefill(done, total) {
      begun ??= { found: done, at: performance.now() };
      const paced = add(reading, done - begun.found, begun.at);
      show({ read: { done, total }, reading: paced, ...hold(done) });
    },
  });
  for await (const part of parts) {
    firstToken ||= performance.now();
    text += part.reasoning + part.text;
    tokens = [...tokens, ...part.scored];
    show({
      ...{ phase: 'answering', answers: [...earlier, tokens], ...hold(pane.value.read.total + tokens.length) },
      answering: add(answering, tokens.length - 1, firstToken),
    });
  }
  // The token that ends an answer is not part of its text.
  const last = tokens.at(-1);
  if (last && !text.endsWith(last.text)) show({ answers: [...earlier, tokens.slice(0, -1)] });
}
