/** A task: questions whose answers can be checked, or choices between given endings. */
import type { Tool } from '../../chat/answer.ts';
import type { Result } from '../../engine/stream.ts';
import type { ChatMessage } from '../../model/template.ts';
import type { DataFile } from './data-file.ts';

/** What the model answered; as a question reads it, without its reasoning. */
export type TaskAnswer = Pick<Result, 'text' | 'toolCalls'>;

/** A question that the model answers in its own words. */
export interface Question {
  id: string;
  /** Items of a group are also reported together: a subject, a data set, a length. */
  group?: string;
  /** Text to continue, or messages to answer. */
  prompt: string | readonly ChatMessage[];
  tools?: readonly Tool[];
  maxTokens: number;
  /** Stop strings. */
  stop?: readonly string[];
  /** The part of an answer that counts, such as its final number. Two answers agree if this is the same. */
  read(answer: TaskAnswer): string;
  /** How right that part is, 0 to 1. */
  score(said: string): number | Promise<number>;
}

/** A context and endings, of which the model prefers the one that it finds most likely. */
export interface Choice {
  id: string;
  group?: string;
  context: string;
  /** Each with the space before it. */
  endings: readonly string[];
  /** Index of the right ending. */
  correct: number;
}

/** Either kind of item, never both. */
export type Task = { name: string; questions: readonly Question[] } | { name: string; choices: readonly Choice[] };

/** What a reader makes items of. */
export interface TaskSource {
  data: DataFile;
  /** Worked examples in the same format. */
  shots?: DataFile;
  /** Whether prompts are messages of a chat. */
  chat: boolean;
  /** Cuts tokens out of the middle of a text, so that it fits into the context with this many other tokens. */
  cutToFit(text: string, otherTokens: number): string;
}

/** A text as the model reads it: a message of a chat, or text to continue after a cue. */
export const promptFor = (text: string, chat: boolean, cue = 'Answer:'): Question['prompt'] =>
  chat ? [{ role: 'user', content: text }] : `${text}\n${cue}`;

/** A worked example of a task. */
export interface Example {
  question: string;
  answer: string;
}

/** Examples before a question: as turns of a chat, or as text with these labels. */
export function fewShotPrompt(
  examples: readonly Example[],
  question: string,
  chat: boolean,
  [ask, reply]: readonly [ask: string, reply: string] = ['Question:', 'Answer:'],
): Question['prompt'] {
  if (chat)
    return [
      ...examples.flatMap(example => [
        { role: 'user', content: example.question },
        { role: 'assistant', content: example.answer },
      ]),
      { role: 'user', content: question },
    ];
  const shots = examples.map(example => `${ask} ${example.question}\n${reply} ${example.answer}\n\n`);
  return `${shots.join('')}${ask} ${question}\n${reply}`;
}
