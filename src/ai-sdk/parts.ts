/** A streamed answer as the parts that the AI SDK reads. */
import type {
  LanguageModelV3Content,
  LanguageModelV3FinishReason,
  LanguageModelV3StreamPart,
  LanguageModelV3Usage,
} from '@ai-sdk/provider';
import type { AnswerDelta } from '../chat/answer.ts';
import type { Finish, Result, Stream } from '../engine/stream.ts';

type Finished = Extract<LanguageModelV3StreamPart, { type: 'finish' }>;

/** Text and reasoning between a start and an end; a tool call as its input arrives, and then whole. */
export async function* streamParts(stream: Stream<AnswerDelta>): AsyncGenerator<LanguageModelV3StreamPart> {
  let blocks = 0;
  let block: { kind: 'text' | 'reasoning'; id: string } | undefined;
  let call: { index: number; toolCallId: string; toolName: string; input: string } | undefined;
  let [calls, reasoningTokens] = [0, 0];

  function* end(): Generator<LanguageModelV3StreamPart> {
    if (block) yield { type: `${block.kind}-end`, id: block.id };
    block = undefined;
    if (call) {
      const { toolCallId, toolName, input } = call;
      yield { type: 'tool-input-end', id: toolCallId };
      yield { type: 'tool-call', toolCallId, toolName, input: input || '{}' };
    }
    call = undefined;
  }
  function* write(kind: 'text' | 'reasoning', delta: string): Generator<LanguageModelV3StreamPart> {
    if (block?.kind !== kind) {
      yield* end();
      block = { kind, id: String(blocks++) };
      yield { type: `${kind}-start`, id: block.id };
    }
    yield { type: `${kind}-delta`, id: block.id, delta };
  }

  try {
    for await (const { text, reasoning, toolCalls = [], tokens } of stream) {
      if (reasoning) {
        reasoningTokens += tokens.length;
        yield* write('reasoning', reasoning);
      }
      if (text) yield* write('text', text);
      for (const { index, id, name, arguments: delta } of toolCalls) {
        if (call?.index !== index) {
          yield* end();
          call = { index, toolCallId: id ?? `call-${index}`, toolName: name ?? '', input: '' };
          calls++;
          yield { type: 'tool-input-start', id: call.toolCallId, toolName: call.toolName };
        }
        if (!delta) continue;
        call.input += delta;
        yield { type: 'tool-input-delta', id: call.toolCallId, delta };
      }
    }
    yield* end();
    yield finishOf(stream.partial, calls, reasoningTokens);
  } finally {
    await stream.return();
  }
}

function finishOf({ finish, usage }: Readonly<Result>, calls: number, reasoning: number): Finished {
  const { promptTokens, reusedTokens, completionTokens } = usage;
  const finishReason = { unified: unifiedReason(finish, calls), raw: finish };
  const counts: LanguageModelV3Usage = {
    inputTokens: {
      total: promptTokens,
      noCache: promptTokens - reusedTokens,
      cacheRead: reusedTokens,
      cacheWrite: undefined,
    },
    outputTokens: { total: completionTokens, text: completionTokens - reasoning, reasoning },
  };
  return { type: 'finish', finishReason, usage: counts };
}

function unifiedReason(finish: Finish, calls: number): LanguageModelV3FinishReason['unified'] {
  if (finish === 'length') return 'length';
  if (finish === 'cancelled') return 'other';
  return calls > 0 ? 'tool-calls' : 'stop';
}

/** The parts of a whole answer, joined. */
export async function collectParts(
  parts: AsyncIterable<LanguageModelV3StreamPart>,
): Promise<{ content: LanguageModelV3Content[] } & Pick<Finished, 'finishReason' | 'usage'>> {
  const content: LanguageModelV3Content[] = [];
  for await (const part of parts) {
    const last = content.at(-1);
    if (part.type === 'text-start') content.push({ type: 'text', text: '' });
    else if (part.type === 'reasoning-start') content.push({ type: 'reasoning', text: '' });
    else if (part.type === 'text-delta' && last?.type === 'text') last.text += part.delta;
    else if (part.type === 'reasoning-delta' && last?.type === 'reasoning') last.text += part.delta;
    else if (part.type === 'tool-call') content.push(part);
    else if (part.type === 'finish') return { content, finishReason: part.finishReason, usage: part.usage };
  }
  throw new Error('An answer ended without its result.');
}
