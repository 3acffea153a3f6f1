import assert from 'node:assert/strict';
import Anthropic from '@anthropic-ai/sdk';
import { apiKey, CALLS, checkWeather, model, question, report, url, weather } from './tools.js';

const client = new Anthropic({ baseURL: url, apiKey, maxRetries: 0 });
const messages = [{ role: 'user', content: question }];
const tools = [{ name: weather.name, description: weather.description, input_schema: weather.parameters }];

const chat = { model, messages, system: 'Answer in one sentence.', temperature: 0, max_tokens: 24 };
const whole = await client.messages.create(chat);
assert.equal(whole.content[0].type, 'text');
assert.ok(['end_turn', 'max_tokens'].includes(whole.stop_reason));
assert.ok(whole.usage.output_tokens > 0);

let text = '';
const final = await client.messages
  .stream(chat)
  .on('text', delta => {
    text += delta;
  })
  .finalMessage();
assert.equal(text, whole.content[0].text);
assert.equal(final.usage.output_tokens, whole.usage.output_tokens);

const { input_tokens } = await client.messages.countTokens({ model, messages, system: chat.system });
const { usage } = whole;
assert.equal(input_tokens, usage.input_tokens + (usage.cache_read_input_tokens ?? 0));

const streamed = await client.messages
  .stream({ ...chat, max_tokens: 200, tools, tool_choice: { type: 'any' } })
  .finalMessage();
assert.equal(streamed.stop_reason, 'tool_use');
checkWeather(streamed.content.find(({ type }) => type === 'tool_use').input);

const conversation = [...messages];
for (let i = 0; i < CALLS; i++) {
  const { content } = await client.messages.create({
    model,
    max_tokens: 200,
    messages: conversation,
    tools,
    tool_choice: { type: 'tool', name: 'weather', disable_parallel_tool_use: true },
  });
  const calls = content.filter(({ type }) => type === 'tool_use');
  assert.equal(calls.length, 1);
  const result = report(checkWeather(calls[0].input));
  conversation.push(
    { role: 'assistant', content },
    { role: 'user', content: [{ type: 'tool_result', tool_use_id: calls[0].id, content: result }] },
  );
}

await assert.rejects(client.messages.create({ ...chat, model: 'another' }), Anthropic.NotFoundError);
await assert.rejects(client.messages.create({ ...chat, messages: [] }), Anthropic.BadRequestError);
await assert.rejects(
  new Anthropic({ baseURL: url, apiKey: 'wrong' }).messages.create(chat),
  Anthropic.AuthenticationError,
);
