/**
 * Validation of messages, prompts and options. It runs before any work: `chat`, `generate` and `send` throw before they
 * return a stream; `complete` rejects. A test checks that these tables match the option interfaces.
 */

import type { GenerateOptions } from '../engine/generate.ts';
import { signal } from '../engine/options.ts';
import { sampleRules } from '../engine/sample.ts';
import { checkContent, checkMessages, visitStrings } from '../model/message.ts';
import { reservedVariables } from '../model/template.ts';
import { describeValue, isPlainObject } from '../util/describe-value.ts';
import { InputError, optionError } from '../util/errors.ts';
import { boolean, callback, checkOptions, integer, type Rule, rule, string } from '../util/rules.ts';
import type { AnswerRequest, EncodeChatOptions } from './answer-stream.ts';
import { mayContinueAnswer } from './begun-answer.ts';
import { checkAllowedTools, checkToolChoice, checkTools, isToolChoice } from './tools.ts';

export { checkContent, checkMessages };

const generateRules = {
  ...sampleRules,
  maxTokens: integer(1),
  stop: rule('a string or an array of strings, none of them empty', value =>
    [value].flat().every(stop => typeof stop === 'string' && stop !== ''),
  ),
  signal,
  ignoreEos: boolean,
  stopLoops: boolean,
  schema: rule('a JSON Schema, or true', value => value === true || isPlainObject(value)),
  onPrefill: callback,
  tenant: string(),
  cacheSalt: string(),
  readExact: boolean,
};

const variables: Rule = (value, name) => {
  if (!isPlainObject(value)) throw optionError(name, `must be an object; got ${describeValue(value)}.`);
  const reserved = Object.keys(value).find(key => reservedVariables.includes(key));
  if (reserved) throw optionError(name, `cannot set ${reserved}: the chat template defines it. Choose another name.`);
  visitStrings(value, name, () => {});
};

export const renderRules = {
  addGenerationPrompt: boolean,
  variables,
  now: rule('a valid Date', value => value instanceof Date && !Number.isNaN(value.getTime())),
};

const toolRules = {
  tools: checkTools satisfies Rule,
  toolChoice: rule("'auto', 'none', 'required' or { name }", isToolChoice),
};

const allowedTools = rule(
  'an array of names of tools, one or more',
  value => Array.isArray(value) && value.length > 0 && value.every(name => typeof name === 'string'),
);

export const encodeChatRules = { ...renderRules, ...toolRules, continueAnswer: boolean, maxTokens: integer(1) };

export const chatRules = {
  ...generateRules,
  ...toolRules,
  allowedTools,
  parallelToolCalls: boolean,
  continueAnswer: boolean,
  render: ((value, name) => checkOptions('chat', value, renderRules, `${name}.`)) satisfies Rule,
};

export const promptRules = { ...generateRules, parseSpecialTokens: boolean, suffix: string() };

const integers = rule(
  'an array of integers, 0 or more',
  value => Array.isArray(value) && value.every(one => Number.isInteger(one) && one >= 0),
);

export const decodeLeavesRules = { layers: integers, pages: integers, tenant: string(), cacheSalt: string() };

const conversationRules = {
  system: string(),
  tenant: string(),
  messages: (value => checkMessages(value)) satisfies Rule,
};

export function checkChatOptions(options: unknown): void {
  checkOptions('chat', options, chatRules);
  const request = (options ?? {}) as AnswerRequest;
  const { tools, toolChoice = 'auto', allowedTools } = request;
  checkToolChoice(toolChoice, tools);
  checkAllowedTools(allowedTools, toolChoice, tools);
  checkConstrained(options);
  if (request.continueAnswer && !mayContinueAnswer(request))
    throw optionError(
      'continueAnswer',
      'cannot be used with a schema or a tool that must be called: an answer goes on as free text.',
    );
}

export const checkDecodeLeavesOptions = (options: unknown): void =>
  checkOptions('decodeLeaves', options, decodeLeavesRules);

export function checkPromptOptions(options: unknown): void {
  checkOptions('generate', options, promptRules);
  checkConstrained(options);
}

function checkConstrained(options: unknown): void {
  const { schema, ignoreEos } = (options ?? {}) as GenerateOptions;
  if (schema !== undefined && ignoreEos)
    throw new InputError(
      option =>
        `${option('schema')} and ${option('ignoreEos')} cannot be used together: the end of the JSON ends the answer.`,
      { option: 'ignoreEos' },
    );
}

export function checkEncodeChatOptions(options: unknown): void {
  checkOptions('encodeChat', options, encodeChatRules);
  const { tools, toolChoice = 'auto' } = (options ?? {}) as EncodeChatOptions;
  checkToolChoice(toolChoice, tools);
}
export const checkConversationOptions = (options: unknown): void =>
  checkOptions('conversation', options, conversationRules);

/** Checks types only; `generate` checks that the ids are in the vocabulary. */
export function checkPrompt(prompt: unknown): void {
  if (typeof prompt === 'string') return;
  if (!Array.isArray(prompt))
    throw new InputError(`A prompt must be a string or an array of token ids; got ${describeValue(prompt)}.`);
  const wrong = prompt.findIndex(id => typeof id !== 'number');
  if (wrong >= 0)
    throw new InputError(`A prompt's token ids must be numbers; prompt[${wrong}] is ${describeValue(prompt[wrong])}.`);
}
