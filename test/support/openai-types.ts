/**
 * Answers of a server against the types of the package `openai`, which are generated from OpenAI's OpenAPI document: they
 * become constants of a program that TypeScript checks, fields that the document does not know included.
 */
import type { Json } from '../programs/server/tiny-server.ts';

type Ask = (path: string, body: object) => Promise<Response>;

/** What the clients' types leave out or add, and no more. */
const HEADER = `import type OpenAI from 'openai';
type Chat = OpenAI.Chat.ChatCompletion;
type ChatChunk = OpenAI.Chat.ChatCompletionChunk;
type Completion = OpenAI.Completion;
// The document has one type for whole completions and chunks. OpenAI's own chunks have these nulls.
type CompletionChunk = Omit<Completion, 'choices' | 'usage'> & {
  choices: (Omit<OpenAI.CompletionChoice, 'finish_reason'> & {
    finish_reason: OpenAI.CompletionChoice['finish_reason'] | null;
  })[];
  usage?: OpenAI.CompletionUsage | null;
};
// The client adds output_text to what it receives. Access programs are a matter of OpenAI's own service.
type Whole = Omit<OpenAI.Responses.Response, 'output_text' | 'access_programs'>;
// The document has the name of the function in the event that ends its arguments; the types do not have it yet.
type Received<Event> = Event extends { response: OpenAI.Responses.Response }
  ? Omit<Event, 'response'> & { response: Whole }
  : Event extends { type: 'response.function_call_arguments.done' }
    ? Event & { name: string }
    : Event;
type ResponseEvent = Received<OpenAI.Responses.ResponseStreamEvent>;
type Failure = { error: OpenAI.ErrorObject };
// @ts-expect-error: an answer without its fields is noticed.
export const wrong: Chat = { id: 'x', object: 'chat.completion' };
`;

const god = {
  type: 'object',
  properties: { name: { enum: ['Odin', 'Thor'] } },
  required: ['name'],
  additionalProperties: false,
};
const messages = [{ role: 'user', content: 'Who was Kvasir?' }];
const tool = { name: 'find_god', description: 'Finds a god', parameters: god };
const usage = { stream_options: { include_usage: true } };
const short = { temperature: 0, max_tokens: 6 };

/** Requests of every kind, and the types of their answers and events. */
const cases: [path: string, type: string, eventType: string, request: object][] = [
  ['/v1/chat/completions', 'Chat', 'ChatChunk', { messages, ...short, n: 2 }],
  ['/v1/chat/completions', 'Chat', 'ChatChunk', { messages, ...short, logprobs: true, top_logprobs: 2 }],
  [
    '/v1/chat/completions',
    'Chat',
    'ChatChunk',
    { messages, tools: [{ type: 'function', function: tool }], tool_choice: 'required', max_tokens: 200 },
  ],
  ['/v1/completions', 'Completion', 'CompletionChunk', { prompt: 'Once', ...short, logprobs: 2 }],
  ['/v1/responses', 'Whole', 'ResponseEvent', { input: 'Who?', instructions: 'Be brief.', max_output_tokens: 6 }],
  ['/v1/responses', 'Whole', 'ResponseEvent', { input: 'Who?', max_output_tokens: 6, top_logprobs: 2 }],
  [
    '/v1/responses',
    'Whole',
    'ResponseEvent',
    { input: 'Who?', tools: [{ type: 'function', ...tool }], tool_choice: 'required', metadata: { user: 'x' } },
  ],
  [
    '/v1/responses',
    'Whole',
    'ResponseEvent',
    {
      input: 'Who?',
      text: { format: { type: 'json_schema', name: 'god', schema: god } },
      reasoning: { effort: 'low' },
    },
  ],
];

/** Answers to requests of every kind, their events, and an error, with the names of their types. */
export async function openaiAnswers(ask: Ask): Promise<{ type: string; value: Json }[]> {
  const values: { type: string; value: Json }[] = [];
  for (const [path, type, eventType, request] of cases) {
    values.push({ type, value: await (await ask(path, request)).json() });
    const text = await (await ask(path, { ...request, ...usage, stream: true })).text();
    for (const [, data] of text.matchAll(/^data: (\{.*)$/gm)) values.push({ type: eventType, value: JSON.parse(data) });
  }
  values.push({ type: 'Failure', value: await (await ask('/v1/chat/completions', {})).json() });
  return values;
}

/** The source of the program. */
export async function openaiTypesProgram(ask: Ask): Promise<string> {
  const values = await openaiAnswers(ask);
  const constants = values.map(({ type, value }, i) => `export const v${i}: ${type} = ${JSON.stringify(value)};\n`);
  return HEADER + constants.join('');
}
