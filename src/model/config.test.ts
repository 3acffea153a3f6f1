import { describe, expect, it } from 'vitest';
import {
  arrayOf,
  type GgufSpec,
  type Metadata,
  typed,
  type WriterTensor,
  writeGguf,
} from '../../test/support/gguf-writer.ts';
import { describeWithFile, smolModel } from '../../test/support/shared.ts';
import { type TinyOptions, tinyModel } from '../../test/support/tiny-model.ts';
import { weightTypes } from '../kernel/weights/types.ts';
import { FormatError, UnsupportedError } from '../util/errors.ts';
import { architectures } from './architectures.ts';
import { readConfig, readRopeFrequencies } from './config.ts';
import { openGguf, readGguf } from './gguf.ts';
import { bytesSource } from './source.ts';
import { unsupportedArchitectures } from './unsupported-architectures.ts';

const open = (spec: GgufSpec) => readGguf([bytesSource(writeGguf(spec))]);
const config = async (options?: TinyOptions) => readConfig(await open(tinyModel(options)));
const withMeta = (metadata: TinyOptions['metadata'], options?: TinyOptions) => config({ ...options, metadata });

describe('reading a config', () => {
  it('of llama', async () => {
    expect(await config()).toEqual({
      architecture: 'llama',
      name: 'tiny llama',
      layers: 2,
      width: 64,
      heads: 4,
      kvHeads: 2,
      headDim: 16,
      ffn: 128,
      vocab: 257,
      context: 512,
      normEps: Math.fround(1e-5),
      attentionScale: 0.25,
      attentionSoftcap: 0,
      logitSoftcap: 0,
      embeddingScale: 1,
      logitScale: 1,
      rope: {
        base: 10000.5,
        dims: 16,
        pairing: 'adjacent',
        scaling: { type: 'none' },
        attnFactor: 1,
      },
      layerRopes: ['global', 'global'],
      attentionWindows: [undefined, undefined],
      qkvBias: false,
      attentionOutputBias: false,
      feedForwardBias: false,
      sinkLogits: false,
      ropeFirst: false,
      norms: 'inputs',
      ffnNorm: 'ffn_norm',
      activation: 'silu',
      fusedQkv: false,
      fusedGateUp: false,
      tiedOutput: true,
    });
  });

  it('of llama with an output matrix, biases, explicit heads (Mistral) and frequency factors (Llama 3)', async () => {
    const gguf = await open(tinyModel({ tied: false, bias: true, headDim: 32, ropeFactors: true }));
    const found = readConfig(gguf);
    expect(found).toMatchObject({
      tiedOutput: false,
      qkvBias: true,
      headDim: 32,
      rope: { dims: 32, factors: 'rope_freqs.weight' },
    });
    const { frequencies } = await readRopeFrequencies(gguf, found);
    expect(frequencies[3]).toBeCloseTo(10000.5 ** (-3 / 16) / 4, 12);
  });

  it('of qwen2 and qwen3', async () => {
    expect(await config({ architecture: 'qwen2' })).toMatchObject({
      qkvBias: true,
      qkNorm: undefined,
      rope: { pairing: 'halves' },
    });
    expect(await config({ architecture: 'qwen3', headDim: 32 })).toMatchObject({
      qkvBias: false,
      qkNorm: 'head',
      headDim: 32,
      rope: { pairing: 'halves', dims: 32 },
    });
  });

  it('of gemma3: windows and RoPE by layer', async () => {
    const windowed = { 'gemma3.attention.sliding_window': 16, 'gemma3.rope.scaling.factor': typed('f32', 8) };
    const six = [16, 16, 16, 16, 16, undefined];
    const gguf = await open(tinyModel({ architecture: 'gemma3', layers: 7, metadata: windowed }));
    const found = readConfig(gguf);
    expect(found).toMatchObject({
      attentionWindows: [...six, 16],
      layerRopes: [...six, 16].map(window => (window ? 'local' : 'global')),
      rope: { base: 10000.5, scaling: { type: 'linear', factor: 8 } },
      localRope: { base: 10000, scaling: { type: 'none' } },
      embeddingScale: 8,
      activation: 'gelu',
    });
    const { frequencies, local } = await readRopeFrequencies(gguf, found);
    expect([frequencies[0], local?.frequencies[0]]).toEqual([1 / 8, 1]);
    const pattern = (value: Metadata[string]) =>
      config({
        architecture: 'gemma3',
        metadata: { ...windowed, 'gemma3.attention.sliding_window_pattern': value },
      });
    expect((await pattern(2)).attentionWindows).toEqual([16, undefined]);
    expect((await pattern(arrayOf('bool', [false, true]))).attentionWindows).toEqual([undefined, 16]);
    await expect(pattern(arrayOf('bool', [true]))).rejects.toThrow(/1 flags for 2 layers/);
    expect((await config({ architecture: 'gemma3' })).attentionWindows).toEqual([undefined, undefined]);
  });

  it('of mixtures of experts: how they are scored, groups, dense layers and shared experts', async () => {
    const bailing = (metadata: TinyOptions['metadata'] = {}, options: TinyOptions = {}) =>
      withMeta(
        { 'bailingmoe2.expert_gating_func': 2, 'bailingmoe2.expert_weights_scale': typed('f32', 2.5), ...metadata },
        { architecture: 'bailingmoe2', layers: 3, denseLayers: 1, experts: [16, 4], sharedFfn: 96, ...options },
      );
    expect(await bailing()).toMatchObject({
      ffn: 192,
      experts: {
        ...{ count: 16, used: 4, ffn: 128, denseLayers: 1, shared: { ffn: 96, gated: false } },
        routing: { scores: 'sigmoid', normalized: false, scale: 2.5 },
      },
    });
    const groups = (count: number, used: number) =>
      bailing({ 'bailingmoe2.expert_group_count': count, 'bailingmoe2.expert_group_used_count': used });
    expect((await groups(4, 2)).experts?.routing.groups).toEqual({ count: 4, used: 2 });
    for (const [count, used] of [
      [1, 1],
      [4, 4],
    ])
      expect((await groups(count, used)).experts?.routing.groups).toBe(undefined);
    await expect(groups(3, 2)).rejects.toThrow(/16 experts are not 3 groups/);
    await expect(groups(16, 2)).rejects.toThrow(/16 experts are not 16 groups of two or more/);
    await expect(groups(8, 1)).rejects.toThrow(/1 groups of 2 experts are not 4 experts/);
    expect((await bailing({ 'bailingmoe2.expert_gating_func': 1 })).experts?.routing.scores).toBe('softmax');
    expect((await bailing({ 'bailingmoe2.expert_weights_norm': true })).experts?.routing.normalized).toBe(true);
    await expect(bailing({ 'bailingmoe2.expert_weights_norm': 1 })).rejects.toThrow(/must be true or false/);
    await expect(bailing({ 'bailingmoe2.expert_gating_func': 4 })).rejects.toThrow(/scored by function 4/);
    await expect(bailing({ 'bailingmoe2.leading_dense_block_count': 3 })).rejects.toThrow(/all 3 layers are dense/);
    await expect(bailing({ 'bailingmoe2.interleave_moe_layer_step': 2 })).rejects.toThrow(UnsupportedError);
    expect((await bailing({}, { sharedFfn: undefined })).experts?.shared).toBe(undefined);
  });

  it('without the layers at the end that predict further tokens', async () => {
    const options: TinyOptions = { architecture: 'glm4moe', layers: 3, predictors: 1 };
    expect((await config(options)).layers).toBe(3);
    const all = { 'glm4moe.nextn_predict_layers': 4 };
    await expect(withMeta(all, options)).rejects.toThrow(/all 4 layers predict further tokens/);
    await expect(config({ layers: 3, predictors: 1 })).rejects.toThrow(/layers that predict further tokens/);
  });

  it('of phi3: the RoPE of the loaded context', async () => {
    const metadata = { 'phi3.rope.scaling.original_context_length': 256, 'phi3.context_length': 65536 };
    const gguf = await open(tinyModel({ architecture: 'phi3', kvHeads: 4, longRope: true, metadata }));
    const factors = (context?: number) => readConfig(gguf, { context }).rope.factors;
    expect([factors(), factors(257), factors(256), factors(1)]).toEqual([
      'rope_factors_long.weight',
      'rope_factors_long.weight',
      'rope_factors_short.weight',
      'rope_factors_short.weight',
    ]);
  });

  it('of minicpm without scales, as it was first converted', async () => {
    const none = { 'minicpm.embedding_scale': undefined, 'minicpm.residual_scale': undefined };
    const found = await withMeta(
      { ...none, 'minicpm.logit_scale': undefined },
      { architecture: 'minicpm', width: 512 },
    );
    expect(found.logitScale).toBe(0.5);
    expect(found.embeddingScale).toBeCloseTo((12 * Math.sqrt(2)) / 1.4, 12);
  });

  it('of gemma3 with an image encoder, which is ignored', async () => {
    const { metadata, tensors } = tinyModel({ architecture: 'gemma3' });
    const image = { ...tensors[0], name: 'v.blk.0.attn_q.weight' };
    expect(readConfig(await open({ metadata, tensors: [...tensors, image] }))).toMatchObject({ layers: 2 });
  });

  it('of exaone4 with windows: RoPE only in layers with one', async () => {
    const metadata = { 'exaone4.attention.sliding_window': 16 };
    const { attentionWindows, layerRopes } = await config({ architecture: 'exaone4', layers: 4, metadata });
    expect(attentionWindows).toEqual([16, 16, 16, undefined]);
    expect(layerRopes).toEqual(['global', 'global', 'global', undefined]);
    expect((await config({ architecture: 'exaone4' })).layerRopes).toEqual(['global', 'global']);
  });

  it.each(weightTypes)('of a model in %s', async type => {
    expect(await config({ type, layers: 1 })).toMatchObject({ layers: 1 });
  });

  it('accepts one number per layer if all are equal', async () => {
    expect(await withMeta({ 'llama.attention.head_count_kv': arrayOf('i32', [2, 2]) })).toMatchObject({ kvHeads: 2 });
    await expect(withMeta({ 'llama.attention.head_count_kv': arrayOf('i32', [2, 4]) })).rejects.toThrow(/differ/);
    await expect(withMeta({ 'llama.attention.head_count_kv': arrayOf('i32', [2]) })).rejects.toThrow(/1 numbers for 2/);
    await expect(withMeta({ 'llama.block_count': arrayOf('i32', [2, 2]) })).rejects.toThrow(/must be a number/);
  });

  it('uses defaults for missing metadata', async () => {
    const defaults = await withMeta(
      { 'llama.attention.head_count_kv': undefined, 'llama.rope.freq_base': undefined, 'general.name': undefined },
      { kvHeads: 4, vocabulary: false },
    );
    expect(defaults).toMatchObject({ kvHeads: 4, name: 'unnamed', rope: { base: 10000 } });
  });
});

describe('RoPE scaling', () => {
  const scaling = async (metadata: TinyOptions['metadata']) => (await withMeta(metadata)).rope;

  it('linear, under either key', async () => {
    const linear = { scaling: { type: 'linear', factor: 4 } };
    expect(await scaling({ 'llama.rope.scale_linear': typed('f32', 4) })).toMatchObject(linear);
    expect(await scaling({ 'llama.rope.scaling.factor': typed('f32', 4) })).toMatchObject(linear);
    const both = { 'llama.rope.scaling.type': 'linear', 'llama.rope.scaling.factor': typed('f32', 4) };
    expect(await scaling({ ...both, 'llama.rope.scale_linear': typed('f32', 9) })).toMatchObject(linear);
  });

  it('none', async () => {
    const none = { scaling: { type: 'none' } };
    expect(await scaling({ 'llama.rope.scaling.type': 'none', 'llama.rope.scaling.factor': 8 })).toMatchObject(none);
    expect(await scaling({ 'llama.rope.scaling.factor': typed('f32', 0) })).toMatchObject(none);
    expect(await scaling({ 'llama.rope.scaling.factor': typed('f32', 1) })).toMatchObject(none);
  });

  it('YaRN', async () => {
    const yarn = { 'llama.rope.scaling.type': 'yarn', 'llama.rope.scaling.factor': typed('f32', 4) };
    expect(await scaling(yarn)).toMatchObject({
      attnFactor: 1,
      scaling: { type: 'yarn', factor: 4, originalContext: 512, betaFast: 32, betaSlow: 1 },
    });
    const more = {
      ...yarn,
      'llama.rope.scaling.original_context_length': 128,
      'llama.rope.scaling.attn_factor': typed('f32', 1.5),
      'llama.rope.scaling.yarn_beta_fast': typed('f32', 16),
      'llama.rope.scaling.yarn_beta_slow': typed('f32', 2),
      // What converters write, and is not read.
      'llama.rope.scaling.yarn_ext_factor': typed('f32', 0.5),
      'llama.rope.scaling.yarn_attn_factor': typed('f32', 1.25),
    };
    expect(await scaling(more)).toMatchObject({
      attnFactor: 1.5,
      scaling: { originalContext: 128, betaFast: 16, betaSlow: 2 },
    });
  });

  it('of other types is rejected', async () => {
    await expect(scaling({ 'llama.rope.scaling.type': 'longrope' })).rejects.toThrow(UnsupportedError);
  });
});

describe('a model is rejected', () => {
  it('for an unsupported architecture, listing the supported ones', async () => {
    for (const name of ['gemma7', 'toString', '__proto__'])
      await expect(withMeta({ 'general.architecture': name })).rejects.toThrow(
        /llama, mistral3, qwen2, qwen2vl, qwen2moe,/,
      );
    await expect(withMeta({ 'general.architecture': undefined })).rejects.toThrow(FormatError);
    await expect(withMeta({ 'general.architecture': 7 })).rejects.toThrow(FormatError);
    await expect(withMeta({ 'general.type': 'adapter' })).rejects.toThrow(UnsupportedError);
  });

  it('for a well-known architecture that does not run, with the reason', async () => {
    expect([...unsupportedArchitectures.keys()].filter(name => Object.hasOwn(architectures, name))).toEqual([]);
    for (const name of ['mamba', 'deepseek2', 'lfm2', 'bert', 'clip', 'whisper', 't5'])
      await expect(withMeta({ 'general.architecture': name })).rejects.toThrow(
        `: ${unsupportedArchitectures.get(name)}.`,
      );
  });

  it.each<[string, TinyOptions['metadata'], RegExp]>([
    ['no layers', { 'llama.block_count': 0 }, /block_count must be from 1/],
    ['half a layer', { 'llama.block_count': typed('f32', 1.5) }, /must be an integer/],
    ['too many layers', { 'llama.block_count': 2 ** 31 }, /block_count/],
    ['a missing layer', { 'llama.block_count': 3 }, /no tensor blk\.2\.attn_norm\.weight; it should be \[64\]/],
    ['an extra layer', { 'llama.block_count': 1 }, /"blk\.1\.attn_norm\.weight" that llama models do not use/],
    ['no width', { 'llama.embedding_length': undefined }, /embedding_length is missing/],
    ['a width that is a string', { 'llama.embedding_length': 'wide' }, /must be a number/],
    ['a wrong width', { 'llama.embedding_length': 32 }, /token_embd\.weight should be \[32,257\].*is \[64,257\]/],
    ['heads that do not divide', { 'llama.attention.head_count': 5 }, /share|key_length/],
    ['KV heads that do not divide', { 'llama.attention.head_count_kv': 3 }, /evenly/],
    ['a wrong number of heads', { 'llama.attention.head_count': 2 }, /attn_k\.weight should be/],
    [
      'an odd head',
      { 'llama.attention.key_length': 17, 'llama.attention.value_length': 17 },
      /head dimension 17 is odd/,
    ],
    ['different key and value dimensions', { 'llama.attention.key_length': 32 }, /keys of 32 and values of 16/],
    ['an odd number of RoPE dimensions', { 'llama.rope.dimension_count': 7 }, /even/],
    ['more RoPE dimensions than the head has', { 'llama.rope.dimension_count': 18 }, /from 1 to 16/],
    ['a base of one', { 'llama.rope.freq_base': typed('f32', 1) }, /freq_base/],
    ['a base that is not a number', { 'llama.rope.freq_base': typed('f32', Number.NaN) }, /freq_base/],
    ['an infinite factor', { 'llama.rope.scaling.factor': typed('f32', Infinity) }, /factor/],
    ['a negative factor', { 'llama.rope.scaling.factor': typed('f32', -2) }, /factor/],
    ['a negative epsilon', { 'llama.attention.layer_norm_rms_epsilon': typed('f32', -1) }, /epsilon/],
    ['no context', { 'llama.context_length': 0 }, /context_length/],
    ['a wrong ffn', { 'llama.feed_forward_length': 96 }, /ffn_gate\.weight should be \[64,96\]/],
    ['a vocabulary of another size', { 'tokenizer.ggml.tokens': ['a', 'b'] }, /2 tokens/],
    ['a vocabulary that is not an array', { 'tokenizer.ggml.tokens': 'abc' }, /no list/],
    ['experts without tensors', { 'llama.expert_count': 8, 'llama.expert_used_count': 2 }, /no tensor.*ffn_gate_inp/],
    ['experts of which none is used', { 'llama.expert_count': 8, 'llama.expert_used_count': 0 }, /from 1 to 8, not 0/],
    [
      'more used experts than there are',
      { 'llama.expert_count': 8, 'llama.expert_used_count': 9 },
      /from 1 to 8, not 9/,
    ],
    ['too many experts', { 'llama.expert_count': 2 ** 31, 'llama.expert_used_count': 2 }, /expert_count/],
    ['non-causal attention', { 'llama.attention.causal': false }, /non-causal/],
    ['a scaling type that is not a string', { 'llama.rope.scaling.type': 3 }, /must be a string/],
  ])('for %s', async (_, metadata, message) => {
    await expect(withMeta(metadata)).rejects.toThrow(message);
  });

  it('for a sliding window of an architecture without one', async () => {
    const metadata = { 'qwen2.attention.sliding_window': 128 };
    await expect(config({ architecture: 'qwen2', metadata })).rejects.toThrow(/sliding window/);
  });

  it('for experts that the architecture does not have, no experts where it has them, and misshapen ones', async () => {
    await expect(withMeta({ 'qwen3.expert_count': 8 }, { architecture: 'qwen3' })).rejects.toThrow(UnsupportedError);
    const qwen = (metadata: TinyOptions['metadata']) => withMeta(metadata, { architecture: 'qwen3moe' });
    await expect(qwen({ 'qwen3moe.expert_count': 0 })).rejects.toThrow(/expert_count must be from 1/);
    await expect(qwen({ 'qwen3moe.expert_count': undefined })).rejects.toThrow(/expert_count is missing/);
    await expect(qwen({ 'qwen3moe.expert_count': 4 })).rejects.toThrow(/ffn_gate_inp\.weight should be \[64,4\]/);
    await expect(qwen({ 'qwen3moe.expert_feed_forward_length': 64 })).rejects.toThrow(
      /ffn_gate_exps\.weight should be \[64,64,8\].* is \[64,128,8\]/,
    );
  });

  it('for a gpt-oss model without sinks, with sinks for other heads, or without a bias', async () => {
    const { metadata, tensors } = tinyModel({ architecture: 'gpt-oss', tied: false });
    const read = async (name: string, change: (tensor: WriterTensor) => WriterTensor[]) =>
      readConfig(await open({ metadata, tensors: tensors.flatMap(t => (t.name === name ? change(t) : [t])) }));
    await expect(read('blk.0.attn_sinks.weight', () => [])).rejects.toThrow(/no tensor blk\.0\.attn_sinks\.weight/);
    await expect(
      read('blk.1.attn_sinks.weight', t => [{ ...t, shape: [2], data: t.data.subarray(0, 8) }]),
    ).rejects.toThrow(/attn_sinks\.weight should be \[4\].* is \[2\]/);
    await expect(read('blk.1.ffn_up_exps.bias', () => [])).rejects.toThrow(/ffn_up_exps\.bias.*\[128,8\]/);
  });

  it('for a missing, misshapen or unknown tensor, with its name', async () => {
    const { metadata, tensors } = tinyModel();
    const without = (name: string) => open({ metadata, tensors: tensors.filter(t => t.name !== name) });
    for (const name of ['token_embd.weight', 'output_norm.weight', 'blk.1.ffn_down.weight']) {
      const gguf = await without(name);
      expect(() => readConfig(gguf)).toThrow(name);
      expect(() => readConfig(gguf)).toThrow(FormatError);
    }
    const flat = tensors.map(t => (t.name === 'blk.0.attn_q.weight' ? { ...t, shape: [64 * 64] } : t));
    const misshapen = await open({ metadata, tensors: flat });
    expect(() => readConfig(misshapen)).toThrow(/attn_q\.weight should be \[64,64\].* is \[4096\]/);
    const unbiased = await open(tinyModel({ architecture: 'qwen2', bias: false }));
    expect(() => readConfig(unbiased)).toThrow(/no tensor blk\.0\.attn_q\.bias/);
    const factors = await open(tinyModel({ ropeFactors: [1, 2, 3] }));
    expect(() => readConfig(factors)).toThrow(/rope_freqs\.weight should be \[8\]/);
    const zero = await open(tinyModel({ ropeFactors: [1, 1, 1, 1, 1, 1, 1, 0] }));
    await expect(readRopeFrequencies(zero, readConfig(zero))).rejects.toThrow(/must be positive/);
  });
});

describeWithFile(smolModel, 'SmolLM2 135M', path => {
  it('has the config of its README', async () => {
    const gguf = await openGguf(path);
    expect(readConfig(gguf)).toMatchObject({
      architecture: 'llama',
      layers: 30,
      width: 576,
      heads: 9,
      kvHeads: 3,
      headDim: 64,
      ffn: 1536,
      vocab: 49152,
      context: 8192,
      rope: { base: 100000, dims: 64, pairing: 'adjacent', scaling: { type: 'none' } },
      qkvBias: false,
      qkNorm: undefined,
      tiedOutput: true,
    });
    await gguf.close();
  });
});
