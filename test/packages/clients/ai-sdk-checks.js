/** The same for any language model and version of the AI SDK: over HTTP, and in this process. */
import assert from 'node:assert/strict';
import { CALLS, checkWeather, question, report, weather, weatherSchema } from './tools.js';

export async function checkLanguageModel(model, sdk) {
  const { generateObject, generateText, jsonSchema, Output, stepCountIs, streamObject, streamText, tool } = sdk;
  const schema = jsonSchema(weatherSchema);
  const chat = { model, prompt: question, temperature: 0, maxOutputTokens: 24, maxRetries: 0 };
  const whole = await generateText(chat);
  assert.ok(whole.text);
  assert.ok(whole.usage.inputTokens > 0 && whole.usage.outputTokens > 0);

  const streamed = streamText(chat);
  let text = '';
  for await (const delta of streamed.textStream) text += delta;
  assert.equal(text, whole.text);
  assert.equal((await streamed.usage).outputTokens, whole.usage.outputTokens);

  const ask = { model, prompt: question, maxOutputTokens: 200, maxRetries: 0 };
  checkWeather((await generateObject({ ...ask, schema })).object);
  const partial = streamObject({ ...ask, schema });
  let last;
  for await (const object of partial.partialObjectStream) last = object;
  assert.deepEqual(checkWeather(await partial.object), last);
  checkWeather((await generateText({ ...ask, output: Output.object({ schema }) })).output);

  // An agent: CALLS calls in a row. The AI SDK runs the tool, and answers with its results.
  const inputs = [];
  const weatherTool = tool({
    description: weather.description,
    inputSchema: schema,
    execute: input => {
      inputs.push(checkWeather(input));
      return report(input);
    },
  });
  const agent = { ...ask, tools: { weather: weatherTool }, toolChoice: 'required' };
  const { steps } = await generateText({ ...agent, stopWhen: stepCountIs(CALLS) });
  assert.equal(steps.length, CALLS);
  for (const { toolCalls, finishReason } of steps) {
    assert.equal(finishReason, 'tool-calls');
    assert.ok(toolCalls.length >= 1 && toolCalls.every(call => !call.invalid));
  }
  assert.ok(inputs.length >= CALLS);

  const parts = [];
  for await (const part of streamText({ ...agent, stopWhen: stepCountIs(1) }).fullStream) parts.push(part.type);
  for (const type of ['tool-input-start', 'tool-input-delta', 'tool-input-end', 'tool-call', 'tool-result', 'finish'])
    assert.ok(parts.includes(type), `${type} in ${parts}`);

  const stopping = new AbortController();
  const aborted = generateText({ ...chat, maxOutputTokens: 2000, abortSignal: stopping.signal });
  setTimeout(() => stopping.abort(), 300);
  await assert.rejects(aborted, { name: 'AbortError' });
}
