/** The OpenAPI document, made from the table of routes and their schemas. */
import { z } from 'zod';
import { packageVersion } from '../util/version.ts';
import type { Limits } from './limits.ts';
import type { Route } from './route.ts';
import { openaiWire } from './wire.ts';

const error = { description: 'An error: `{ "error": { "message", "type", "param", "code" } }`.' };

export function createOpenApi(routes: readonly Route[], limits: Limits, needsKey: boolean): object {
  const paths: Record<string, Record<string, object>> = {};
  for (const route of routes) {
    const { path, parameters } = pathOf(route.path);
    paths[path] ??= {};
    paths[path][route.method] = {
      summary: route.summary,
      operationId: `${route.method}${path.replace(/\W+(\w?)/g, (_, letter: string) => letter.toUpperCase())}`,
      ...(parameters.length > 0 && { parameters }),
      ...(route.schema && {
        requestBody: {
          required: true,
          content: { 'application/json': { schema: bodySchema(route.schema(limits)) } },
        },
      }),
      responses: {
        200: {
          description: 'The answer.',
          content: {
            [route.path === '/metrics' ? 'text/plain' : 'application/json']: { schema: {} },
            ...(route.streams && { [streamType(route)]: { schema: { type: 'string' } } }),
          },
        },
        default: error,
      },
      security: needsKey && !route.isPublic ? [{ bearer: [] }, { apiKey: [] }] : [],
    };
  }
  return {
    openapi: '3.1.0',
    info: { title: 'Kvasir', version: packageVersion, description: 'An OpenAI-compatible server.' },
    paths,
    components: {
      securitySchemes: {
        bearer: { type: 'http', scheme: 'bearer' },
        apiKey: { type: 'apiKey', in: 'header', name: 'x-api-key' },
      },
    },
  };
}

/** Without its charset. */
const streamType = ({ wire = openaiWire }: Route): string => wire.contentType.split(';')[0];

/** OpenAPI's JSON Schema dialect is 2020-12; the document says so once. */
function bodySchema(schema: z.ZodType): object {
  const { $schema: _, ...rest } = z.toJSONSchema(schema, { io: 'input' });
  return rest;
}

/** `/slots/:id{.+}` as `/slots/{id}`, and its parameters. */
function pathOf(pattern: string) {
  const parameters: object[] = [];
  const path = pattern.replace(/:(\w+)(\{[^}]*\})?/g, (_, name: string) => {
    parameters.push({ name, in: 'path', required: true, schema: { type: 'string' } });
    return `{${name}}`;
  });
  return { path, parameters };
}
