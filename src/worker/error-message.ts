/** Errors as messages: they come back as the class that they were. */
import * as errors from '../util/errors.ts';

export interface ErrorMessage {
  /** The name of a class of errors.ts, or `Error`. */
  name: string;
  message: string;
  code?: string;
  /** Of a KvasirError. */
  path?: string;
  /** Only of bugs. */
  stack?: string;
}

type ErrorClass = typeof errors.KvasirError;

const isErrorClass = (value: unknown): value is ErrorClass =>
  typeof value === 'function' && (value === errors.KvasirError || value.prototype instanceof errors.KvasirError);

const classes = new Map<string, ErrorClass>(
  Object.values<unknown>(errors)
    .filter(isErrorClass)
    .map(one => [one.name, one]),
);

export function encodeError(error: unknown): ErrorMessage {
  if (!(error instanceof Error)) return { name: 'Error', message: String(error) };
  const { name, message, stack, code, path } = error as Error & { code?: unknown; path?: unknown };
  return {
    name: classes.has(name) ? name : 'Error',
    message,
    ...(typeof code === 'string' && { code }),
    ...(error instanceof errors.KvasirError && typeof path === 'string' && { path }),
    ...(!(error instanceof errors.KvasirError) && { stack }),
  };
}

export function decodeError({ name, message, code, path, stack }: ErrorMessage): Error {
  const error = new (classes.get(name) ?? Error)(message, { path });
  if (code !== undefined) Object.assign(error, { code });
  if (stack !== undefined) error.stack = stack;
  return error;
}
