/** Errors that clients are told, in the shapes that they expect. */

import { loadRules } from '../engine/options.ts';
import { closestName } from '../util/closest-name.ts';
import {
  CapacityError,
  ContextError,
  DeviceError,
  FormatError,
  InputError,
  KvasirError,
  type OptionNames,
  QualityError,
  UnsupportedError,
} from '../util/errors.ts';
import { splitWords } from '../util/option-name.ts';

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

export const operatorsOnly = (): ApiError =>
  new ApiError(
    403,
    'This is for operators: it shows what all tenants do. Use the port of --operator-port, or a key of a tenant with ' +
      '"operator": true in the file of --api-keys.',
    { code: 'operators_only' },
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

export const notJson = (type: string): ApiError =>
  new ApiError(
    415,
    `The body is ${type.slice(0, 100) || 'of no type'}. Send JSON with "content-type: application/json".`,
    {
      code: 'unsupported_media_type',
    },
  );

export const tooManyRequests = (message: string, retryAfter: number): ApiError =>
  new ApiError(429, message, { code: 'rate_limit_exceeded', retryAfter });

export const unavailable = (message: string, retryAfter: number): ApiError =>
  new ApiError(503, message, { code: 'service_unavailable', retryAfter });

/**
 * Not 408 or 504, which clients take for a fault of the network: they would send the request again, which takes as long.
 * No client repeats what got a 400.
 */
export const timedOut = (ms: number): ApiError =>
  new ApiError(
    400,
    `The request took longer than ${ms / 1000} s, the limit of this server. ` +
      'Ask for fewer tokens, shorten the prompt, or start the server with a longer --request-timeout.',
    { code: 'request_timeout' },
  );

/** Whom an error is shown. */
export interface ErrorAudience {
  /** Max tokens per sequence. */
  context?: number;
  /** The field of the request that an option of the engine comes from. */
  fieldOf?: (path: string) => string;
  /** The field that is read as the prompt. Default: `messages`. */
  promptField?: string;
}

/** The client has left: nobody reads this one. 499 is nginx's status for it in logs. */
export const clientLeft = (): ApiError => new ApiError(499, 'The client closed the connection.');

/** Seconds until what others use may be free again. */
const CAPACITY_SECONDS = 5;

/** The field of an option if a route has no other name for it: `max_tokens` for `maxTokens`. */
export const fieldOfOption = (path: string): string => path.replace(/^\w+/, name => splitWords(name, '_'));

const isServerOption = (option: string): boolean => Object.hasOwn(loadRules, option);

/** Any error as one that a client may see, in the words of its API. What is not meant for clients is a 500 without details. */
export function toApiError(error: unknown, audience: ErrorAudience = {}): ApiError {
  const { context, fieldOf = fieldOfOption, promptField = 'messages' } = audience;
  if (error instanceof ApiError) return error;
  if (!(error instanceof KvasirError))
    return new ApiError(500, 'Internal error. The log of the server has the details.', {
      code: 'internal_error',
      cause: error,
    });
  const names: OptionNames = (option, value) =>
    isServerOption(option)
      ? `\`kvasir serve --${splitWords(option, '-')}${value === undefined ? '' : ` ${value}`}\``
      : fieldOf(option);
  const message = error.describe(names);
  if (error instanceof ContextError) {
    // Clients look for the beginning of OpenAI's message.
    const prefix = context === undefined ? '' : `This model's maximum context length is ${context} tokens. `;
    return new ApiError(400, prefix + message, { code: 'context_length_exceeded', param: promptField, cause: error });
  }
  // Memory of the device or a disk: not a fault of the request.
  if (error instanceof CapacityError)
    return new ApiError(503, message, {
      code: 'insufficient_capacity',
      retryAfter: CAPACITY_SECONDS,
      cause: error,
    });
  if (error instanceof DeviceError)
    return new ApiError(503, message, { code: 'engine_failed', retryAfter: 5, cause: error });
  // As after a time-out: the answer would fail again. The log has it as a warning.
  if (error instanceof QualityError) return new ApiError(400, message, { code: 'codec_not_suitable', cause: error });
  if (error instanceof InputError || error instanceof UnsupportedError || error instanceof FormatError) {
    const { option } = error;
    const param = option === undefined || isServerOption(option) ? undefined : fieldOf(option);
    return new ApiError(400, message, { param, cause: error });
  }
  return new ApiError(500, message, { code: 'internal_error', cause: error });
}

const OPENAI_TYPES: Record<number, string> = {
  401: 'authentication_error',
  403: 'permission_error',
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
  403: 'permission_error',
  404: 'not_found_error',
  413: 'request_too_large',
  429: 'rate_limit_error',
  500: 'api_error',
  503: 'overloaded_error',
};

export function anthropicError({ status, message }: ApiError): object {
  return { type: 'error', error: { type: ANTHROPIC_TYPES[status] ?? 'invalid_request_error', message } };
}

export const ollamaError = ({ message }: ApiError): object => ({ error: message });
