/** Whole models on the webgpu device: the same logits as js, in any company, and a clean end when the GPU goes away. */
import { expect, it } from 'vitest';
import { loadEngine, openModelFile } from '../src/engine/engine.ts';
import type { GenerateOptions } from '../src/engine/generate.ts';
import { step } from '../src/engine/step.ts';
import { DeviceError } from '../src/errors.ts';
import { type LoadOptions, loadModel } from '../src/index.ts';
import type { Chunk } from '../src/model/forward.ts';
import { planOf } from '../src/plan/plan.ts';
import { far } from './attention.ts';
import { writeGguf } from './gguf-writer.ts';
import { type TinyOptions, tinyModel } from './tiny-model.ts';
import { describeGpu } from './webgpu.ts';

const blobOf = (options: TinyOptions = {}) =>
  new Blob([writeGguf(tinyModel({ tied: false, headDim: 32, ...options }))]);

async function open(kv: string, options: LoadOptions, model: Blob) {
  const file = await openModelFile(model);
  const plan = planOf(kv, { ...file.config, pageTokens: 16 });
  const engine = await loadEngine(file, { plan, context: 256 }, options);
  /** Logits of all rows of chunks that run together, each of a sequence of its own. */
  const logitsOf = async (lengths: readonly number[]) => {
    const rows = new Map<string, Float32Array>();
    const chunks = lengths.map((length, n): Chunk => {
      const tokens = Array.from({ length }, (_, i) => (i * 37 + length * 11) % 256);
      return { sequence: engine.openSequence(plan, 256), tokens, logits: n % 2 === 0 ? 'all' : 'last' };
    });
    await step(engine, chunks, {
      onLogits: (chunk, row, logits) => rows.set(`${chunk.tokens.length}:${row}`, logits),
    });
    for (const { sequence } of chunks) sequence.dispose();
    return rows;
  };
  return { engine, logitsOf };
}

describeGpu('models', () => {
  it.each([
    ['llama', 'F32', 'f16'],
    ['qwen2', 'F16', 'tq4+recent20'],
    ['qwen3', 'F32', 'kivi2g16/tq3+sink0'],
  ] as const)('%s of %s on %s: the logits of js', async (architecture, type, kv) => {
    const model = blobOf({ architecture, type });
    const js = await open(kv, { device: 'js' }, model);
    const gpu = await open(kv, { device: 'webgpu', precise: true }, model);
    const expected = await js.logitsOf([70]);
    const found = await gpu.logitsOf([70]);
    expect(found.size).toBe(70);
    const worst = Math.max(...[...expected].map(([key, logits]) => far(found.get(key)!, logits)));
    // Where a code falls on the other side of a tie, everything after it differs a little.
    expect(worst).toBeLessThan(kv === 'f16' ? 1e-4 : 0.02);
    await gpu.engine.dispose();
  });

  it('Q4_0 on tq4u: a row gets the very same logits alone, in a ragged batch and in chunks', async () => {
    const model = blobOf({ type: 'Q4_0', layers: 1 });
    const whole = await open('tq4u+recent5', { device: 'webgpu', prefillChunk: 128 }, model);
    const together = await whole.logitsOf([50, 3, 40, 20, 1]);
    expect(together.size).toBe(50 + 1 + 40 + 1 + 1);
    for (const prefillChunk of [128, 7, 1]) {
      const cut = await open('tq4u+recent5', { device: 'webgpu', prefillChunk }, model);
      for (const [key, logits] of await cut.logitsOf([50])) expect(together.get(key)).toEqual(logits);
      await cut.engine.dispose();
    }
    await whole.engine.dispose();
  });

  it('passes ahead of what is known give the tokens that are given one by one, and a cache that goes on', async () => {
    await using model = await loadModel(blobOf(), { device: 'webgpu', pageTokens: 16, kv: 'tq4u', context: 128 });
    const options = { temperature: 1, seed: 3, maxTokens: 40, ignoreEnd: true };
    const { ids, text } = await model.complete('abc', options);
    // Log probabilities are made here, of logits: every token is waited for.
    expect((await model.complete('abc', { ...options, logprobs: 0 })).ids).toEqual(ids);
    expect(ids.length).toBe(40);

    const prompt = model.tokenizer.encode('abc', { bos: model.tokenizer.addBos });
    const next = { temperature: 0, maxTokens: 6, ignoreEnd: true };
    const goOn = [...prompt, ...ids.slice(0, 9), 65, 66];
    const { ids: expected } = await model.complete(goOn, next);
    // The end comes by a token, by a string, by the reader, and by a signal: a pass is on its way each time.
    const stop = new AbortController();
    const ends: GenerateOptions[] = [
      { ...options, maxTokens: 10 },
      { ...options, stop: text.slice(3, 8) },
      options,
      { ...options, signal: stop.signal },
    ];
    for (const end of ends) {
      const talk = model.conversation();
      let seen = 0;
      for await (const { id } of talk.generate(prompt, end)) {
        expect(id).toBe(ids[seen++]);
        if (seen === 10 && end.signal) stop.abort();
        else if (seen === 10) break;
      }
      const { ids: found, usage } = await talk.generate(goOn, next).result();
      expect(found).toEqual(expected);
      expect(usage.reusedTokens).toBeLessThan(goOn.length);
      await talk.dispose();
    }
  });

  it('a GPU that goes away is a typed error, and the next model runs', async () => {
    const load = () => loadModel(blobOf(), { device: 'webgpu', pageTokens: 16 });
    const greedy = { temperature: 0, maxTokens: 4, ignoreEnd: true };
    const model = await load();
    const { ids } = await model.complete('abc', greedy);
    const stream = model.generate('abc', greedy);
    await stream.next();
    await model.dispose();
    expect((await stream.result()).finish).toBe('cancelled');

    const { engine, logitsOf } = await open('f16', { device: 'webgpu' }, blobOf());
    // As if the driver had gone: the device does not know of it beforehand.
    (engine.device as unknown as { gpu: { device: GPUDevice } }).gpu.device.destroy();
    await expect(logitsOf([5])).rejects.toThrow(DeviceError);
    await engine.dispose();

    await using again = await load();
    expect((await again.complete('abc', greedy)).ids).toEqual(ids);
    expect(again.device.why).toMatch(/as asked/);
  });
});
