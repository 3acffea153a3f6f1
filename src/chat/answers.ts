/** How a conversation answers: a prompt, or messages in the model's chat format, become a stream of tokens, parts or text. */
import { saltOf } from '../cache/salt.ts';
import {
  type GenerateOptions,
  type GenerationContext,
  type GenerationOwner,
  generate,
  maxPromptTokens,
  type OutputFormat,
} from '../engine/generate.ts';
import type { Constraints } from '../engine/grammar/constraint.ts';
import type { StreamBody, Token } from '../engine/stream.ts';
import type { ChatMessage } from '../model/template.ts';
import type { Tokenizer } from '../model/tokenizer.ts';
import { optionError } from '../util/errors.ts';
import type { AnswerDelta } from './answer.ts';
import { answerGrammar, constrainText, prepareAnswer, streamParts } from './answer-stream.ts';
import type { ChatOptions, Prompt, PromptOptions } from './conversation-options.ts';
import { checkChatOptions, checkPrompt, checkPromptOptions } from './options.ts';
import { reuseTokens } from './reuse-tokens.ts';

/** Where conversations answer. */
export interface AnswerContext extends GenerationContext {
  constraints: Constraints;
}

/** Who answers. */
export interface Answerer {
  readonly context: AnswerContext;
  /** Of its answers, unless they name another one. */
  readonly tenant?: string;
  /** Who continues the cache; undefined: nobody. */
  readonly reader?: GenerationOwner;
  /** Tokens of the last prompt and its answer: the answer keeps its own tokens in later prompts. */
  ids: readonly number[];
  /** Of that answer: its cache is that of no other salt. */
  salt: string;
}

const constraintsOf = ({ context, tenant }: Answerer, options: GenerateOptions) =>
  context.constraints.ofTenant(options.tenant ?? tenant);

const streamTokens = (
  answerer: Answerer,
  prompt: readonly number[],
  options: GenerateOptions,
  format?: OutputFormat,
): StreamBody<Token> =>
  async function* (cancellation, result) {
    const { context, reader } = answerer;
    const tenant = options.tenant ?? answerer.tenant;
    try {
      yield* generate(context, prompt, { ...options, tenant }, result, cancellation, reader, format);
    } finally {
      // A prompt that was refused is nowhere in the cache.
      if (result.usage.promptTokens > 0) {
        answerer.ids = [...prompt, ...result.ids];
        answerer.salt = saltOf(tenant ?? '', options.cacheSalt);
      }
    }
  };

/** Checks the options of an answer to messages. */
export function checkChat(answerer: Answerer, options: ChatOptions): void {
  checkChatOptions(options);
  const { template } = answerer.context.engine;
  answerGrammar({ template, constraints: constraintsOf(answerer, options) }, options);
}

/** Answers messages: text, reasoning and tool calls apart. */
export const streamDeltas = (
  answerer: Answerer,
  messages: readonly ChatMessage[],
  { render, tools, toolChoice, allowedTools, parallelToolCalls, continueAnswer, ...options }: ChatOptions,
): StreamBody<AnswerDelta> =>
  async function* (cancellation, result) {
    const { context, ids } = answerer;
    const { tokenizer, template } = context.engine;
    const model = { tokenizer, template, constraints: constraintsOf(answerer, options) };
    const callable = { tools, toolChoice, allowedTools, parallelToolCalls };
    const request = { render, ...callable, continueAnswer, schema: options.schema };
    const answer = prepareAnswer(model, messages, { ...request, maxPromptTokens: maxPromptTokens(context) });
    result.notices.push(...answer.notices);
    const prompt = reuseTokens(tokenizer, ids, answer.prompt);
    const tokens = streamTokens(answerer, prompt, options, answer.output);
    yield* streamParts(tokens(cancellation, result), answer.parser, result);
  };

/** The same, and only the text. */
export const streamText = (...answer: Parameters<typeof streamDeltas>): StreamBody<string> =>
  async function* (...run) {
    for await (const { text } of streamDeltas(...answer)(...run)) if (text) yield text;
  };

/** The prompt that a text is. */
export function encodeText(
  tokenizer: Tokenizer,
  text: string,
  { suffix, ...options }: Pick<PromptOptions, 'parseSpecialTokens' | 'suffix'> & { maxTokens: number },
): number[] {
  const encoding = { bos: tokenizer.addBos, ...options };
  return suffix === undefined ? tokenizer.encode(text, encoding) : tokenizer.encodeInfill(text, suffix, encoding);
}

/** Continues a prompt. Checks the options at once. */
export function streamPrompt(answerer: Answerer, prompt: Prompt, promptOptions: PromptOptions): StreamBody<Token> {
  checkPrompt(prompt);
  checkPromptOptions(promptOptions);
  const { parseSpecialTokens, suffix, ...options } = promptOptions;
  if (suffix !== undefined && typeof prompt !== 'string')
    throw optionError('suffix', 'needs a prompt that is a text; this one is token ids.');
  const { context } = answerer;
  const constraint = constrainText(constraintsOf(answerer, options), options.schema);
  const encoding = { parseSpecialTokens, suffix, maxTokens: maxPromptTokens(context) };
  return async function* (...run) {
    const ids = typeof prompt === 'string' ? encodeText(context.engine.tokenizer, prompt, encoding) : prompt;
    yield* streamTokens(answerer, ids, options, { constraint })(...run);
  };
}
