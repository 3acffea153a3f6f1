/** A real model answers, on whatever device this machine has. */
import { expect, it } from 'vitest';
import { loadModel } from '../src/index.ts';
import { describeWith, smolModel } from './shared.ts';

describeWith(smolModel, 'SmolLM2', path => {
  it('greets back', { timeout: 300_000 }, async () => {
    await using model = await loadModel(path, { kv: 'tq4', context: 512 });
    const { text, usage } = await model.complete([{ role: 'user', content: 'Hi' }], { temperature: 0, maxTokens: 3 });
    expect(text).toBe('Hello! How');
    expect(usage.promptTokens).toBe(31);
  });
});
