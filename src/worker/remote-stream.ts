/** A stream whose body runs at the other end of a port. */
import type { AnswerDelta } from '../chat/answer.ts';
import { createOutputQueue, type OutputQueue } from '../engine/output-queue.ts';
import { createStream, type Result, type Stream, type Token } from '../engine/stream.ts';
import { type CallRequest, CREDITS, type OpenRequest, type Request, type StreamState } from './protocol.ts';
import type { AnswerOptions, ServicePromptOptions } from './service.ts';

/** What waits for the other end: a call, or a stream. */
export interface Pending {
  onValue?(value: unknown): void;
  onDelta?(delta: Delta): void;
  onPrefill?(done: number, total: number): void;
  onEnd?(result: Result): void;
  fail(error: Error): void;
}

export interface Delta {
  value: unknown;
  state: StreamState;
}

/** A request that is waited for, before it has an id. */
export type NewRequest = Omit<OpenRequest, 'id'> | Omit<CallRequest, 'id'>;

/** The connection that a stream belongs to. */
export interface StreamConnection {
  /** Registers a stream and sends its request. Throws if the connection takes no requests. */
  start(pending: Pending, request: NewRequest): number;
  isPending(id: number): boolean;
  post(request: Request): void;
}

/** Opened when it is first read. */
export function createRemoteStream<T extends AnswerDelta | Token>(
  { start, isPending, post }: StreamConnection,
  { method, input }: Pick<OpenRequest, 'method' | 'input'>,
  { signal, onPrefill, ...options }: AnswerOptions | ServicePromptOptions = {},
): Stream<T> {
  let id: number | undefined;
  let last: Result | undefined;
  let stop: () => void;
  const stopped = new Promise<void>(resolve => {
    stop = resolve;
  });

  /** Only while it is open: other requests may not be sent. */
  const postIfOpen = (request: { type: 'cancel'; hasLeft: boolean } | { type: 'credits'; count: number }) => {
    if (id !== undefined && isPending(id)) post({ ...request, id });
  };
  const leave = () => postIfOpen({ type: 'cancel', hasLeft: true });
  const onAbort = () => postIfOpen({ type: 'cancel', hasLeft: false });

  const open = (): OutputQueue<Delta> => {
    const deltas = createOutputQueue<Delta>(() => {});
    const pending: Pending = {
      onDelta: delta => deltas.push(delta),
      onPrefill(done, total) {
        try {
          onPrefill?.({ done, total });
        } catch (error) {
          deltas.end(error);
          leave();
        }
      },
      onEnd(result) {
        last = result;
        deltas.end();
        stop();
      },
      fail(error) {
        deltas.end(error);
        stop();
      },
    };
    const prefill = onPrefill !== undefined;
    id = start(pending, { type: 'open', method, input, options: { ...options }, credits: CREDITS, prefill });
    signal?.addEventListener('abort', onAbort);
    if (signal?.aborted) onAbort();
    return deltas;
  };

  const stream = createStream<T>(async function* (_cancellation, result) {
    let read = 0;
    try {
      for await (const { value, state } of open()) {
        Object.assign(result, state);
        addToResult(result, value as T);
        if (++read % (CREDITS / 2) === 0) postIfOpen({ type: 'credits', count: CREDITS / 2 });
        yield value as T;
      }
      Object.assign(result, last);
    } finally {
      signal?.removeEventListener('abort', onAbort);
      leave();
      // As in one process: nothing of it runs any more when the stream has ended.
      if (id !== undefined) await stopped;
    }
  });
  // A read that is waiting must end now, not with its next token.
  const { return: end } = stream;
  stream.return = () => {
    leave();
    return end();
  };
  return stream;
}

/** As the host's own result grows. */
function addToResult(result: Result, value: AnswerDelta | Token): void {
  const tokens = 'tokens' in value ? value.tokens : [value];
  result.text += value.text ?? '';
  for (const { id, logprob, top } of tokens) {
    result.ids.push(id);
    if (logprob === undefined || !top) continue;
    result.logprobs ??= [];
    result.logprobs.push({ id, logprob, top });
  }
}
