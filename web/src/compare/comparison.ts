/** The same prompt with two codecs, one after the other, so that both have the whole machine. */
import { batch, computed, signal } from '@preact/signals';
import { openBrowser } from '../engine/browser.ts';
import type { Engine, ScoredToken } from '../engine/engine.ts';
import { browserModel } from '../state/connection.ts';
import { type Attachment, contentOf } from '../state/conversation.ts';
import { announcement } from '../state/notice.ts';
import { settings } from '../state/settings.ts';
import { differenceOf } from './difference.ts';

export interface Pane {
  codec: string;
  phase: 'idle' | 'waiting' | 'loading' | 'reading' | 'answering' | 'done';
  /** Of the prompt. */
  read: { done: number; total: number };
  tokens: readonly ScoredToken[];
  /** Tokens per second. */
  rate: number;
}

const emptyPane = (codec: string): Pane => ({
  ...{ codec, phase: 'idle', read: { done: 0, total: 0 }, tokens: [], rate: 0 },
});

export const panes = [signal(emptyPane('f16')), signal(emptyPane('tq2'))] as const;
export const difference = computed(() => differenceOf(panes[0].value.tokens, panes[1].value.tokens));
/** The prompt that is compared. */
export const question = signal('');
export const failure = signal('');

const MAX_TOKENS = 200;

let running: AbortController | undefined;
export const isComparing = signal(false);

export const stopComparing = (): void => running?.abort();

export function chooseCodec(pane: (typeof panes)[number], codec: string): void {
  pane.value = emptyPane(codec);
}

/** Answers with the likeliest token each time, so that only the codecs differ. */
export async function compare(text: string, attachments: readonly Attachment[]): Promise<void> {
  if (isComparing.value) return;
  const abort = new AbortController();
  running = abort;
  batch(() => {
    isComparing.value = true;
    failure.value = '';
    question.value = [...attachments.map(({ name }) => name), text].filter(Boolean).join(': ');
    for (const pane of panes) pane.value = { ...emptyPane(pane.value.codec), phase: 'waiting' };
  });
  const content = contentOf({ id: '', role: 'user', text, attachments });
  try {
    for (const pane of panes) if (!abort.signal.aborted) await answer(pane, content, abort.signal);
    const { first } = difference.value;
    announcement.value =
      first === undefined ? 'Both answers are the same' : `The answers differ from token ${first + 1} on`;
  } catch (error) {
    failure.value = (error as Error).message;
  } finally {
    isComparing.value = false;
  }
}

async function answer(pane: (typeof panes)[number], content: string, stop: AbortSignal): Promise<void> {
  const show = (changed: Partial<Pane>) => {
    pane.value = { ...pane.value, ...changed };
  };
  let engine: Engine | undefined;
  show({ phase: 'loading' });
  try {
    engine = await openBrowser({
      ...{ model: browserModel.value, device: settings.value.device, codec: pane.value.codec },
    });
    show({ phase: 'reading' });
    let firstToken = 0;
    const parts = engine.ask([{ role: 'user', content }], {
      ...{ temperature: 0, maxTokens: MAX_TOKENS, scored: true, signal: stop },
      onPrefill: (done, total) => show({ read: { done, total } }),
    });
    for await (const { scored } of parts) {
      firstToken ||= performance.now();
      const tokens = [...pane.value.tokens, ...scored];
      const seconds = (performance.now() - firstToken) / 1000;
      show({ phase: 'answering', tokens, rate: seconds > 0 ? (tokens.length - 1) / seconds : 0 });
    }
  } finally {
    show({ phase: 'done' });
    await engine?.close();
  }
}
