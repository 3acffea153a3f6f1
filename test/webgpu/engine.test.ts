/** Whole models on the webgpu device: the logits of js, in any batch, and a typed error when the GPU is lost. */

import { expect, it } from 'vitest';
import { parseSpec } from '../../src/codec/spec.ts';
import { loadEngine, openModelFile, planShape } from '../../src/engine/engine.ts';
import type { GenerateOptions } from '../../src/engine/generate.ts';
import { step } from '../../src/engine/step.ts';
import { type LoadOptions, loadModel } from '../../src/index.ts';
import type { Chunk } from '../../src/model/batch.ts';
import { createPlan, planBytes } from '../../src/plan/plan.ts';
import { DeviceError } from '../../src/util/errors.ts';
import { relativeError } from '../support/attention.ts';
import { writeGguf } from '../support/gguf-writer.ts';
import { itAll, LONG_CASES, matrix } from '../support/matrix.ts';
import { type TinyOptions, tinyModel } from '../support/tiny-model.ts';
import { describeGpu } from './gpu.ts';

const blobOf = (options: TinyOptions = {}) =>
  new Blob([writeGguf(tinyModel({ tied: false, headDim: 32, ...options }))]);

async function open(kv: string, options: LoadOptions, model: Blob) {
  const file = await openModelFile(model);
  const plan = createPlan(parseSpec(kv), { ...file.config, pageTokens: 16 });
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
    ['tq4u', false],
    ['q4_0', true],
  ])('%s with heads of 64: the device says whether attention unpacks pages: %s', async (kv, unpacks) => {
    const model = await loadModel(blobOf({ headDim: 64 }), { kv, device: 'webgpu', warmUp: false });
    expect(model.device.why.includes('attention unpacks pages to floats')).toBe(unpacks);
    await model.dispose();
  });

  it.each(
    matrix(
      [
        ['llama', 'F32', 'f16'],
        ['qwen2', 'F16', 'tq4+recent20'],
        ['qwen3', 'F32', 'kivi2g16/tq3+sink0'],
      ] as const,
      { qwen2: 'biases, an f16 window and sealed pages' },
      ([architecture]) => architecture,
    ),
  )('%s with %s weights and a %s cache: the logits of js', async (architecture, type, kv) => {
    const model = blobOf({ architecture, type });
    const js = await open(kv, { device: 'js' }, model);
    const gpu = await open(kv, { device: 'webgpu', precise: true }, model);
    const expected = await js.logitsOf([70]);
    const found = await gpu.logitsOf([70]);
    expect(found.size).toBe(70);
    const worst = Math.max(...[...expected].map(([key, logits]) => relativeError(found.get(key)!, logits)));
    // A code that rounds differently changes all later rows a little.
    expect(worst).toBeLessThan(kv === 'f16' ? 1e-4 : 0.02);
    await gpu.engine.dispose();
  });

  itAll('Q4_0 with a tq4u cache: logits have the same bits alone, in a ragged batch and in chunks', async () => {
    const model = blobOf({ type: 'Q4_0', layers: 1 });
    const whole = await open('tq4u+recent5', { device: 'webgpu', prefillChunk: 128 }, model);
    const together = await whole.logitsOf([50, 3, 40, 20, 1]);
    expect(together.size).toBe(50 + 1 + 40 + 1 + 1);
    const expectSame = async ({ logitsOf }: typeof whole) => {
      for (const [key, logits] of await logitsOf([50])) expect(together.get(key)).toEqual(logits);
    };
    await expectSame(whole);
    await whole.engine.dispose();
    // Every engine compiles its kernels again.
    for (const prefillChunk of LONG_CASES ? [7, 1] : [7]) {
      const cut = await open('tq4u+recent5', { device: 'webgpu', prefillChunk }, model);
      await expectSame(cut);
      await cut.engine.dispose();
    }
  });

  itAll(
    'passes that run before the last token is read give the same tokens, and a cache that can be continued',
    async () => {
      await using model = await loadModel(blobOf(), { device: 'webgpu', pageTokens: 16, kv: 'tq4u', context: 128 });
      const maxTokens = 40;
      const options = { temperature: 1, seed: 3, maxTokens, ignoreEos: true };
      const { ids, text } = await model.complete('abc', options);
      // Log probabilities are computed on the host, which waits for every token.
      expect((await model.complete('abc', { ...options, logprobs: 0 })).ids).toEqual(ids);
      expect(ids.length).toBe(maxTokens);

      const prompt = model.tokenizer.encode('abc', { bos: model.tokenizer.addBos });
      const next = { temperature: 0, maxTokens: 6, ignoreEos: true };
      const goOn = [...prompt, ...ids.slice(0, 9), 65, 66];
      const { ids: expected } = await model.complete(goOn, next);
      // Ends by token count, stop string, reader and signal, each while a pass is running.
      const stop = new AbortController();
      const ends: GenerateOptions[] = [
        { ...options, maxTokens: 10 },
        { ...options, stop: text.slice(3, 8) },
        options,
        { ...options, signal: stop.signal },
      ];
      for (const end of ends) {
        const conversation = model.conversation();
        let seen = 0;
        for await (const { id } of conversation.generate(prompt, end)) {
          expect(id).toBe(ids[seen++]);
          if (seen === 10 && end.signal) stop.abort();
          else if (seen === 10) break;
        }
        expect(seen).toBeGreaterThan(2);
        const { ids: found, usage } = await conversation.generate(goOn, next).result();
        expect(found).toEqual(expected);
        expect(usage.reusedTokens).toBeLessThan(goOn.length);
        await conversation.dispose();
      }
    },
  );

  itAll('prompts that copy the tail of a running answer get the answers that they get alone', async () => {
    const blob = blobOf({ layers: 1 });
    await using model = await loadModel(blob, { device: 'webgpu', pageTokens: 16, kv: 'tq4u', context: 128 });
    const options = { temperature: 1, seed: 3, maxTokens: 8, ignoreEos: true };
    const running = model.generate('The mead of poetry, and ', options);
    for (let i = 0; i < 3; i++) await running.next();
    const prompts = ['The mead of poetry, and ', 'The mead of poets'];
    const shared = await Promise.all(prompts.map(prompt => model.complete(prompt, options)));
    const first = await running.result();
    for (const [i, prompt] of prompts.entries()) {
      const alone = await model.complete(prompt, { ...options, tenant: prompt });
      expect(alone.usage.reusedTokens).toBe(0);
      expect(shared[i].ids).toEqual(alone.ids);
      expect(shared[i].usage.reusedTokens).toBeGreaterThan(12);
    }
    expect(first.ids).toEqual(shared[0].ids);
  });

  itAll('three conversations that share a small cache get the answers that they get alone', async () => {
    const blob = blobOf({ layers: 1 });
    const file = await openModelFile(blob);
    await file.gguf.close();
    const plan = createPlan(parseSpec('tq4'), planShape(file, 16));
    const kvMemory = planBytes(plan, 64) + 2 * planBytes(plan, 20);
    await using model = await loadModel(blob, { device: 'webgpu', pageTokens: 16, context: 128, kvMemory });
    const talk = async (i: number, tenant: string) => {
      const options = { temperature: 0, ignoreEos: true, maxTokens: 10 + i, tenant };
      await using conversation = model.conversation();
      const prompt = model.tokenizer.encode(`${i}: Odin drank the mead.`);
      const { ids } = await conversation.generate(prompt, options).result();
      return [...ids, ...(await conversation.generate([...prompt, ...ids, 65], options).result()).ids];
    };
    const alone: number[][] = [];
    for (const i of [0, 1, 2]) alone.push(await talk(i, 'alone'));
    expect(await Promise.all([0, 1, 2].map(i => talk(i, 'together')))).toEqual(alone);
    const { evictions, running, waiting } = model.stats();
    expect([evictions > 0, running, waiting]).toEqual([true, 0, 0]);
  });

  // `npm test` loses a device in device.test.ts.
  itAll('a lost GPU is a typed error, and the next model runs', async () => {
    const load = () => loadModel(blobOf(), { device: 'webgpu', pageTokens: 16 });
    const greedy = { temperature: 0, maxTokens: 4, ignoreEos: true };
    const model = await load();
    const { ids } = await model.complete('abc', greedy);
    const stream = model.generate('abc', greedy);
    await stream.next();
    await model.dispose();
    expect((await stream.result()).finish).toBe('cancelled');

    const { engine, logitsOf } = await open('f16', { device: 'webgpu' }, blobOf());
    // As if the driver had crashed: the device is not told beforehand.
    (engine.device as unknown as { gpu: { device: GPUDevice } }).gpu.device.destroy();
    await expect(logitsOf([5])).rejects.toThrow(DeviceError);
    await engine.dispose();

    await using again = await load();
    expect((await again.complete('abc', greedy)).ids).toEqual(ids);
    expect(again.device.why).toMatch(/as requested/);
  });
});
