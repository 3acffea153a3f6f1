/** A model of this process, for any version of the AI SDK. */
import assert from 'node:assert/strict';
import { loadModel } from 'kvasir';
import { createLanguageModel } from 'kvasir/ai-sdk';
import { checkLanguageModel } from './ai-sdk-checks.js';

export async function checkInProcess(sdk) {
  const { generateText } = sdk;
  const model = await loadModel(process.env.KVASIR_MODEL, { device: 'wasm', context: 4096 });
  const languageModel = createLanguageModel(model, { defaults: { seed: 1 } });
  await checkLanguageModel(languageModel, sdk);

  // Conversations find what they have in common in the cache.
  const system = 'You answer questions about the weather. '.repeat(40);
  const ask = prompt => generateText({ model: languageModel, system, prompt, maxOutputTokens: 4 });
  await ask('Is it warm?');
  const { usage } = await ask('Is it cold?');
  assert.ok(usage.inputTokenDetails.cacheReadTokens > 100, JSON.stringify(usage));

  const image = [{ role: 'user', content: [{ type: 'file', data: new Uint8Array(8), mediaType: 'image/png' }] }];
  await assert.rejects(generateText({ model: languageModel, messages: image, maxRetries: 0 }), /part of type "file"/);
  await model.dispose();
}
