import assert from 'node:assert/strict';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import * as sdk from 'ai';
import { checkLanguageModel } from './ai-sdk-checks.js';
import { apiKey, model, url } from './tools.js';

const kvasir = createOpenAICompatible({
  name: 'kvasir',
  baseURL: `${url}/v1`,
  apiKey,
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const { APICallError, generateText } = sdk;
await checkLanguageModel(kvasir(model), sdk);
await assert.rejects(generateText({ model: kvasir('another'), prompt: 'Hi', maxRetries: 0 }), error => {
  assert.ok(APICallError.isInstance(error), `${error}`);
  assert.equal(error.statusCode, 404);
  return true;
});
