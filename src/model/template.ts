/** Chat templates: a list of messages becomes the text that the model was trained to read. */
import { InputError } from '../errors.ts';
import { parseTemplate, renderTemplate } from './template/bounded.ts';
import { strftime } from './template/strftime.ts';

export interface ChatMessage {
  role: string;
  content: string;
}

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
  /** More variables for the template, e.g. `enable_thinking`. */
  variables?: Record<string, unknown>;
  /** What `strftime_now` takes for now. */
  now?: Date;
}

export interface ChatTemplate {
  /** Says so where the file has no template and ChatML stands in. */
  readonly note?: string;
  render(messages: readonly ChatMessage[], options?: RenderOptions): string;
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

    render(messages, { addGenerationPrompt = true, variables = {}, now = new Date() } = {}) {
      return renderTemplate(program, {
        ...variables,
        messages: messages.map(checkedMessage),
        add_generation_prompt: addGenerationPrompt,
        bos_token: bosToken,
        eos_token: eosToken,
        strftime_now: (format: unknown) => strftime(now, String(format)),
        raise_exception: (message: unknown) => {
          throw new InputError(`The chat template refuses these messages: ${String(message).slice(0, 300)}`);
        },
      });
    },
  };
}

function checkedMessage(message: ChatMessage, index: number): ChatMessage {
  if (typeof message?.role !== 'string' || typeof message.content !== 'string') {
    throw new InputError(`Message ${index} needs a role and a content, both strings.`);
  }
  return message;
}
