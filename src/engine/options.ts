/**
 * Checks of everything that callers give: messages, prompts and options. They run before any work: `chat`, `generate` and
 * `send` throw at once, before there is a stream; `loadModel` and `complete` reject. A test holds these tables and the
 * interfaces of the options together.
 */
import { describe, isPlainObject } from '../describe.ts';
import { InputError } from '../errors.ts';
import { checkContent, checkMessages, eachText } from '../model/message.ts';
import { templateVariables } from '../model/template.ts';
import { boolean, callback, checkOptions, must, number, oneOf, type Rule, text, whole } from './rules.ts';
import { sampleRules } from './sample.ts';

export { checkContent, checkMessages };

const signal = must('an AbortSignal', value => {
  const given = value as AbortSignal | null;
  return (
    typeof given === 'object' && typeof given?.aborted === 'boolean' && typeof given.addEventListener === 'function'
  );
});

const bytes = number('a number of bytes above 0', value => value > 0);

export const loadRules = {
  kv: text("a codec spec such as 'tq4', or 'auto'"),
  kvMemory: bytes,
  pageTokens: whole(1),
  context: whole(1),
  profile: must(
    'the path of a profile, or one that was read by decodeProfile',
    value => typeof value === 'string' || (typeof value === 'object' && value !== null),
  ),
  overflow: oneOf('error', 'slide'),
  device: text("a device's name, such as 'auto'"),
  threads: whole(1),
  precise: boolean,
  prefillChunk: whole(1, 65536),
  memoryLimit: bytes,
  warmUp: boolean,
  signal,
  onProgress: callback,
};

export const generateRules = {
  ...sampleRules,
  maxTokens: whole(1),
  stop: must('a text or an array of texts, none of them empty', value =>
    [value].flat().every(stop => typeof stop === 'string' && stop !== ''),
  ),
  signal,
  ignoreEnd: boolean,
  onPrefill: callback,
};

const variables: Rule = (value, name) => {
  if (!isPlainObject(value)) throw new InputError(`${name} must be an object; got ${describe(value)}.`);
  const taken = Object.keys(value).find(key => templateVariables.includes(key));
  if (taken) throw new InputError(`${name} may not set ${taken}: the chat template gets its own. Choose another name.`);
  eachText(value, name, () => {});
};

export const renderRules = {
  addGenerationPrompt: boolean,
  variables,
  now: must('a valid Date', value => value instanceof Date && !Number.isNaN(value.getTime())),
};

export const chatRules = {
  ...generateRules,
  render: ((value, name) => checkOptions('chat', value, renderRules, `${name}.`)) satisfies Rule,
};

export const promptRules = { ...generateRules, special: boolean };

export const conversationRules = {
  system: text(),
  messages: (value => checkMessages(value)) satisfies Rule,
};

export const checkLoadOptions = (options: unknown): void => checkOptions('loadModel', options, loadRules);
export const checkChatOptions = (options: unknown): void => checkOptions('chat', options, chatRules);
export const checkPromptOptions = (options: unknown): void => checkOptions('generate', options, promptRules);
export const checkConversationOptions = (options: unknown): void =>
  checkOptions('conversation', options, conversationRules);

/** Whether the vocabulary has these ids is known only where there is one. */
export function checkPrompt(prompt: unknown): void {
  if (typeof prompt === 'string') return;
  if (!Array.isArray(prompt))
    throw new InputError(`A prompt is a text or an array of token ids; got ${describe(prompt)}.`);
  const wrong = prompt.findIndex(id => typeof id !== 'number');
  if (wrong >= 0)
    throw new InputError(`A prompt's token ids must be numbers; prompt[${wrong}] is ${describe(prompt[wrong])}.`);
}
