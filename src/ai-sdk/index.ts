/** `kvasir/ai-sdk`: a loaded model as a language model of the AI SDK (`ai` 7), in the same process. */
import type { LanguageModelV4, LanguageModelV4CallOptions } from '@ai-sdk/provider';
import type { ChatOptions } from '../engine/conversation-options.ts';
import type { Model } from '../engine/model.ts';
import { collectParts, streamParts } from './parts.ts';
import { convertCall } from './prompt.ts';

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
): LanguageModelV4 {
  const start = (call: LanguageModelV4CallOptions) => {
    const { messages, options, warnings } = convertCall(call, defaults);
    call.abortSignal?.throwIfAborted();
    return { parts: streamParts(model.answer(messages, options)), warnings };
  };
  return {
    specificationVersion: 'v4',
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
