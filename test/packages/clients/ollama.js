import assert from 'node:assert/strict';
import { Ollama } from 'ollama';
import { apiKey, CALLS, checkWeather, model, question, report, url, weather, weatherSchema } from './tools.js';

const client = new Ollama({ host: url, headers: { authorization: `Bearer ${apiKey}` } });
const messages = [{ role: 'user', content: question }];
const options = { temperature: 0, num_predict: 24 };

assert.match((await client.version()).version, /^\d+\.\d+\.\d+$/);
assert.ok((await client.list()).models.some(({ name }) => name === model));
assert.equal((await client.ps()).models.length, 1);
const shown = await client.show({ model });
assert.ok(shown.capabilities.includes('tools'));
// The client makes a map of it, or leaves it an object.
const info = new Map(shown.model_info instanceof Map ? shown.model_info : Object.entries(shown.model_info));
assert.equal(info.get(`${shown.details.family}.context_length`), 4096);

const whole = await client.chat({ model, messages, options });
assert.ok(whole.message.content && whole.done && whole.eval_count > 0);
let text = '';
let last;
for await (const part of await client.chat({ model, messages, options, stream: true })) {
  text += part.message.content;
  last = part;
}
assert.equal(text, whole.message.content);
assert.equal(last.eval_count, whole.eval_count);

const structured = await client.chat({ model, messages, format: weatherSchema });
checkWeather(JSON.parse(structured.message.content));

// The model decides whether it calls: what it calls is well-formed, and results are read.
const tools = [{ type: 'function', function: weather }];
const conversation = [...messages];
for (let i = 0; i < CALLS; i++) {
  const { message } = await client.chat({ model, messages: conversation, tools, options: { num_predict: 60 } });
  for (const call of message.tool_calls ?? []) assert.equal(typeof call.function.arguments, 'object');
  const call = { function: { name: 'weather', arguments: { city: 'Oslo', days: i + 1 } } };
  const result = { role: 'tool', tool_name: 'weather', content: report(call.function.arguments) };
  conversation.push({ role: 'assistant', content: '', tool_calls: [call] }, result);
}

let generated = '';
for await (const { response } of await client.generate({ model, prompt: question, options, stream: true }))
  generated += response;
assert.equal(generated, whole.message.content);
const raw = await client.generate({ model, prompt: 'Once upon a time', raw: true, options });
assert.ok(raw.response);

const failing = (request, status, pattern) =>
  assert.rejects(request, error => {
    assert.equal(error.status_code, status, `${error}`);
    assert.match(error.message, pattern);
    return true;
  });
await failing(client.chat({ model: 'another', messages }), 404, /not served/);
await failing(client.generate({ model, prompt: 'a', suffix: 'b' }), 400, /middle/);
await failing(client.embed({ model, input: 'Hi' }), 501, /embeddings/);
await failing(client.chat({ model, messages: [{ ...messages[0], images: ['iVBORw0KGgo='] }] }), 400, /images/);
