/** What differs between the APIs around their answers: the shape of errors, and the frame of a stream. */
import type { ApiError } from './errors.ts';
import { formatEvent } from './sse.ts';

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

const OPENAI_TYPES: Record<number, string> = {
  401: 'authentication_error',
  408: 'timeout',
  429: 'rate_limit_error',
  500: 'server_error',
  503: 'server_error',
};

export const openaiWire: Wire = {
  error({ status, message, code, param }) {
    const type = OPENAI_TYPES[status] ?? 'invalid_request_error';
    return { error: { message, type, param: param ?? null, code: code ?? null } };
  },
  contentType: EVENTS,
  errorEvent: error => formatEvent(openaiWire.error(error), 'error'),
  heartbeat: ': heartbeat\n\n',
};

const ANTHROPIC_TYPES: Record<number, string> = {
  401: 'authentication_error',
  404: 'not_found_error',
  408: 'timeout_error',
  413: 'request_too_large',
  429: 'rate_limit_error',
  500: 'api_error',
  503: 'overloaded_error',
};

export const anthropicWire: Wire = {
  error: ({ status, message }) => ({
    type: 'error',
    error: { type: ANTHROPIC_TYPES[status] ?? 'invalid_request_error', message },
  }),
  contentType: EVENTS,
  errorEvent: error => formatEvent(anthropicWire.error(error), 'error'),
  heartbeat: formatEvent({ type: 'ping' }, 'ping'),
};

/** A line of JSON per part. Clients parse every line: a heartbeat is a part in which nothing is new. */
export function ollamaWire(emptyPart: object): Wire {
  const error: Wire['error'] = ({ message }) => ({ error: message });
  return {
    error,
    contentType: 'application/x-ndjson',
    errorEvent: shown => formatLine(error(shown)),
    heartbeat: formatLine({ ...emptyPart, done: false }),
  };
}

export const formatLine = (part: object): string => `${JSON.stringify(part)}\n`;
