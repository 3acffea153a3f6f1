/** Errors in the shapes that OpenAI's and Anthropic's clients expect. */

import { closestName } from '../closest-name.ts';
import { CapacityError, DeviceError, FormatError, InputError, KvasirError, UnsupportedError } from '../errors.ts';

interface ApiErrorOptions {
  code?: string;
  /** The field of the request that is wrong. */
  param?: string;
  /** Seconds until a client may try again. */
  retryAfter?: number;
  cause?: unknown;
}

/** An error that a client is told, with its HTTP status. */
export class ApiError extends Error {
  readonly status: number;
  readonly code?: string;
  readonly param?: string;
  readonly retryAfter?: number;

  constructor(status: number, message: string, { code, param, retryAfter, cause }: ApiErrorOptions = {}) {
    super(message, { cause });
    this.name = 'ApiError';
    this.status = status;
    this.code = code;
    this.param = param;
    this.retryAfter = retryAfter;
  }
}

export const invalidRequest = (message: string, param?: string, code?: string): ApiError =>
  new ApiError(400, message, { param, code });

export const invalidKey = (isMissing: boolean): ApiError =>
  new ApiError(
    401,
    isMissing
      ? 'This server needs an API key. Send it as "Authorization: Bearer KEY" or "x-api-key: KEY".'
      : 'This API key is not known to the server.',
    { code: 'invalid_api_key' },
  );

export function modelNotFound(model: string, names: readonly string[]): ApiError {
  const suggestion = closestName(model, names);
  const message =
    `The model "${model.slice(0, 200)}" is not served here. ` +
    (suggestion ? `Did you mean "${suggestion}"? ` : '') +
    `Served: ${names.map(name => `"${name}"`).join(', ')}.`;
  return new ApiError(404, message, { code: 'model_not_found', param: 'model' });
}

export const bodyTooLarge = (max: number): ApiError =>
  new ApiError(413, `The body is larger than ${max} bytes, the limit of this server.`, { code: 'request_too_large' });

export const tooManyRequests = (message: string, retryAfter: number): ApiError =>
  new ApiError(429, message, { code: 'rate_limit_exceeded', retryAfter });

export const unavailable = (message: string, retryAfter: number): ApiError =>
  new ApiError(503, message, { code: 'service_unavailable', retryAfter });

export const timedOut = (ms: number): ApiError =>
  new ApiError(408, `The request took longer than ${ms / 1000} s, the limit of this server.`, {
    code: 'request_timeout',
  });

/** The client has left: nobody reads this one. 499 is nginx's status for it in logs. */
export const clientLeft = (): ApiError => new ApiError(499, 'The client closed the connection.');

/**
 * Any error as one that a client may see. What is not meant for clients is a 500 without details. `fieldOf` returns the
 * field of the request that an option of the engine comes from.
 */
export function toApiError(error: unknown, context?: number, fieldOf = (path: string) => path): ApiError {
  if (error instanceof ApiError) return error;
  if (error instanceof CapacityError) {
    // Clients look for the beginning of OpenAI's message.
    const prefix = context === undefined ? '' : `This model's maximum context length is ${context} tokens. `;
    return new ApiError(400, prefix + error.message, {
      code: 'context_length_exceeded',
      param: 'messages',
      cause: error,
    });
  }
  if (error instanceof DeviceError)
    return new ApiError(503, error.message, { code: 'engine_failed', retryAfter: 5, cause: error });
  if (error instanceof InputError || error instanceof UnsupportedError || error instanceof FormatError) {
    const { path, message } = error;
    if (path === undefined || !message.startsWith(path)) return new ApiError(400, message, { cause: error });
    const param = fieldOf(path);
    return new ApiError(400, param + message.slice(path.length), { param, cause: error });
  }
  if (error instanceof KvasirError) return new ApiError(500, error.message, { code: 'internal_error', cause: error });
  return new ApiError(500, 'Internal error. The log of the server has the details.', {
    code: 'internal_error',
    cause: error,
  });
}

const OPENAI_TYPES: Record<number, string> = {
  401: 'authentication_error',
  408: 'timeout',
  429: 'rate_limit_error',
  500: 'server_error',
  503: 'server_error',
};

export function openaiError({ status, message, code, param }: ApiError): object {
  const type = OPENAI_TYPES[status] ?? 'invalid_request_error';
  return { error: { message, type, param: param ?? null, code: code ?? null } };
}

const ANTHROPIC_TYPES: Record<number, string> = {
  401: 'authentication_error',
  404: 'not_found_error',
  408: 'timeout_error',
  413: 'request_too_large',
  429: 'rate_limit_error',
  500: 'api_error',
  503: 'overloaded_error',
};

export function anthropicError({ status, message }: ApiError): object {
  return { type: 'error', error: { type: ANTHROPIC_TYPES[status] ?? 'invalid_request_error', message } };
}
