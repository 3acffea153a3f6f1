import assert from 'node:assert/strict';
import { HumanMessage, ToolMessage } from '@langchain/core/messages';
import { ChatOpenAI } from '@langchain/openai';
import { apiKey, CALLS, checkWeather, model, question, report, url, weather, weatherSchema } from './tools.js';

const create = options =>
  new ChatOpenAI({ model, apiKey, maxRetries: 0, configuration: { baseURL: `${url}/v1` }, ...options });
const chat = create({ temperature: 0, maxTokens: 24 });

const whole = await chat.invoke(question);
assert.ok(whole.text);
assert.ok(whole.usage_metadata.output_tokens > 0);
let text = '';
for await (const chunk of await chat.stream(question)) text += chunk.text;
assert.equal(text, whole.text);

const structured = create({ maxTokens: 200 }).withStructuredOutput(weatherSchema, {
  name: 'weather',
  method: 'jsonSchema',
  strict: true,
});
checkWeather(await structured.invoke(question));

const agent = create({ maxTokens: 200 }).bindTools([{ type: 'function', function: weather }], {
  tool_choice: 'required',
});
const messages = [new HumanMessage(question)];
for (let i = 0; i < CALLS; i++) {
  const answer = await agent.invoke(messages);
  assert.equal(answer.invalid_tool_calls.length, 0);
  assert.ok(answer.tool_calls.length >= 1);
  messages.push(answer);
  for (const { id, args } of answer.tool_calls)
    messages.push(new ToolMessage({ tool_call_id: id, content: report(checkWeather(args)) }));
}

await assert.rejects(create({ model: 'another' }).invoke(question), { status: 404 });
