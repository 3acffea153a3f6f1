/** What a model file says of itself, without its weights. A model that would not run is an UnsupportedError. */
import { chatTemplateWarning } from './chat.ts';
import { readConfig } from './config.ts';
import type { Gguf } from './gguf.ts';
import type { ModelConfig } from './model-config.ts';
import { type ChatTemplate, createChatTemplate } from './template.ts';
import { getString } from './tokenizer/tokenizer-metadata.ts';
import { type ChatTokenizer, createTokenizer } from './tokenizer.ts';

export interface ModelDescription {
  config: ModelConfig;
  tokenizer: ChatTokenizer;
  template: ChatTemplate;
}

/** `context`: max tokens per sequence, by which some models choose their RoPE. Default: the one that a model is loaded with. */
export function readModel(
  gguf: Pick<Gguf, 'metadata' | 'tensors'>,
  options: { context?: number } = {},
): ModelDescription {
  const config = readConfig(gguf, options);
  const tokenizer = createTokenizer(gguf.metadata);
  const textOf = (id: number | undefined) => (id === undefined ? undefined : tokenizer.tokenText(id));
  const parsed = createChatTemplate({
    source: getString(gguf.metadata, 'tokenizer.chat_template'),
    toolSource: getString(gguf.metadata, 'tokenizer.chat_template.tool_use'),
    bosToken: textOf(tokenizer.bos),
    eosToken: textOf(tokenizer.eos),
  });
  return { config, tokenizer, template: { ...parsed, note: parsed.note ?? chatTemplateWarning(tokenizer, parsed) } };
}
