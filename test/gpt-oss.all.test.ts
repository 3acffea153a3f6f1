/** Codecs, the guard and calibration on a random gpt-oss: sink logits, biases on keys, layers with a window of 128 tokens. */
import { mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { calibrate } from '../src/calibrate/calibrate.ts';
import { evaluate } from '../src/eval/evaluate.ts';
import { loadModel } from '../src/index.ts';
import { type GgufSpec, writeGguf, writeTempModel } from './support/gguf-writer.ts';
import { quantize } from './support/quantize.ts';
import { type TinyOptions, tinyModel } from './support/tiny-model.ts';

const HEAD_DIM = 64;
const GPT_OSS: TinyOptions = {
  ...{ architecture: 'gpt-oss', layers: 2, width: 128, heads: 4, kvHeads: 2, headDim: HEAD_DIM, ffn: 128 },
  ...{ expertType: 'MXFP4', tied: false, context: 1024, endless: true },
  metadata: { 'gpt-oss.attention.sliding_window': 128 },
};
const TEXT = 'Kvasir was the wisest of all, and no question was too hard for him. He taught wherever he came. '.repeat(
  9,
);

/** All keys have a large vector in common, in dims that RoPE hardly rotates. */
function withKeyBias(spec: GgufSpec): GgufSpec {
  for (const tensor of spec.tensors.filter(({ name }) => name.endsWith('attn_k.bias'))) {
    const slow = [HEAD_DIM / 2 - 1, HEAD_DIM - 1];
    const values = Array.from({ length: Number(tensor.shape[0]) }, (_, i) => (slow.includes(i % HEAD_DIM) ? 150 : 0));
    tensor.data = quantize('F32', Float32Array.from(values));
  }
  return spec;
}

const load = (spec: GgufSpec, kv: string, profile?: string) =>
  loadModel(new Blob([writeGguf(spec)]), { kv, profile, device: 'wasm', threads: 1, context: 1024 });
const answer = { maxTokens: 3, temperature: 0 };

describe('gpt-oss', () => {
  it('has the divergences of other models', { timeout: 300_000 }, async () => {
    const kv = ['q8_0', 'tq4', 'tq3', 'tq2'];
    const { rows } = await evaluate(new Blob([writeGguf(tinyModel(GPT_OSS))]), {
      ...{ text: TEXT, kv, context: 512, rows: 1, device: 'wasm', threads: 1 },
    });
    const [exact, ...coded] = rows.map(({ kld }) => kld);
    expect(exact).toBe(0);
    for (const [i, kld] of coded.entries()) expect(kld).toBeGreaterThan(i === 0 ? 0 : coded[i - 1]);
    expect(coded[1]).toBeLessThan(0.01);
  });

  it.each(['q8_0', 'tq4', 'tq3', 'tq4-raw'])('the guard is silent with %s', { timeout: 300_000 }, async kv => {
    await using model = await load(tinyModel(GPT_OSS), kv);
    expect((await model.complete(TEXT, answer)).notices).toEqual([]);
    expect(model.stats().guard).toMatchObject({ ok: true });
    expect(model.stats().guard.pages).toBeGreaterThan(0);
  });

  it('where keys have much in common, plain codecs do not suit it, and centered ones do', {
    timeout: 300_000,
  }, async () => {
    const biased = withKeyBias(tinyModel(GPT_OSS));
    await using plain = await load(biased, 'tq4-raw');
    const { notices, qualityLoss } = await plain.complete(TEXT, answer);
    expect(qualityLoss).toMatchObject({ kv: 'tq4-raw' });
    expect(notices).toEqual([expect.stringContaining('tq4-raw does not suit this model')]);
    await using centered = await load(biased, 'tq4');
    expect((await centered.complete(TEXT, answer)).notices).toEqual([]);
  });

  it('is calibrated, and the guard is silent with mead', { timeout: 600_000 }, async () => {
    const spec = tinyModel(GPT_OSS);
    const out = join(mkdtempSync(join(tmpdir(), 'kvasir-gpt-oss-')), 'gpt-oss.kvprofile');
    await calibrate(await writeTempModel(spec), {
      ...{ texts: [TEXT.repeat(4)], onlyTexts: true, tokens: 2048, context: 512, samples: 1024 },
      ...{ out, device: 'wasm', threads: 1, workers: 0 },
    });
    await using model = await load(spec, 'mead3', out);
    expect((await model.complete(TEXT, answer)).notices).toEqual([]);
    expect(model.stats().guard).toMatchObject({ ok: true });
  });
});
