/** Chat templates: render a list of messages into the prompt format that the model was trained on. */
import { FormatError, InputError } from '../util/errors.ts';
import { type ChatMessage, templateMessages } from './message.ts';
import { type Program, parseTemplate, renderTemplate } from './template/bounded.ts';
import { strftime } from './template/strftime.ts';

export type { ChatMessage, TextPart, ToolCall } from './message.ts';

export interface ChatTemplateOptions {
  /** The template's source, from the file's `tokenizer.chat_template`. */
  source?: string;
  /** The template for requests with tools, which some files have (`tokenizer.chat_template.tool_use`). */
  toolSource?: string;
  /** Text of the BOS and EOS tokens. */
  bosToken?: string;
  eosToken?: string;
}

export interface RenderOptions {
  /** End with the start of an assistant message, so that the model answers. Default: true. */
  addGenerationPrompt?: boolean;
  /** Additional template variables, such as `tools`, `documents`, `enable_thinking`: any JSON data. */
  variables?: Record<string, unknown>;
  /** The date that `strftime_now` formats. Default: the current time. */
  now?: Date;
}

/** Variables that every template gets; `RenderOptions.variables` cannot override them. */
export const reservedVariables: readonly string[] = [
  'messages',
  'add_generation_prompt',
  'bos_token',
  'eos_token',
  'strftime_now',
  'raise_exception',
  'namespace',
];

export interface ChatTemplate {
  /** A notice that the file has no template and ChatML is used, or that its template cannot be used. */
  readonly note?: string;
  /** The template's source: the file's, with that of its template for tools, or ChatML. */
  readonly source: string;
  /** `mapLiteral` is applied to each string literal of the template. */
  render(messages: readonly ChatMessage[], options?: RenderOptions, mapLiteral?: (text: string) => string): string;
}

const CHATML =
  "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}{% endfor %}" +
  "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

const NO_TEMPLATE =
  'The model file has no chat template; ChatML is used. A base model only continues text: use complete, or run --raw.';

/** A template that cannot be parsed fails when it is used: without it, the model can still continue text. */
function tryParse(
  source: string,
): { program: Program; error?: undefined } | { program?: undefined; error: FormatError } {
  try {
    return { program: parseTemplate(source) };
  } catch (error) {
    if (!(error instanceof FormatError)) throw error;
    return { error: new FormatError(`${error.message} Use complete, or run --raw.`, { cause: error }) };
  }
}

/**
 * Templates come from model files and are untrusted: one that runs too long, produces too much or nests too deep fails
 * with a FormatError when it renders. `raise_exception` in a template throws an InputError.
 */
export function createChatTemplate(options: ChatTemplateOptions): ChatTemplate {
  const { source, toolSource, bosToken = '', eosToken = '' } = options;
  const plain = tryParse(source ?? CHATML);
  const forTools = toolSource === undefined ? plain : tryParse(toolSource);
  const sources = [source ?? CHATML, toolSource ?? ''].join('');
  // OpenAI's newer word for the system: templates that do not know it would leave such a message out.
  const knowsDeveloper = sources.includes('developer');
  return {
    source: sources,
    note: source === undefined ? NO_TEMPLATE : plain.error?.message,

    render(messages, { addGenerationPrompt = true, variables = {}, now = new Date() } = {}, mapLiteral = text => text) {
      const prepared = templateMessages(messages).map(message =>
        message.role === 'developer' && !knowsDeveloper ? { ...message, role: 'system' } : message,
      );
      const { program, error } = variables.tools ? forTools : plain;
      if (error) throw error;
      const render = (list: typeof prepared) =>
        renderTemplate(program, mapLiteral, {
          // Always defined, as in transformers: templates compare them with none.
          tools: null,
          documents: null,
          ...variables,
          messages: list,
          add_generation_prompt: addGenerationPrompt,
          bos_token: mapLiteral(bosToken),
          eos_token: mapLiteral(eosToken),
          strftime_now: (format: unknown) => strftime(now, String(format)),
          raise_exception: (message: unknown) => {
            const reason = String(message).replace(/[\ufdd0-\ufdef]/g, '');
            throw new InputError(`The chat template rejects these messages: ${reason.slice(0, 300)}`);
          },
        });
      if (!prepared.some(({ content }) => content === null)) return render(prepared);
      // Some templates test for null content; others fail on it and get an empty string.
      try {
        return render(prepared);
      } catch (error) {
        if (!(error instanceof FormatError)) throw error;
        return render(prepared.map(message => ({ ...message, content: message.content ?? '' })));
      }
    },
  };
}
