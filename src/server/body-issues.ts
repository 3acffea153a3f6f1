/** What is wrong with a field of a body, in the words of the engine's own errors. */
import type { z } from 'zod';
import { describeValue } from '../util/describe-value.ts';

const TYPES: Record<string, string> = {
  int: 'an integer',
  number: 'a number',
  string: 'a string',
  boolean: 'true or false',
  array: 'an array',
  object: 'an object',
  record: 'an object',
};

/** What the field must be. Schemas may have words of their own. */
export function expectation(issue: z.core.$ZodRawIssue): string {
  switch (issue.code) {
    case 'invalid_type':
      return `must be ${TYPES[issue.expected] ?? issue.expected}`;
    case 'invalid_value':
      return `must be ${issue.values.map(value => JSON.stringify(value)).join(' or ')}`;
    case 'too_small':
      return issue.inclusive ? bounded(issue, `${issue.minimum} or more`) : `must be above ${issue.minimum}`;
    case 'too_big':
      return bounded(issue, `at most ${issue.maximum}`);
    case 'invalid_key':
      return issue.issues[0].message;
    default:
      return 'must have another type';
  }
}

const bounded = ({ origin }: { origin: string }, range: string): string =>
  origin === 'array'
    ? `must have ${range} entries`
    : origin === 'string'
      ? `must have ${range} characters`
      : `must be ${range}`;

/** The field, as in `messages[0].content`, and the message that begins with it. */
export function describeIssue(
  { code, path, message }: z.core.$ZodIssue,
  body: unknown,
): { param: string; message: string } {
  if (code === 'invalid_key') {
    const param = formatPath(path.slice(0, -1));
    return { param, message: `${param} has the key ${JSON.stringify(path.at(-1))}: its keys ${message}.` };
  }
  const param = formatPath(path);
  const subject = param || 'The body';
  const value = path.reduce<unknown>((parent, key) => (parent as Record<PropertyKey, unknown>)?.[key], body);
  if (!message.startsWith('must ')) return { param, message: `${subject} ${message}.` };
  // Of an object that several schemas share, zod names the field that tells them apart.
  const rule = path.at(-1) === 'type' ? message.replace('must have the type', 'must be') : message;
  return {
    param,
    message:
      value === undefined ? `${subject} is missing: it ${rule}.` : `${subject} ${rule}; got ${describeValue(value)}.`,
  };
}

/** `messages[0].content`. */
const formatPath = (path: readonly PropertyKey[]): string =>
  path.reduce<string>(
    (text, key) => (typeof key === 'number' ? `${text}[${key}]` : text ? `${text}.${String(key)}` : String(key)),
    '',
  );
