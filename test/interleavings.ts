/** Six conversations on one model, used in any order: what the test of lifetimes plays. */
import { deepStrictEqual } from 'node:assert';
import fc from 'fast-check';
import type { Conversation } from '../src/engine/conversation.ts';
import type { Model } from '../src/engine/model.ts';
import { InputError } from '../src/errors.ts';
import type { ChatMessage } from '../src/model/template.ts';

const TEXT = 'Odin drank the mead, and flew home as an eagle.';
const OPTIONS = { temperature: 0, maxTokens: 8, ignoreEnd: true };

export interface Action {
  /** Which conversation; one that was disposed is opened again. */
  talk: number;
  kind: 'send' | 'regenerate' | 'reset' | 'dispose' | 'wait';
  /** Of what is sent. */
  length: number;
  /** Pieces of the answer that are read before it ends. */
  read: number;
  end: 'rest' | 'break' | 'abort' | 'abandon';
  /** Turns of the event loop before the next action. */
  ticks: number;
}

const action: fc.Arbitrary<Action> = fc.record({
  talk: fc.nat(5),
  kind: fc.constantFrom('send', 'send', 'send', 'send', 'regenerate', 'regenerate', 'reset', 'dispose', 'wait'),
  length: fc.integer({ min: 5, max: TEXT.length }),
  read: fc.nat(7),
  end: fc.constantFrom('rest', 'rest', 'break', 'abort', 'abandon'),
  ticks: fc.nat(8),
});

export const actions: fc.Arbitrary<Action[]> = fc.array(action, { minLength: 8, maxLength: 30 });

/** Plays them, holds every whole answer against the one that it gives alone, and says how many there were. */
export async function play(model: Model, actions: readonly Action[]): Promise<number> {
  const talks: (Conversation | undefined)[] = [];
  const answers: { asked: readonly ChatMessage[]; ids: number[] }[] = [];
  const pending: Promise<void>[] = [];

  const ask = async (talk: Conversation, { kind, length, read, end }: Action) => {
    const stop = new AbortController();
    const options = { ...OPTIONS, signal: stop.signal };
    const stream = kind === 'send' ? talk.send(TEXT.slice(0, length), options) : talk.regenerate(options);
    if (end === 'abandon') return;
    let pieces = 0;
    for await (const _ of stream) {
      if (++pieces < read) continue;
      if (end === 'abort') stop.abort();
      if (end === 'break') break;
    }
    const { ids, finish } = await stream.result();
    const { messages } = talk;
    if (finish !== 'cancelled' && messages.at(-1)?.role === 'assistant')
      answers.push({ asked: messages.slice(0, -1), ids });
  };

  const perform = async (action: Action): Promise<void> => {
    const { talk: index, kind } = action;
    talks[index] ??= model.conversation({ system: `You are ${index}.` });
    const talk = talks[index];
    try {
      if (kind === 'reset') await talk.reset();
      else if (kind === 'dispose') {
        talks[index] = undefined;
        await talk.dispose();
      } else if (kind !== 'wait') await ask(talk, action);
    } catch (error) {
      // Busy, disposed, or nothing to answer again: what a caller may be told. Anything else is a bug.
      if (!(error instanceof InputError)) throw error;
    }
  };

  for (const action of actions) {
    pending.push(perform(action));
    if (action.kind === 'wait') await Promise.all(pending.splice(0));
    for (let tick = 0; tick < action.ticks; tick++) await new Promise(resolve => setImmediate(resolve));
  }
  await Promise.all(pending);
  await Promise.all(talks.map(talk => talk?.dispose()));
  for (const { asked, ids } of answers) deepStrictEqual(ids, (await model.chat(asked, OPTIONS).result()).ids);
  return answers.length;
}
