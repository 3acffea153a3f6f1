/**
 * The messages between a model service and its user: another thread, a page and its Worker, or two processes. All are
 * plain data that can be cloned.
 *
 * The user sends one `Request` per message; the host sends an array of `Event`s, everything that one turn of the event
 * loop has produced: many streams get their tokens in the same pass. A connection is used like this:
 *
 *     user                                     host
 *     load { version, source }            ->
 *                                         <-   progress, ..., then ready { info } or failed { error }
 *     call { id, method, args }           ->
 *                                         <-   value { id, value } or error { id, error }
 *     open { id, method, input, credits } ->
 *                                         <-   prefill { id, done, total }, ..., if asked for
 *                                         <-   delta { id, value, state }, ..., one credit each
 *     credits { id, count }               ->
 *                                         <-   end { id, result } or error { id, error }
 *     close                               ->
 *                                         <-   ended { error }, also when the device is lost
 *
 * - Flow control: the host reads no more of a stream than it has credits for, so that a slow reader parks its request
 *   and at most `CREDITS` deltas wait for it. Other streams go on.
 * - `cancel { id }` ends a stream early. What was computed is still sent, without credits, unless the reader has left.
 * - Ids are chosen by the user; one is in use until its `value`, `error` or `end`.
 * - A message that the host cannot read is answered by an `error` with its id, if it has one.
 */

import type { Result } from '../engine/stream.ts';
import type { LoadProgress } from '../model/weights.ts';
import { describeValue, isPlainObject } from '../util/describe-value.ts';
import type { ErrorMessage } from '../util/error-message.ts';
import { FormatError } from '../util/errors.ts';
import type { ServiceInfo } from './service.ts';

export const PROTOCOL_VERSION = 1;

/** Deltas that may be on their way to a reader. */
export const CREDITS = 64;

/** The methods of a service that return a value. */
const CALL_METHODS = [
  'stats',
  'ping',
  'tokenize',
  'tokenizePrompt',
  'tokenizeChat',
  'detokenize',
  'tokenBytes',
  'nearestText',
  'saveSlot',
  'restoreSlot',
  'eraseSlot',
  'slots',
] as const;
export type CallMethod = (typeof CALL_METHODS)[number];

/** The methods of a service that return a stream. */
const STREAM_METHODS = ['answer', 'generate'] as const;
export type StreamMethod = (typeof STREAM_METHODS)[number];

export interface CallRequest {
  type: 'call';
  id: number;
  method: CallMethod;
  args: unknown[];
}

export interface OpenRequest {
  type: 'open';
  id: number;
  method: StreamMethod;
  input: unknown;
  /** Without functions and signals. */
  options: Record<string, unknown>;
  credits: number;
  /** Whether to send `prefill` events. */
  prefill: boolean;
}

/** What the user sends. */
export type Request =
  /** `source` says what to load; its meaning is up to the host. */
  | { type: 'load'; version: number; source: unknown }
  | CallRequest
  | OpenRequest
  | { type: 'credits'; id: number; count: number }
  | { type: 'cancel'; id: number; hasLeft: boolean }
  | { type: 'close' };

/** The part of a stream's result that is sent with every delta; the rest follows from the deltas. */
export type StreamState = Omit<Result, 'text' | 'ids' | 'logprobs'>;

/** What the host sends, in arrays. */
export type Event =
  | { type: 'progress'; progress: LoadProgress }
  | { type: 'ready'; info: ServiceInfo }
  | { type: 'failed'; error: ErrorMessage }
  | { type: 'value'; id: number; value: unknown }
  | { type: 'prefill'; id: number; done: number; total: number }
  | { type: 'delta'; id: number; value: unknown; state: StreamState }
  | { type: 'end'; id: number; result: Result }
  /** Without an id: a message that could not be read. */
  | { type: 'error'; id?: number; error: ErrorMessage }
  | { type: 'ended'; error: ErrorMessage };

/** One end of a connection. `port.ts` makes one of a MessagePort or a Worker. */
export interface Port {
  /** Throws if the message cannot be cloned. Does nothing after the port has closed. */
  post(message: unknown): void;
  onMessage(listener: (message: unknown) => void): void;
  /** The other end is gone; `reason`: why, if it is known. */
  onClose(listener: (reason?: string) => void): void;
  /** Told whether answers are being waited for; if not, a port need not keep its process alive. */
  setActive?(isActive: boolean): void;
  close(): void;
}

/** Checks the form of a request. Its arguments are checked by the service. */
export function parseRequest(message: unknown): Request {
  if (!isPlainObject(message)) throw new FormatError(`A message must be an object; got ${describeValue(message)}.`);
  const check = (name: string, isValid: boolean) => {
    if (!isValid) throw new FormatError(`A message has an invalid ${name}: ${describeValue(message[name])}.`);
  };
  const { type, id, method } = message;
  const isOneOf = (names: readonly string[]) => names.includes(method as string);
  if (type !== 'load' && type !== 'close') check('id', Number.isSafeInteger(id));
  switch (type) {
    case 'load':
    case 'close':
    case 'cancel':
      break;
    case 'call':
      check('method', isOneOf(CALL_METHODS));
      check('args', Array.isArray(message.args));
      break;
    case 'open':
      check('method', isOneOf(STREAM_METHODS));
      check('options', isPlainObject(message.options));
      check('credits', isCount(message.credits));
      break;
    case 'credits':
      check('count', isCount(message.count));
      break;
    default:
      check('type', false);
  }
  return message as unknown as Request;
}

const isCount = (value: unknown): boolean => Number.isSafeInteger(value) && (value as number) > 0;
