/** Errors as messages: they come back as the class that they were. */
import * as errors from './errors.ts';

export interface ErrorMessage {
  /** The name of a class of errors.ts, or `Error`. */
  name: string;
  message: string;
  code?: string;
  /** Of a KvasirError. */
  option?: string;
  /** Of a message that names options: the texts between them. */
  wording?: { texts: string[]; options: OptionName[] };
  /** Only of bugs. */
  stack?: string;
}

type OptionName = Parameters<errors.OptionNames>;

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
  const { name, message, stack, code } = error as Error & { code?: unknown };
  return {
    name: classes.has(name) ? name : 'Error',
    message,
    ...(typeof code === 'string' && { code }),
    ...(error instanceof errors.KvasirError ? { option: error.option, wording: splitWording(error) } : { stack }),
  };
}

/** Undefined if it names no option, or has a text that contains the mark. */
function splitWording(error: errors.KvasirError): ErrorMessage['wording'] {
  const options: OptionName[] = [];
  const mark = '\0';
  const texts = error
    .describe((...option) => {
      options.push(option);
      return mark;
    })
    .split(mark);
  return options.length > 0 && texts.length === options.length + 1 ? { texts, options } : undefined;
}

export function decodeError({ name, message, code, option, wording, stack }: ErrorMessage): Error {
  const say: errors.Wording = wording
    ? names => wording.texts.map((text, i) => text + (wording.options[i] ? names(...wording.options[i]) : '')).join('')
    : message;
  const Class = classes.get(name);
  const error = Class ? new Class(say, { option }) : new Error(message);
  if (code !== undefined) Object.assign(error, { code });
  if (stack !== undefined) error.stack = stack;
  return error;
}
