import assert from 'node:assert/strict';
import OpenAI from 'openai';
import { apiKey, CALLS, checkWeather, model, question, report, url, weather, weatherSchema } from './tools.js';

const client = new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0 });
const messages = [{ role: 'user', content: question }];
const tools = [{ type: 'function', function: weather }];

const { data } = await client.models.list();
assert.ok(data.some(({ id }) => id === model));

const chat = { model, messages, temperature: 0, max_completion_tokens: 24 };
const whole = await client.chat.completions.create(chat);
assert.ok(whole.choices[0].message.content);
assert.equal(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens);

let text = '';
let usage;
for await (const chunk of await client.chat.completions.create({
  ...chat,
  stream: true,
  stream_options: { include_usage: true },
})) {
  text += chunk.choices[0]?.delta.content ?? '';
  usage = chunk.usage ?? usage;
}
assert.equal(text, whole.choices[0].message.content);
assert.equal(usage.completion_tokens, whole.usage.completion_tokens);

const { choices } = await client.completions.create({ model, prompt: 'Once upon a time', max_tokens: 8 });
assert.ok(choices[0].text);

// The client parses the answer itself.
const schema = { type: 'json_schema', json_schema: { name: 'weather', strict: true, schema: weatherSchema } };
const parsed = await client.chat.completions.parse({ model, messages, response_format: schema });
checkWeather(JSON.parse(parsed.choices[0].message.content));

// A tool call as it streams, put together by the client.
const runner = client.chat.completions.stream({ model, messages, tools, tool_choice: 'required' });
const streamed = (await runner.finalChatCompletion()).choices[0];
assert.equal(streamed.finish_reason, 'tool_calls');
checkWeather(JSON.parse(streamed.message.tool_calls[0].function.arguments));

// An agent: CALLS calls in a row, each with the results of those before it.
const conversation = [...messages];
for (let i = 0; i < CALLS; i++) {
  const answer = await client.chat.completions.create({
    model,
    messages: conversation,
    tools,
    tool_choice: { type: 'function', function: { name: 'weather' } },
    parallel_tool_calls: false,
  });
  const { message } = answer.choices[0];
  assert.equal(message.tool_calls.length, 1);
  const [call] = message.tool_calls;
  assert.equal(call.function.name, 'weather');
  const content = report(checkWeather(JSON.parse(call.function.arguments)));
  conversation.push(message, { role: 'tool', tool_call_id: call.id, content });
}

// The Responses API: whole, streamed and parsed by the client, with tools, and continued by its id.
const input = { model, input: question, temperature: 0, max_output_tokens: 24 };
const response = await client.responses.create(input);
assert.ok(response.output_text);
assert.equal(response.usage.total_tokens, response.usage.input_tokens + response.usage.output_tokens);
const follower = client.responses.stream(input);
let followed = '';
follower.on('response.output_text.delta', ({ delta }) => {
  followed += delta;
});
assert.equal((await follower.finalResponse()).output_text, response.output_text);
assert.equal(followed, response.output_text);
const format = { type: 'json_schema', name: 'weather', strict: true, schema: weatherSchema };
const typed = await client.responses.parse({ model, input: question, text: { format } });
checkWeather(typed.output_parsed);
const responseTools = [{ type: 'function', ...weather, strict: true }];
let next = { input: question };
for (let i = 0; i < Math.min(CALLS, 3); i++) {
  const called = await client.responses.create({ model, ...next, tools: responseTools, tool_choice: 'required' });
  const [call] = called.output.filter(({ type }) => type === 'function_call');
  const output = report(checkWeather(JSON.parse(call.arguments)));
  next = {
    previous_response_id: called.id,
    input: [{ type: 'function_call_output', call_id: call.call_id, output }],
  };
}
const { id } = await client.responses.create({ model, ...next, max_output_tokens: 8 });
assert.equal((await client.responses.retrieve(id)).id, id);
await client.responses.delete(id);
await assert.rejects(client.responses.retrieve(id), OpenAI.NotFoundError);
await assert.rejects(client.responses.create({ model, previous_response_id: id, input: 'Go on' }), {
  code: 'previous_response_not_found',
});
await assert.rejects(client.embeddings.create({ model, input: 'Hi' }), { status: 501, code: 'not_supported' });

const failing = (options, Kind, code) =>
  assert.rejects(client.chat.completions.create({ ...chat, ...options }), error => {
    assert.ok(error instanceof Kind, `${error}`);
    if (code) assert.equal(error.code, code);
    return true;
  });
await failing({ model: 'another' }, OpenAI.NotFoundError, 'model_not_found');
await failing({ messages: [] }, OpenAI.BadRequestError);
await failing(
  { messages: [{ role: 'user', content: 'many words '.repeat(20_000) }] },
  OpenAI.BadRequestError,
  'context_length_exceeded',
);
await assert.rejects(new OpenAI({ baseURL: `${url}/v1`, apiKey: 'wrong' }).models.list(), OpenAI.AuthenticationError);
