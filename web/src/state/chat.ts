/** The conversations, and what one can do with the one that is shown. */
import { batch, computed, signal } from '@preact/signals';
import { type Engine, EngineError } from '../engine/engine.ts';
import { deleteAllStored, deleteSession } from '../engine/sessions.ts';
import { connection, reconnect } from './connection.ts';
import {
  type Attachment,
  before,
  type Conversation,
  cachedTokens,
  type Message,
  newConversation,
  newId,
  titleOf,
  turnsOf,
} from './conversation.ts';
import {
  deleteAllConversations,
  deleteConversation,
  onOtherTab,
  readConversations,
  writeConversation,
} from './database.ts';
import { announcement, showNotice } from './notice.ts';
import { settings } from './settings.ts';

/** An answer that is being made. */
export interface Run {
  conversation: string;
  /** The message that grows. */
  message: Message;
  /** Of the prompt; undefined before the engine has begun with it. */
  prefill?: { done: number; total: number; secondsLeft?: number };
  tokens: number;
  /** Tokens per second so far. */
  rate: number;
  stop(): void;
}

export const conversations = signal<readonly Conversation[]>([]);
export const current = signal<Conversation>(newConversation());
export const run = signal<Run | undefined>(undefined);

/** The messages that are shown: the saved ones, and the one that grows. */
export const messages = computed<readonly Message[]>(() => {
  const answering = run.value;
  const saved = current.value.messages;
  return answering?.conversation === current.value.id ? [...saved, answering.message] : saved;
});

/** Tokens of this conversation in the cache, while an answer runs too. */
export const tokensInCache = computed(() => {
  const answering = run.value;
  if (answering?.conversation !== current.value.id) return cachedTokens(current.value.messages);
  const { prefill, tokens } = answering;
  return prefill ? (tokens > 0 ? prefill.total : prefill.done) + tokens : cachedTokens(current.value.messages);
});

const OPEN_KEY = 'kvasir.open';

/** Reads what was saved, and opens the conversation that was open last. */
export async function loadConversations(): Promise<void> {
  const saved = await readConversations();
  batch(() => {
    conversations.value = saved;
    const open = saved.find(({ id }) => id === sessionStorage.getItem(OPEN_KEY)) ?? saved[0];
    if (open) current.value = open;
  });
}

/** What another tab has saved or deleted. */
onOtherTab(async () => {
  const saved = await readConversations();
  const find = (id: string) => saved.find(conversation => conversation.id === id);
  batch(() => {
    conversations.value = saved;
    if (run.value && !find(run.value.conversation)) run.value.stop();
    const { id, messages } = current.value;
    if (messages.length > 0) current.value = find(id) ?? saved[0] ?? newConversation();
  });
});

function save(conversation: Conversation): void {
  batch(() => {
    if (current.value.id === conversation.id) current.value = conversation;
    conversations.value = [conversation, ...conversations.value.filter(({ id }) => id !== conversation.id)];
  });
  sessionStorage.setItem(OPEN_KEY, current.value.id);
  writeConversation(conversation).catch(error =>
    showNotice(`The conversation could not be saved: ${describeStorageError(error)}`),
  );
}

const describeStorageError = ({ name, message }: Error): string =>
  name === 'QuotaExceededError'
    ? 'the storage of this browser is full. Delete conversations or models that are not needed.'
    : message;

export function open(conversation: Conversation): void {
  current.value = conversation;
  sessionStorage.setItem(OPEN_KEY, conversation.id);
}

export const startNew = (): void => open(newConversation());

export async function remove(id: string): Promise<void> {
  if (run.value?.conversation === id) run.value.stop();
  batch(() => {
    conversations.value = conversations.value.filter(conversation => conversation.id !== id);
    if (current.value.id === id) current.value = conversations.value[0] ?? newConversation();
  });
  announcement.value = 'Conversation deleted';
  await deleteConversation(id);
  await deleteSession(id);
}

export async function removeAll(): Promise<void> {
  run.value?.stop();
  const ids = conversations.value.map(({ id }) => id);
  batch(() => {
    conversations.value = [];
    current.value = newConversation();
  });
  announcement.value = 'All is deleted';
  try {
    await deleteAllConversations();
    await deleteAllStored(ids);
  } catch (error) {
    showNotice((error as Error).message);
  }
}

/** Changes the messages of the conversation that is shown. */
const withMessages = (messages: readonly Message[]): Conversation => ({
  ...current.value,
  messages,
  title: titleOf(messages),
  updated: Date.now(),
});

export function send(text: string, attachments: readonly Attachment[] = []): Promise<void> {
  const message: Message = { id: newId(), role: 'user', text, ...(attachments.length > 0 && { attachments }) };
  return answer(withMessages([...current.value.messages, message]));
}

/** Replaces a message of the user, drops what follows it, and answers again. */
export function edit(message: Message, text: string): Promise<void> {
  return answer(withMessages([...before(current.value.messages, message.id), { ...message, text }]));
}

/** Another answer in place of this one. */
export const regenerate = (message: Message): Promise<void> =>
  answer(withMessages(before(current.value.messages, message.id)));

/** A second conversation with the messages up to this one. */
export function fork(message: Message): void {
  const kept = [...before(current.value.messages, message.id), message];
  save(newConversation(kept, `${current.value.title} (fork)`));
  const [forked] = conversations.value;
  open(forked!);
  announcement.value = 'Conversation forked';
}

export const stop = (): void => run.value?.stop();

/** Answers the last message. One answer runs at a time in a tab, and one in all tabs for a conversation. */
async function answer(conversation: Conversation): Promise<void> {
  const { engine } = connection.value;
  if (!engine || run.value) return;
  // Without https there are no locks.
  if (!navigator.locks) return answerWith(engine, conversation);
  await navigator.locks.request(`kvasir conversation ${conversation.id}`, { ifAvailable: true }, async lock => {
    if (lock) await answerWith(engine, conversation);
    else showNotice('Another tab answers in this conversation. Wait until it is done, then ask again.');
  });
}

async function answerWith(engine: Engine, conversation: Conversation): Promise<void> {
  save(conversation);
  const abort = new AbortController();
  const started = performance.now();
  let message: Message = { id: newId(), role: 'assistant', text: '' };
  let tokens = 0;
  let firstToken = 0;
  const rate = () => {
    const seconds = (performance.now() - firstToken) / 1000;
    // A few tokens that arrive together tell nothing.
    return tokens > 1 && seconds > MIN_RATE_SECONDS ? (tokens - 1) / seconds : 0;
  };
  const update = (changed: Partial<Run>) => {
    if (run.value) run.value = { ...run.value, ...changed };
  };
  const show = createFrame(() => update({ message, tokens, rate: rate() }));
  run.value = { conversation: conversation.id, message, tokens, rate: 0, stop: () => abort.abort() };
  announcement.value = 'Reading the prompt';
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
    const parts = engine.ask(turnsOf(conversation.messages), {
      conversation: conversation.id,
      temperature: settings.value.temperature,
      signal: abort.signal,
      onPrefill,
    });
    let next = await parts.next();
    for (; !next.done; next = await parts.next()) {
      const { text, reasoning, tokens: count } = next.value;
      if (tokens === 0) {
        firstToken = performance.now();
        announcement.value = 'Answering';
      }
      tokens += count;
      message = {
        ...message,
        text: message.text + text,
        ...((message.reasoning || reasoning) && { reasoning: (message.reasoning ?? '') + reasoning }),
      };
      show();
    }
    const { finish, usage } = next.value;
    message = {
      ...message,
      stats: {
        ...{ finish, codec: engine.info.codec, decodeRate: rate() },
        // A prompt that was stopped is in the cache as far as it was read.
        promptTokens: (tokens > 0 && usage?.promptTokens) || read,
        reusedTokens: usage?.reusedTokens ?? 0,
        completionTokens: usage?.completionTokens ?? tokens,
        prefillSeconds: ((firstToken || performance.now()) - started) / 1000,
      },
    };
    announcement.value = finish === 'cancelled' ? 'Stopped' : `Answer: ${message.text.slice(0, 300)}`;
  } catch (error) {
    const { message: reason } = error as Error;
    message = { ...message, error: reason };
    announcement.value = reason;
    if (error instanceof EngineError && error.reason === 'key') void reconnect();
  } finally {
    show.cancel();
    let isKept = false;
    batch(() => {
      run.value = undefined;
      // The user may look at another conversation, or have deleted this one.
      const saved = conversations.value.find(({ id }) => id === conversation.id);
      if (saved) save({ ...saved, messages: [...saved.messages, message], updated: Date.now() });
      isKept = saved !== undefined;
    });
    if (isKept && message.error === undefined)
      engine.keep(conversation.id).catch(error => showNotice(`The cache could not be saved: ${error.message}`));
  }
}

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

/** An answer that is cut off by closing the page is kept as far as it is. */
addEventListener('pagehide', () => {
  const answering = run.value;
  const saved = conversations.value.find(({ id }) => id === answering?.conversation);
  if (!answering?.message.text || !saved) return;
  void writeConversation({ ...saved, messages: [...saved.messages, answering.message] });
});
