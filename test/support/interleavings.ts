/** Random actions on six conversations of one model, for the lifetime tests. */
import { deepStrictEqual } from 'node:assert';
import fc from 'fast-check';
import type { Model } from '../../src/api/model.ts';
import type { Conversation } from '../../src/chat/conversation.ts';
import type { ChatMessage } from '../../src/model/template.ts';
import { CapacityError, InputError } from '../../src/util/errors.ts';

const TEXT = 'Odin drank the mead, and flew home as an eagle.';
/** In f16, the exponent of infinity and NaN. */
const isNotFinite = (bits: number) => (bits & 0x7c00) === 0x7c00;
const OPTIONS = { temperature: 0, maxTokens: 8, ignoreEos: true };

export interface Action {
  /** Which conversation. A disposed one is opened again. */
  conversation: number;
  kind: 'send' | 'regenerate' | 'undo' | 'reset' | 'dispose' | 'wait' | 'decode' | 'prefetch' | 'restore';
  /** Of the text to send. */
  length: number;
  /** Tokens of the answer to read before `end`. */
  read: number;
  end: 'rest' | 'break' | 'abort' | 'abandon';
  /** Event-loop turns before the next action. */
  ticks: number;
}

const action: fc.Arbitrary<Action> = fc.record({
  conversation: fc.nat(5),
  kind: fc.constantFrom(
    ...(['send', 'send', 'send', 'send', 'regenerate', 'regenerate', 'undo', 'reset', 'dispose', 'wait'] as const),
    ...(['decode', 'decode', 'prefetch', 'restore'] as const),
  ),
  length: fc.integer({ min: 5, max: TEXT.length }),
  read: fc.nat(7),
  end: fc.constantFrom('rest', 'rest', 'break', 'abort', 'abandon'),
  ticks: fc.nat(8),
});

export const actions: fc.Arbitrary<Action[]> = fc.array(action, { minLength: 8, maxLength: 30 });
export const fewActions: fc.Arbitrary<Action[]> = fc.array(action, { minLength: 3, maxLength: 7 });

/** Runs the actions, compares every complete answer with the answer of a new conversation, and returns their number. */
export async function playActions(model: Model, actions: readonly Action[]): Promise<number> {
  const conversations: (Conversation | undefined)[] = [];
  const answers: { asked: readonly ChatMessage[]; ids: number[] }[] = [];
  const pending: Promise<void>[] = [];

  const ask = async (conversation: Conversation, { kind, length, read, end }: Action) => {
    const stop = new AbortController();
    const options = { ...OPTIONS, signal: stop.signal };
    const stream =
      kind === 'send' ? conversation.send(TEXT.slice(0, length), options) : conversation.regenerate(options);
    if (end === 'abandon') return;
    let pieces = 0;
    for await (const _ of stream) {
      if (++pieces < read) continue;
      if (end === 'abort') stop.abort();
      if (end === 'break') break;
    }
    const { ids, finish } = await stream.result();
    const { messages } = conversation;
    if (finish !== 'cancelled' && messages.at(-1)?.role === 'assistant')
      answers.push({ asked: messages.slice(0, -1), ids });
  };

  /** Reads back what is cached of a conversation, by its text and by itself. */
  const decode = async (conversation: Conversation) => {
    const prompt = model.encodeChat([...conversation.messages, { role: 'user', content: TEXT }]);
    for await (const { values } of model.decodeLeaves(prompt)) deepStrictEqual(values.some(isNotFinite), false);
    await conversation.decode(0);
  };

  /** Goes on with a saved copy. */
  const restore = async (conversation: Conversation): Promise<Conversation> => {
    const chunks: Uint8Array[] = [];
    await conversation.save(new WritableStream({ write: chunk => void chunks.push(chunk.slice()) }));
    const restored = await model.restore(Buffer.concat(chunks));
    await conversation.dispose();
    return restored;
  };

  const perform = async (action: Action): Promise<void> => {
    const { conversation: index, kind } = action;
    conversations[index] ??= model.conversation({ system: `You are ${index}.` });
    const conversation = conversations[index];
    try {
      if (kind === 'reset') await conversation.reset();
      else if (kind === 'undo') await conversation.undo();
      else if (kind === 'decode') await decode(conversation);
      else if (kind === 'prefetch') await conversation.prefetch();
      else if (kind === 'restore') {
        const restored = await restore(conversation);
        if (conversations[index] === conversation) conversations[index] = restored;
        else await restored.dispose();
      } else if (kind === 'dispose') {
        conversations[index] = undefined;
        await conversation.dispose();
      } else if (kind !== 'wait') await ask(conversation, action);
    } catch (error) {
      // Busy, disposed, or nothing to regenerate: errors that a caller can cause. What is read beside answers may find no
      // room. Anything else is a bug.
      const isBeside = kind === 'decode' || kind === 'restore';
      if (!(error instanceof InputError || (isBeside && error instanceof CapacityError))) throw error;
    }
  };

  for (const action of actions) {
    pending.push(perform(action));
    if (action.kind === 'wait') await Promise.all(pending.splice(0));
    for (let tick = 0; tick < action.ticks; tick++) await new Promise(resolve => setImmediate(resolve));
  }
  await Promise.all(pending);
  await Promise.all(conversations.map(conversation => conversation?.dispose()));
  for (const { asked, ids } of answers) deepStrictEqual(ids, (await model.chat(asked, OPTIONS).result()).ids);
  return answers.length;
}
