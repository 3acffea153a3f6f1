/** Reading a request's body: bounded, and harmless once it is parsed. */
import type { z } from 'zod';
import { describeIssue, expectation } from './body-issues.ts';
import { ApiError, bodyTooLarge, invalidRequest, notJson } from './errors.ts';
import type { Limits } from './limits.ts';

const JSON_TYPE = /^application\/([\w.+-]+\+)?json\s*(;|$)/i;

/**
 * Reads and checks a JSON body. Unknown fields are dropped; a wrong one is a 400 that names it. Other types are refused: a
 * web page may send those to any server without asking it first.
 */
export async function readBody<T>(request: Request, schema: z.ZodType<T>, limits: Limits): Promise<T> {
  const text = await readText(request, limits.body);
  const type = request.headers.get('content-type') ?? '';
  if (text !== '' && !JSON_TYPE.test(type)) throw notJson(type);
  const value = parseJson(text, limits);
  const { success, data, error } = schema.safeParse(value, { error: expectation });
  if (success) return data;
  const { message, param } = describeIssue(error.issues[0], value);
  throw invalidRequest(message, param || undefined);
}

async function readText(request: Request, max: number): Promise<string> {
  if (Number(request.headers.get('content-length')) > max) throw bodyTooLarge(max);
  if (!request.body) return '';
  const chunks: Uint8Array[] = [];
  let size = 0;
  for await (const chunk of request.body) {
    size += chunk.length;
    if (size > max) throw bodyTooLarge(max);
    chunks.push(chunk);
  }
  return new TextDecoder().decode(Buffer.concat(chunks));
}

function parseJson(text: string, limits: Limits): unknown {
  let value: unknown;
  try {
    // Without a body, the first field that is missing is named.
    value = text.trim() === '' ? {} : JSON.parse(text);
  } catch (cause) {
    throw new ApiError(400, 'The body is not valid JSON. Send a JSON object.', { code: 'invalid_json', cause });
  }
  checkJson(value, limits);
  return value;
}

/** Refuses data that is nested too deep or too large to be walked, and keys that could change a prototype. */
function checkJson(root: unknown, { depth, values }: Limits): void {
  let level: unknown[] = [root];
  let count = 0;
  for (let nesting = 0; level.length > 0; nesting++) {
    if (nesting > depth) throw invalidRequest(`The body nests deeper than ${depth} levels.`, undefined, 'invalid_json');
    count += level.length;
    if (count > values) throw invalidRequest(`The body has more than ${values} values.`, undefined, 'invalid_json');
    const next: unknown[] = [];
    for (const value of level) {
      if (typeof value !== 'object' || value === null) continue;
      if (Object.hasOwn(value, '__proto__'))
        throw invalidRequest('The body has a key "__proto__", which is not allowed.', undefined, 'invalid_json');
      for (const child of Object.values(value)) next.push(child);
    }
    level = next;
  }
}
