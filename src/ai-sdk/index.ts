/** `kvasir/ai-sdk`: a loaded model as a language model of the AI SDK (`ai` 6 and 7), in the same process. */
import type { LanguageModelV3 } from '@ai-sdk/provider';
import type { Model } from '../api/model.ts';
import type { ChatOptions } from '../chat/conversation-options.ts';
import { collectParts, streamParts } from './parts.ts';
import { type Call, convertCall } from './prompt.ts';

export interface LanguageModelOptions {
  /** Default: the name in the model file. */
  modelId?: string;
  /** Options of every answer, unless the call has its own. */
  defaults?: ChatOptions;
}

/** For `generateText`, `streamText`, `generateObject` and agents. The model stays the caller's: dispose it yourself. */
export function createLanguageModel(
  model: Model,
  { modelId = model.config.name ?? model.config.architecture, defaults = {} }: LanguageModelOptions = {},
): LanguageModelV3 {
  const start = (call: Call) => {
    const { messages, options, warnings } = convertCall(call, defaults);
    call.abortSignal?.throwIfAborted();
    return { parts: streamParts(model.answer(messages, options)), warnings };
  };
  return {
    // Version 6 of the AI SDK, the last that runs on Node 20, knows no newer one; version 7 takes both.
    specificationVersion: 'v3',
    provider: 'kvasir',
    modelId,
    supportedUrls: {},
    async doGenerate(call) {
      const { parts, warnings } = start(call);
      const collected = await collectParts(parts);
      call.abortSignal?.throwIfAborted();
      return { ...collected, warnings };
    },
    async doStream(call) {
      const { parts, warnings } = start(call);
      const stream = new ReadableStream({
        start: controller => controller.enqueue({ type: 'stream-start', warnings }),
        async pull(controller) {
          const { done, value } = await parts.next();
          call.abortSignal?.throwIfAborted();
          if (done) controller.close();
          else controller.enqueue(value);
        },
        async cancel() {
          await parts.return(undefined);
        },
      });
      return { stream };
    },
  };
}
