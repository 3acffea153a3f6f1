/** What differs between the APIs around their answers: the shape of errors, and the frame of a stream. */
import { type ApiError, anthropicError, ollamaError, openaiError } from './errors.ts';
import { COMMENT_HEARTBEAT, formatEvent } from './sse.ts';

export interface Wire {
  /** The body of an error. */
  error(error: ApiError): object;
  /** Of a stream. */
  contentType: string;
  /** An error after the stream has begun. */
  errorEvent(error: ApiError): string;
  /** What is sent while there is nothing to say. */
  heartbeat: string;
}

const EVENTS = 'text/event-stream; charset=utf-8';

export const openaiWire: Wire = {
  error: openaiError,
  contentType: EVENTS,
  errorEvent: error => formatEvent(openaiError(error), 'error'),
  heartbeat: COMMENT_HEARTBEAT,
};

export const anthropicWire: Wire = {
  error: anthropicError,
  contentType: EVENTS,
  errorEvent: error => formatEvent(anthropicError(error), 'error'),
  heartbeat: formatEvent({ type: 'ping' }, 'ping'),
};

/** A line of JSON per part. Clients parse every line: a heartbeat is a part in which nothing is new. */
export const ollamaWire = (emptyPart: object): Wire => ({
  error: ollamaError,
  contentType: 'application/x-ndjson',
  errorEvent: error => formatLine(ollamaError(error)),
  heartbeat: formatLine({ ...emptyPart, done: false }),
});

export const formatLine = (part: object): string => `${JSON.stringify(part)}\n`;
