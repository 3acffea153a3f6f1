/** Chat templates: a list of messages becomes the text that the model was trained to read. */
import { FormatError, InputError } from '../errors.ts';
import { type ChatMessage, templateMessages } from './message.ts';
import { parseTemplate, renderTemplate } from './template/bounded.ts';
import { strftime } from './template/strftime.ts';

export type { ChatMessage, TextPart, ToolCall } from './message.ts';

export interface ChatTemplateOptions {
  /** The template's source, from the file's `tokenizer.chat_template`. */
  source?: string;
  /** How the vocabulary writes its beginning and end tokens. */
  bosToken?: string;
  eosToken?: string;
}

export interface RenderOptions {
  /** End with the words that make the model answer. True unless said otherwise. */
  addGenerationPrompt?: boolean;
  /** More variables for the template, e.g. `tools`, `documents`, `enable_thinking`: data, as JSON can hold it. */
  variables?: Record<string, unknown>;
  /** What `strftime_now` takes for now. */
  now?: Date;
}

/** Variables that every template gets; others cannot take their names. */
export const templateVariables: readonly string[] = [
  'messages',
  'add_generation_prompt',
  'bos_token',
  'eos_token',
  'strftime_now',
  'raise_exception',
  'namespace',
];

export interface ChatTemplate {
  /** Says so where the file has no template and ChatML stands in. */
  readonly note?: string;
  /** `literal` gets to change each string that the template itself writes. */
  render(messages: readonly ChatMessage[], options?: RenderOptions, literal?: (text: string) => string): string;
}

const CHATML =
  "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}{% endfor %}" +
  "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/**
 * Templates come with model files and are hostile until shown otherwise: one that runs too long, grows too large or
 * nests too deep ends with a FormatError. What a template itself refuses (`raise_exception`) is an InputError.
 */
export function createChatTemplate({ source, bosToken = '', eosToken = '' }: ChatTemplateOptions): ChatTemplate {
  const program = parseTemplate(source ?? CHATML);
  return {
    note: source === undefined ? 'The model file has no chat template; messages are written as ChatML.' : undefined,

    render(messages, { addGenerationPrompt = true, variables = {}, now = new Date() } = {}, literal = text => text) {
      const given = templateMessages(messages);
      const render = (list: typeof given) =>
        renderTemplate(program, literal, {
          ...variables,
          messages: list,
          add_generation_prompt: addGenerationPrompt,
          bos_token: literal(bosToken),
          eos_token: literal(eosToken),
          strftime_now: (format: unknown) => strftime(now, String(format)),
          raise_exception: (message: unknown) => {
            const reason = String(message).replace(/[\ufdd0-\ufdef]/g, '');
            throw new InputError(`The chat template refuses these messages: ${reason.slice(0, 300)}`);
          },
        });
      if (!given.some(({ content }) => content === null)) return render(given);
      // Some templates know a message without content by its null; others fail on null.
      try {
        return render(given);
      } catch (error) {
        if (!(error instanceof FormatError)) throw error;
        return render(given.map(message => ({ ...message, content: message.content ?? '' })));
      }
    },
  };
}
