import assert from 'node:assert/strict';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { APICallError, generateText } from 'ai';
import { checkLanguageModel } from './ai-sdk-checks.js';
import { apiKey, model, url } from './tools.js';

const kvasir = createOpenAICompatible({
  name: 'kvasir',
  baseURL: `${url}/v1`,
  apiKey,
  includeUsage: true,
  supportsStructuredOutputs: true,
});
await checkLanguageModel(kvasir(model));
await assert.rejects(generateText({ model: kvasir('another'), prompt: 'Hi', maxRetries: 0 }), error => {
  assert.ok(APICallError.isInstance(error), `${error}`);
  assert.equal(error.statusCode, 404);
  return true;
});
