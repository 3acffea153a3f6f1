/** The tools of an MCP server, twenty of them, whose schemas zod has made: every request is answered, and calls validate. */
import { afterAll, expect, it } from 'vitest';
import { z } from 'zod';
import { loadModel } from '../../../src/api/model.ts';
import { createApp } from '../../../src/server/app.ts';
import { readyBackend } from '../../../src/server/backend.ts';
import { createService } from '../../../src/worker/create-service.ts';
import { ALL_CASES } from '../../support/matrix.ts';
import { mimir } from '../../support/mimir.ts';
import type { Json } from './tiny-server.ts';

const word = z.string().max(8);
const path = z.string().min(1).max(12).describe('A path in the repository');

interface Node {
  value: number;
  children: Node[];
}
const node: z.ZodType<Node> = z.lazy(() => z.object({ value: z.int().min(0).max(9), children: z.array(node).max(2) }));

/** Names and inputs, as `server.registerTool` of MCP's SDK takes them. */
const tools: Record<string, z.ZodObject> = {
  read_file: z.object({ path }),
  'fs.write_file': z.object({ path, mode: z.enum(['create', 'append']).default('create'), content: word.optional() }),
  list_directory: z.object({ path, depth: z.int().min(0).max(5).optional() }),
  set_environment: z.object({ variables: z.record(z.string(), z.boolean()) }),
  set_limits: z.object({ limits: z.record(z.enum(['cpu', 'memory']), z.int().min(1).max(64)) }),
  set_labels: z.object({ labels: z.record(z.string().regex(/^[a-z]{1,4}$/), z.boolean()) }),
  send_mail: z.object({ to: z.email(), urgent: z.boolean() }),
  open_page: z.object({ url: z.url(), dark: z.boolean().optional() }),
  get_issue: z.strictObject({ id: z.uuid() }),
  schedule: z.object({ at: z.iso.datetime(), day: z.iso.date(), every: z.literal([1, 7, 30]) }),
  move: z.object({ by: z.tuple([z.int().min(-9).max(9), z.int().min(-9).max(9)]) }),
  draw: z.object({
    shape: z.discriminatedUnion('kind', [
      z.object({ kind: z.literal('circle'), radius: z.int().min(1).max(9) }),
      z.object({ kind: z.literal('square'), side: z.int().min(1).max(9) }),
    ]),
  }),
  set_slug: z.object({
    slug: z
      .string()
      .min(2)
      .max(9)
      .regex(/^[a-z][a-z0-9-]*$/),
  }),
  transfer: z.object({ amount: z.number().min(0).max(100).multipleOf(0.01), note: word.nullable() }),
  tree: z.object({ root: node }),
  merge: z.object({ both: z.intersection(z.object({ a: z.boolean() }), z.object({ b: z.boolean() })) }),
  search: z.object({ query: word, options: z.looseObject({ limit: z.int().min(1).max(9) }) }),
  // What cannot be enforced: a look-ahead, a step, and a value of two types at once.
  wait: z.object({ duration: z.iso.duration() }),
  set_volume: z.object({ volume: z.number().min(0).max(10).multipleOf(0.5) }),
  convert: z
    .object({ from: z.union([z.number(), z.int()]) })
    .meta({ oneOf: [{ required: ['from'] }, { required: [] }] }),
};
const WIDENED = ['wait', 'set_volume', 'convert'];

const list = Object.entries(tools).map(([name, schema]) => ({
  type: 'function',
  function: { name, description: `Does ${name}`, parameters: z.toJSONSchema(schema, { io: 'input' }) },
}));

const service = createService(await loadModel(mimir, { context: 16384, kv: 'tq4' }));
afterAll(() => service.close());
const app = createApp({ backend: readyBackend(service), names: ['mimir'] });
const ask = async (path: string, body: object) => {
  const headers = { 'content-type': 'application/json' };
  return app.fetch(new Request(`http://localhost${path}`, { method: 'POST', headers, body: JSON.stringify(body) }));
};
const messages = [{ role: 'user', content: 'Use a tool.' }];

it('there are twenty', () => expect(list.length).toBe(20));

it('auto: no 400, and the notice names what is not enforced', async () => {
  const response = await ask('/v1/chat/completions', { messages, tools: list, max_tokens: 8 });
  expect(response.status, await response.clone().text()).toBe(200);
  const notice = response.headers.get('x-kvasir-notice') ?? '';
  for (const name of Object.keys(tools)) {
    const field = `tools[${list.findIndex(tool => tool.function.name === name)}].function.parameters`;
    expect(notice.includes(field), `${name}: ${notice}`).toBe(WIDENED.includes(name));
  }
});

/** A small model does not end a text by itself: what may end it is more likely. */
const ENDS = { '"': 30, '}': 30, ']': 30, Z: 20, '@': 20, '.': 10 };
const logit_bias: Record<number, number> = {};
for (const [content, bias] of Object.entries(ENDS))
  logit_bias[((await (await ask('/tokenize', { content })).json()) as Json).tokens[0]] = bias;

it.each(Object.keys(tools).filter((_, i) => ALL_CASES || i % 4 === 0))(
  '%s: its call satisfies the schema',
  async name => {
    const tool_choice = { type: 'function', function: { name } };
    const request = { messages, tools: list, tool_choice, seed: 5, logit_bias, max_tokens: 200 };
    const response = await ask('/v1/chat/completions', request);
    expect(response.status).toBe(200);
    const { choices } = (await response.json()) as Json;
    const [{ function: called }] = choices[0].message.tool_calls;
    expect(choices[0].finish_reason, called.arguments).toBe('tool_calls');
    expect(called.name).toBe(name);
    const { success, error } = tools[name].safeParse(JSON.parse(called.arguments));
    if (!WIDENED.includes(name)) expect(success, `${called.arguments}: ${error}`).toBe(true);
  },
);

it("as Anthropic's tools", async () => {
  const anthropic = list.map(({ function: { parameters, ...tool } }) => ({ ...tool, input_schema: parameters }));
  const request = { messages, tools: anthropic, tool_choice: { type: 'tool', name: 'draw' }, max_tokens: 150 };
  const { content, stop_reason } = (await (await ask('/v1/messages', request)).json()) as Json;
  expect(stop_reason).toBe('tool_use');
  expect(tools.draw.safeParse(content[0].input).success).toBe(true);
});
