/** An answer as the items of the Responses API, and the events by which a client follows them. */
import type { AnswerDelta } from '../chat/answer.ts';

type Status = 'in_progress' | 'completed' | 'incomplete';

/** As chat completions have them. */
export interface Logprob {
  token?: string;
  logprob?: number;
  bytes?: number[];
  top_logprobs?: Logprob[];
}

interface TextPart {
  type: 'output_text';
  text: string;
  annotations: object[];
  logprobs: Logprob[];
}

interface ReasoningPart {
  type: 'reasoning_text';
  text: string;
}

export type OutputItem =
  | { type: 'message'; id: string; role: 'assistant'; status: Status; content: TextPart[] }
  | { type: 'reasoning'; id: string; status: Status; summary: object[]; content: ReasoningPart[] }
  | { type: 'function_call'; id: string; status: Status; call_id: string; name: string; arguments: string };

export interface ResponseObject {
  id: string;
  status: Status | 'failed';
  output: OutputItem[];
  [field: string]: unknown;
}

/** Without its sequence number. */
export interface ResponseEvent {
  type: string;
  [field: string]: unknown;
}

export interface ResponseOutput {
  readonly items: OutputItem[];
  /** The events of a part of the answer. */
  add(delta: AnswerDelta, logprobs: Logprob[]): Generator<ResponseEvent>;
  /** The events that complete the last item. */
  end(status: Status): Generator<ResponseEvent>;
}

/** Items come one after another: each is added, grows, and is done before the next. */
export function createOutput(id: string): ResponseOutput {
  const items: OutputItem[] = [];
  /** The call that the last item is. */
  let call: number | undefined;

  /** Where the last item is, and of text and reasoning, its one part. */
  const place = () => ({ item_id: items.at(-1)!.id, output_index: items.length - 1 });
  const partPlace = () => ({ ...place(), content_index: 0 });
  const itemEvent = (type: string): ResponseEvent => ({
    type: `response.output_item.${type}`,
    output_index: items.length - 1,
    item: { ...items.at(-1)! },
  });
  const partEvent = (type: string, part: TextPart | ReasoningPart): ResponseEvent => ({
    type: `response.content_part.${type}`,
    ...partPlace(),
    part: { ...part },
  });

  function* end(status: Status): Generator<ResponseEvent> {
    const item = items.at(-1);
    if (item?.status !== 'in_progress') return;
    item.status = status;
    if (item.type === 'function_call') {
      const { name, arguments: args } = item;
      yield { type: 'response.function_call_arguments.done', ...place(), name, arguments: args };
    } else {
      const [part] = item.content;
      const { text } = part;
      if (part.type === 'reasoning_text') yield { type: 'response.reasoning_text.done', ...partPlace(), text };
      else yield { type: 'response.output_text.done', ...partPlace(), text, logprobs: part.logprobs.map(withoutBytes) };
      yield partEvent('done', part);
    }
    yield itemEvent('done');
  }

  function* begin(item: OutputItem): Generator<ResponseEvent> {
    yield* end('completed');
    items.push(item);
    if (item.type === 'function_call') return yield itemEvent('added');
    yield { ...itemEvent('added'), item: { ...item, content: [] } };
    yield partEvent('added', item.content[0]);
  }

  function* addReasoning(delta: string): Generator<ResponseEvent> {
    if (items.at(-1)?.type !== 'reasoning')
      yield* begin({
        ...{ type: 'reasoning', id: `rs_${id}_${items.length}`, status: 'in_progress', summary: [] },
        content: [{ type: 'reasoning_text', text: '' }],
      });
    const item = items.at(-1);
    if (item?.type === 'reasoning') item.content[0].text += delta;
    yield { type: 'response.reasoning_text.delta', ...partPlace(), delta };
  }

  function* addText(delta: string, logprobs: Logprob[]): Generator<ResponseEvent> {
    if (items.at(-1)?.type !== 'message')
      yield* begin({
        ...{ type: 'message', id: `msg_${id}_${items.length}`, status: 'in_progress', role: 'assistant' },
        content: [{ type: 'output_text', text: '', annotations: [], logprobs: [] }],
      });
    const item = items.at(-1);
    if (item?.type === 'message') {
      item.content[0].text += delta;
      item.content[0].logprobs.push(...logprobs);
    }
    yield { type: 'response.output_text.delta', ...partPlace(), delta, logprobs: logprobs.map(withoutBytes) };
  }

  return {
    items,
    end,
    *add({ text, reasoning, toolCalls = [] }, logprobs) {
      if (reasoning) yield* addReasoning(reasoning);
      if (text) yield* addText(text, logprobs);
      for (const { index, id: callId = '', name = '', arguments: delta } of toolCalls) {
        if (call !== index)
          yield* begin({
            ...{ type: 'function_call', id: `fc_${id}_${items.length}`, status: 'in_progress' },
            ...{ call_id: callId, name, arguments: '' },
          });
        call = index;
        const item = items.at(-1);
        if (!delta || item?.type !== 'function_call') continue;
        item.arguments += delta;
        yield { type: 'response.function_call_arguments.delta', ...place(), delta };
      }
    },
  };
}

/** In events, log probabilities have no bytes. */
const withoutBytes = ({ token, logprob, top_logprobs: top }: Logprob): Logprob => ({
  token,
  logprob,
  ...(top && { top_logprobs: top.map(withoutBytes) }),
});
