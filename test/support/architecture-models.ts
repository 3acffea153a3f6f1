/**
 * Tiny models with random weights of every architecture, with the metadata that makes its layers differ, held against llama.cpp
 * and against themselves.
 */
import { spawnSync } from 'node:child_process';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type LoadOptions, loadModel } from '../../src/api/model.ts';
import { F16 } from '../../src/codec/spec.ts';
import { loadEngine, openModelFile } from '../../src/engine/engine.ts';
import { step } from '../../src/engine/step.ts';
import type { Result } from '../../src/engine/stream.ts';
import type { DeviceName } from '../../src/kernel/open.ts';
import type { Architecture } from '../../src/model/architectures.ts';
import { createPlan } from '../../src/plan/plan.ts';
import { arrayOf, typed, writeGguf } from './gguf-writer.ts';
import { seeded } from './random.ts';
import { type TinyOptions, tinyModel } from './tiny-model.ts';

/** llama.cpp looks for tokens of Phi in vocabularies of models with this name. */
const PHI_NAME = { 'general.name': 'tiny' };
const PHI_LONG = {
  ...PHI_NAME,
  'phi3.rope.dimension_count': 12,
  'phi3.rope.scaling.original_context_length': 256,
  'phi3.rope.scaling.attn_factor': 1.19,
};

/** The keys that converters write for YaRN, Hugging Face's attention factor among them. */
const yarn = (architecture: Architecture, factor: number, originalContext: number): TinyOptions['metadata'] => ({
  [`${architecture}.rope.scaling.type`]: 'yarn',
  [`${architecture}.rope.scaling.factor`]: typed('f32', factor),
  [`${architecture}.rope.scaling.original_context_length`]: originalContext,
  [`${architecture}.rope.scaling.yarn_attn_factor`]: typed('f32', 1 + 0.1 * Math.log(factor)),
  [`${architecture}.rope.scaling.yarn_beta_fast`]: typed('f32', 32),
  [`${architecture}.rope.scaling.yarn_beta_slow`]: typed('f32', 1),
});

const GRANITE = {
  'granite.embedding_scale': typed('f32', 12),
  'granite.residual_scale': 0.22,
  'granite.logit_scale': typed('f32', 8),
  'granite.attention.scale': 0.015625,
};

export interface OracleModel extends TinyOptions {
  /** Max tokens per sequence. Default: the tokens that are compared. */
  loadedContext?: number;
}

/** Named by their architecture and what is special. */
export const architectureModels: Record<string, OracleModel> = {
  llama: { architecture: 'llama', ropeFactors: true, bias: true },
  'llama, YaRN': {
    architecture: 'llama',
    metadata: {
      ...yarn('llama', 4, 128),
    },
  },
  mistral3: {
    architecture: 'mistral3',
    metadata: {
      ...yarn('mistral3', 16, 32),
      'mistral3.rope.scaling.yarn_log_multiplier': typed('f32', 1),
      'mistral3.attention.temperature_scale': 0.4,
    },
  },
  qwen2: { architecture: 'qwen2' },
  qwen2vl: {
    architecture: 'qwen2vl',
    metadata: { 'qwen2vl.rope.dimension_sections': arrayOf('i32', [2, 3, 3, 0]) },
  },
  qwen3: { architecture: 'qwen3', headDim: 32 },
  'llama, biases': { architecture: 'llama', bias: true, otherBiases: true },
  'llama, experts': { architecture: 'llama', experts: [8, 2] },
  qwen2moe: { architecture: 'qwen2moe', tied: false },
  qwen3moe: { architecture: 'qwen3moe', headDim: 32 },
  granitemoe: {
    architecture: 'granitemoe',
    metadata: {
      'granitemoe.embedding_scale': typed('f32', 12),
      'granitemoe.residual_scale': 0.22,
      'granitemoe.logit_scale': typed('f32', 8),
      'granitemoe.attention.scale': 0.015625,
    },
  },
  'granitemoe, shared experts': {
    architecture: 'granitemoe',
    sharedFfn: 96,
    metadata: { 'granitemoe.residual_scale': 0.22, 'granitemoe.logit_scale': typed('f32', 8) },
  },
  // Converters write the number of groups, even if it is one.
  glm4moe: {
    architecture: 'glm4moe',
    layers: 3,
    headDim: 32,
    bias: true,
    tied: false,
    experts: [12, 3],
    denseLayers: 1,
    predictors: 1,
    sharedFfn: 128,
    selectionBias: true,
    metadata: {
      'glm4moe.rope.dimension_count': 16,
      'glm4moe.expert_shared_count': 1,
      'glm4moe.expert_gating_func': 2,
      'glm4moe.expert_weights_scale': typed('f32', 2.5),
      'glm4moe.expert_weights_norm': true,
      'glm4moe.expert_group_count': 1,
      'glm4moe.expert_group_used_count': 1,
    },
  },
  'ernie4_5-moe': {
    architecture: 'ernie4_5-moe',
    layers: 3,
    experts: [8, 3],
    denseLayers: 1,
    sharedFfn: 96,
    selectionBias: true,
    metadata: { 'ernie4_5-moe.interleave_moe_layer_step': 1, 'ernie4_5-moe.expert_shared_count': 2 },
  },
  'hunyuan-moe': {
    architecture: 'hunyuan-moe',
    headDim: 32,
    sharedFfn: 96,
    metadata: { 'hunyuan-moe.expert_shared_count': 1 },
  },
  hy_v3: {
    architecture: 'hy_v3',
    layers: 3,
    headDim: 32,
    experts: [8, 3],
    denseLayers: 1,
    sharedFfn: 128,
    selectionBias: 'exp_probs_b',
    metadata: {
      // The file does not tell which layers are dense, but by its tensors.
      'hy_v3.leading_dense_block_count': undefined,
      'hy_v3.expert_gating_func': 2,
      'hy_v3.expert_weights_scale': typed('f32', 2.5),
      'hy_v3.expert_weights_norm': true,
    },
  },
  bailingmoe: {
    architecture: 'bailingmoe',
    seed: 2,
    tied: false,
    sharedFfn: 256,
    metadata: {
      'bailingmoe.rope.dimension_count': 16,
      'bailingmoe.leading_dense_block_count': 0,
      'bailingmoe.expert_shared_count': 2,
      'bailingmoe.expert_weights_scale': typed('f32', 1),
      'bailingmoe.expert_weights_norm': true,
    },
  },
  bailingmoe2: {
    architecture: 'bailingmoe2',
    layers: 3,
    tied: false,
    fusedQkv: true,
    experts: [16, 4],
    denseLayers: 1,
    sharedFfn: 128,
    selectionBias: true,
    metadata: {
      'bailingmoe2.rope.dimension_count': 8,
      'bailingmoe2.expert_shared_count': 1,
      'bailingmoe2.expert_gating_func': 2,
      'bailingmoe2.expert_weights_scale': typed('f32', 2.5),
      'bailingmoe2.expert_weights_norm': true,
      'bailingmoe2.expert_group_count': 4,
      'bailingmoe2.expert_group_used_count': 2,
    },
  },
  deepseek: {
    architecture: 'deepseek',
    layers: 3,
    tied: false,
    experts: [8, 3],
    denseLayers: 1,
    sharedFfn: 256,
    metadata: { 'deepseek.expert_shared_count': 2, 'deepseek.expert_weights_scale': typed('f32', 1.5) },
  },
  dots1: {
    architecture: 'dots1',
    layers: 3,
    kvHeads: 4,
    tied: false,
    denseLayers: 1,
    sharedFfn: 256,
    selectionBias: true,
    metadata: {
      'dots1.expert_shared_count': 2,
      'dots1.expert_gating_func': 2,
      'dots1.expert_weights_scale': typed('f32', 2.5),
      'dots1.expert_weights_norm': true,
    },
  },
  'minimax-m2': {
    architecture: 'minimax-m2',
    headDim: 32,
    tied: false,
    selectionBias: true,
    metadata: { 'minimax-m2.rope.dimension_count': 16, 'minimax-m2.expert_gating_func': 2 },
  },
  olmoe: { architecture: 'olmoe', tied: false, kvHeads: 4, experts: [7, 3] },
  'gpt-oss': {
    architecture: 'gpt-oss',
    headDim: 16,
    tied: false,
    expertType: 'MXFP4',
    metadata: {
      'gpt-oss.attention.sliding_window': 32,
      ...yarn('gpt-oss', 32, 64),
    },
  },
  qwen3vl: {
    architecture: 'qwen3vl',
    headDim: 32,
    metadata: { 'qwen3vl.rope.dimension_sections': arrayOf('i32', [6, 5, 5, 0]) },
  },
  qwen3vlmoe: {
    architecture: 'qwen3vlmoe',
    headDim: 32,
    metadata: { 'qwen3vlmoe.rope.dimension_sections': arrayOf('i32', [6, 5, 5, 0]) },
  },
  phi3: { architecture: 'phi3', kvHeads: 4, metadata: PHI_NAME },
  'phi3, LongRoPE, short': { architecture: 'phi3', longRope: true, metadata: PHI_LONG, loadedContext: 256 },
  'phi3, LongRoPE, long': { architecture: 'phi3', longRope: true, metadata: PHI_LONG, loadedContext: 512 },
  smollm3: { architecture: 'smollm3', layers: 5 },
  granite: {
    architecture: 'granite',
    metadata: GRANITE,
  },
  minicpm: { architecture: 'minicpm' },
  'minicpm, LongRoPE': {
    architecture: 'minicpm',
    longRope: true,
    loadedContext: 512,
    metadata: {
      'minicpm.rope.scaling.type': 'longrope',
      'minicpm.rope.scaling.original_context_length': 256,
    },
  },
  // Its default scale of logits is 1 at this width; llama.cpp's is the inverse of ours at others.
  'minicpm, converted without scales': {
    architecture: 'minicpm',
    width: 256,
    metadata: {
      'minicpm.embedding_scale': undefined,
      'minicpm.residual_scale': undefined,
      'minicpm.logit_scale': undefined,
    },
  },
  olmo2: { architecture: 'olmo2', tied: false },
  exaone: { architecture: 'exaone', ropeFactors: true, tied: false },
  exaone4: { architecture: 'exaone4' },
  // llama.cpp knows EXAONE's 32B by its layers.
  'exaone4, windows': {
    architecture: 'exaone4',
    layers: 64,
    width: 32,
    ffn: 32,
    metadata: { 'exaone4.attention.sliding_window': 40 },
  },
  'olmo2, windows (OLMo 3)': {
    architecture: 'olmo2',
    tied: false,
    layers: 5,
    metadata: {
      'olmo2.attention.sliding_window': 40,
      'olmo2.attention.sliding_window_pattern': arrayOf('bool', [true, true, true, false, true]),
      ...yarn('olmo2', 8, 64),
    },
  },
  'llama with a window, which is ignored': {
    architecture: 'llama',
    metadata: { 'llama.attention.sliding_window': 40 },
  },
  'granite without RoPE': {
    architecture: 'granite',
    metadata: {
      ...GRANITE,
      'granite.rope.scaling.finetuned': false,
    },
  },
  chatglm: {
    architecture: 'chatglm',
    bias: true,
    tied: false,
    fusedQkv: true,
    metadata: { 'chatglm.rope.dimension_count': 8 },
  },
  'exaone-moe': {
    architecture: 'exaone-moe',
    layers: 5,
    headDim: 32,
    tied: false,
    denseLayers: 1,
    sharedFfn: 128,
    selectionBias: true,
    metadata: {
      'exaone-moe.attention.sliding_window': 40,
      'exaone-moe.rope.scaling.type': 'none',
      'exaone-moe.expert_shared_count': 1,
      'exaone-moe.expert_gating_func': 2,
      'exaone-moe.expert_weights_scale': typed('f32', 2.5),
      'exaone-moe.expert_weights_norm': true,
      'exaone-moe.expert_group_count': 1,
      'exaone-moe.expert_group_used_count': 1,
    },
  },
  'pangu-embedded': { architecture: 'pangu-embedded', bias: true, outputBias: true },
  xverse: { architecture: 'xverse', tied: false },
  internlm2: { architecture: 'internlm2', tied: false },
  ernie4_5: { architecture: 'ernie4_5' },
  'hunyuan-dense': { architecture: 'hunyuan-dense', headDim: 32 },
  maincoder: { architecture: 'maincoder' },
  mellum: {
    architecture: 'mellum',
    layers: 5,
    headDim: 32,
    tied: false,
    metadata: {
      'mellum.attention.sliding_window': 40,
      'mellum.attention.sliding_window_pattern': arrayOf('bool', [true, true, true, false, true]),
      ...yarn('mellum', 8, 64),
    },
  },
  seed_oss: { architecture: 'seed_oss', headDim: 32, bias: true, tied: false },
  gemma: { architecture: 'gemma', headDim: 32, kvHeads: 1 },
  gemma2: {
    architecture: 'gemma2',
    layers: 4,
    headDim: 32,
    metadata: {
      'gemma2.attention.sliding_window': 40,
      'gemma2.attn_logit_softcapping': typed('f32', 2),
      'gemma2.final_logit_softcapping': typed('f32', 5),
    },
  },
  'gemma2, 27B': { architecture: 'gemma2', layers: 46, width: 32, ffn: 32, headDim: 16 },
  gemma3: {
    architecture: 'gemma3',
    layers: 7,
    headDim: 32,
    kvHeads: 1,
    metadata: {
      'gemma3.attention.sliding_window': 16,
      'gemma3.rope.freq_base': typed('f32', 1e6),
      'gemma3.rope.scaling.type': 'linear',
      'gemma3.rope.scaling.factor': typed('f32', 8),
    },
  },
  glm4: { architecture: 'glm4', bias: true, metadata: { 'glm4.rope.dimension_count': 8 } },
};

/** Several pages, and more than the windows have. */
export const ORACLE_TOKENS = 150;
const random = seeded(3);
const ids = Array.from({ length: ORACLE_TOKENS }, () => random.below(256));
/** Of this repository, where tests and benchmarks run. */
const ORACLE = 'test/support/llama-oracle.mjs';

/** The divergence of our next-token distributions from those of llama.cpp, in nats per token. */
export async function divergencesFromLlamaCpp<Name extends DeviceName>(
  options: OracleModel,
  devices: readonly Name[],
): Promise<Record<Name, number>> {
  const folder = await mkdtemp(join(tmpdir(), 'kvasir-oracle-'));
  try {
    const path = join(folder, 'model.gguf');
    await writeFile(path, writeGguf(tinyModel(options)));
    const given = ids.slice(0, options.context);
    const context = options.loadedContext ?? ORACLE_TOKENS;
    const expected = llamaCpp(path, context, given);
    const found = {} as Record<Name, number>;
    for (const device of devices) found[device] = divergence(expected, await kvasir(path, context, device, given));
    return found;
  } finally {
    await rm(folder, { recursive: true });
  }
}

function llamaCpp(path: string, context: number, ids: readonly number[]): number[][] {
  const { stdout, stderr, status } = spawnSync(process.execPath, [ORACLE, path, String(context)], {
    input: JSON.stringify(ids),
    encoding: 'utf8',
    maxBuffer: 2 ** 28,
  });
  if (status !== 0) throw new Error(`llama.cpp failed: ${stderr}`);
  return JSON.parse(stdout);
}

async function kvasir(
  path: string,
  context: number,
  device: DeviceName,
  ids: readonly number[],
): Promise<Float32Array[]> {
  const file = await openModelFile(path, { context });
  const plan = createPlan(F16, { ...file.config, pageTokens: 64 });
  const engine = await loadEngine(file, { plan, context }, { device, precise: true });
  const sequence = engine.openSequence(plan, context);
  const rows: Float32Array[] = [];
  await step(engine, [{ sequence, tokens: ids, logits: 'all' }], {
    onLogits: (_, row, logits) => (rows[row] = logits.slice()),
  });
  sequence.dispose();
  await engine.dispose();
  return rows;
}

/** The divergence of our distribution from llama.cpp's, averaged over tokens. */
function divergence(expected: readonly number[][], logits: readonly Float32Array[]): number {
  const sums = expected.map((p, i) => {
    const max = Math.max(...logits[i]);
    const total = Math.log(logits[i].reduce((sum, x) => sum + Math.exp(x - max), 0)) + max;
    return p.reduce((sum, x, id) => (x > 0 ? sum + x * (Math.log(x) - (logits[i][id] - total)) : sum), 0);
  });
  return sums.reduce((a, b) => a + b) / sums.length;
}

/** Tokens and log probabilities of an answer, and how many tokens of its prompt were read for it. */
export interface Trace {
  tokens: string[];
  read: number;
}

/**
 * The same greedy answer three ways: its prompt is read, found in the cache, or restored from a session, the last two without
 * its last three tokens.
 */
export async function answersThreeWays(
  options: TinyOptions,
  load: LoadOptions,
): Promise<Record<'cold' | 'hit' | 'restored', Trace>> {
  const prompt = ids.slice(0, Math.min(ORACLE_TOKENS, (options.context ?? ORACLE_TOKENS) - 10));
  const known = prompt.slice(0, -3);
  const greedy = { temperature: 0, ignoreEos: true, logprobs: 0, maxTokens: 8 };
  const traceOf = ({ logprobs, usage }: Result): Trace => ({
    tokens: logprobs!.map(({ id, logprob }) => `${id} ${logprob}`),
    read: usage.prefilledTokens,
  });
  const folder = await mkdtemp(join(tmpdir(), 'kvasir-answers-'));
  try {
    await using model = await loadModel(new Blob([writeGguf(tinyModel(options))]), load);
    const cold = await model.complete(prompt, { ...greedy, tenant: 'cold' });
    await model.complete(known, { ...greedy, tenant: 'hit' });
    const hit = await model.complete(prompt, { ...greedy, tenant: 'hit' });
    const path = join(folder, 'answers.kvsession');
    await using conversation = model.conversation();
    await conversation.generate(known, { ...greedy, maxTokens: 1 }).result();
    await conversation.save(path);
    await using restored = await model.restore(path);
    const continued = await restored.generate(prompt, greedy).result();
    return { cold: traceOf(cold), hit: traceOf(hit), restored: traceOf(continued) };
  } finally {
    await rm(folder, { recursive: true });
  }
}
