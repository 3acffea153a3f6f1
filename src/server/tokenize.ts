/** POST /tokenize and /detokenize, as llama.cpp's server has them. */
import { z } from 'zod';
import { endsWithBegunAnswer } from '../chat/begun-answer.ts';
import { toIgnored, toMessage, toTools } from './chat-completions.ts';
import { invalidRequest } from './errors.ts';
import type { Limits } from './limits.ts';
import { messageList, toolList } from './openai-schemas.ts';
import type { Route } from './route.ts';
import { flag, jsonObject } from './sampling-schemas.ts';
import { fieldOfAnswer } from './tool-notices.ts';

const tokenizeSchema = (limits: Limits) =>
  z.object({
    content: z.string().nullish(),
    text: z.string().nullish(),
    messages: messageList(limits).nullish(),
    tools: toolList(limits).nullish(),
    add_special: flag,
    parse_special: flag,
    chat_template_kwargs: jsonObject.nullish(),
    continue_final_message: flag,
  });

const FIELDS = { variables: 'chat_template_kwargs', continueAnswer: 'continue_final_message' };

export const tokenize: Route<z.infer<ReturnType<typeof tokenizeSchema>>> = {
  method: 'post',
  path: '/tokenize',
  summary: 'Token ids of a text (`content` or `text`) or of `messages` and `tools` as the model reads them.',
  schema: tokenizeSchema,
  promptField: 'content',
  fieldOf: (path, { tools }) => fieldOfAnswer(path, FIELDS, tools?.map(toIgnored)),
  async handle({ jobs, json }, { messages, tools, add_special, parse_special, ...body }) {
    const service = jobs.service();
    const text = body.content ?? body.text;
    if (text == null && !messages) throw invalidRequest('Send content, text or messages.', 'content');
    const chat = messages?.map(toMessage);
    const tokens = chat
      ? await service.tokenizeChat(chat, {
          variables: body.chat_template_kwargs ?? {},
          tools: toTools(tools),
          continueAnswer: body.continue_final_message ?? endsWithBegunAnswer(chat),
        })
      : await service.tokenize(text ?? '', { bos: add_special ?? false, parseSpecialTokens: parse_special ?? false });
    return json({ tokens, count: tokens.length, max_model_len: service.info.context });
  },
};

const detokenizeSchema = () => z.object({ tokens: z.array(z.int().min(0)) });

export const detokenize: Route<z.infer<ReturnType<typeof detokenizeSchema>>> = {
  method: 'post',
  path: '/detokenize',
  summary: 'The text of token ids.',
  schema: detokenizeSchema,
  handle: async ({ jobs, json }, { tokens }) => json({ content: await jobs.service().detokenize(tokens) }),
};
