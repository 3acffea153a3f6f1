/** Tiny random models of every supported architecture, as specs for the GGUF writer. */
import { type WeightType, weightBytes, weightFormats } from '../../src/kernel/weights/types.ts';
import { type Architecture, architectures, type Traits } from '../../src/model/architectures.ts';
import { arrayOf, type GgufSpec, type Metadata, type WriterTensor } from './gguf-writer.ts';
import { quantize, randomWeights } from './quantize.ts';
import { seeded } from './random.ts';

export interface TinyOptions {
  architecture?: Architecture;
  /** Type of the matrices; norms and biases are F32, as in real files. */
  type?: WeightType;
  /** Types of single tensors, by name; undefined for `type`. */
  typeOf?: (tensor: string) => WeightType | undefined;
  /** Matrices repeat so many random values, which makes large models in seconds. Whole superblocks. Default: all are random. */
  randomValues?: number;
  layers?: number;
  width?: number;
  heads?: number;
  kvHeads?: number;
  /** Written as attention.key_length; width / heads otherwise. */
  headDim?: number;
  ffn?: number;
  /** Defaults to the byte vocabulary's size. */
  vocab?: number;
  context?: number;
  seed?: number;
  /** No output.weight: the embedding matrix is used. */
  tied?: boolean;
  /** Q, K and V biases; qwen2 has them anyway. */
  bias?: boolean;
  /** A bias of the attention's output. */
  outputBias?: boolean;
  /** Biases of the other matrices in the layers; gpt-oss has them anyway. */
  otherBiases?: boolean;
  /** Q, K and V in one tensor; phi3 has it anyway. */
  fusedQkv?: boolean;
  /** Llama 3's rope_freqs.weight. */
  ropeFactors?: boolean | readonly number[];
  /** Phi's factors of RoPE frequencies for short and long contexts. */
  longRope?: boolean;
  /** Mixture of experts: how many, and how many per row. Default: none, or [8, 2] where the architecture always has them. */
  experts?: readonly [count: number, used: number];
  /** How many of the first layers have a dense network instead. Their inner width is half as large again. */
  denseLayers?: number;
  /** Inner width of the expert that all rows use. Default: none, or twice that of the others in qwen2moe. */
  sharedFfn?: number;
  /** Biases for the choice of experts. */
  selectionBias?: boolean | 'exp_probs_b';
  /** Layers after the last one, which are not used. */
  predictors?: number;
  /** Type of the experts' matrices, if it is another one. */
  expertType?: WeightType;
  /** No end token, which a random model may sample at any time: answers end at their maximum length. */
  endless?: boolean;
  /** Whether to write a byte-level vocabulary; default true. */
  vocabulary?: boolean;
  /** Additional or replaced metadata; undefined removes a key. */
  metadata?: Record<string, Metadata[string] | undefined>;
}

/** For tests in which the model does not matter and the js device computes much. */
export const SMALLEST: TinyOptions = { tied: false, layers: 1, width: 32, heads: 2, kvHeads: 1, ffn: 32 };

export function tinyModel(options: TinyOptions = {}): GgufSpec {
  const { architecture = 'llama', type = 'F32', layers = 2, seed = 1, tied = true } = options;
  const { block } = weightFormats[type];
  const { width = Math.max(64, block), heads = 4, kvHeads = 2, ffn = Math.max(128, block) } = options;
  const headDim = options.headDim ?? width / heads;
  const vocab = options.vocab ?? (options.endless ? 256 : byteVocabulary().length);
  const traits: Traits = architectures[architecture];
  const { norms = 'inputs' } = traits;
  const { denseLayers = 0, predictors = 0, otherBiases = traits.bias === 'everywhere' } = options;
  const sharedFfn = options.sharedFfn ?? (traits.experts?.gatesShared ? 2 * ffn : undefined);
  const denseFfn = denseLayers > 0 ? 1.5 * ffn : ffn;
  const experts = options.experts ?? (traits.experts?.in === 'all' ? [8, 2] : undefined);
  const [q, kv] = [heads * headDim, kvHeads * headDim];
  const projections: Record<string, number> =
    (options.fusedQkv ?? architecture === 'phi3') ? { attn_qkv: q + 2 * kv } : { attn_q: q, attn_k: kv, attn_v: kv };
  const expertType = options.expertType ?? type;
  const random = seeded(seed);
  const tensors: WriterTensor[] = [];
  const tensor = (name: string, usualType: WeightType, shape: readonly number[], size: number, mean = 0) => {
    const values = shape.reduce((a, b) => a * b);
    const type = options.typeOf?.(name) ?? usualType;
    const few = randomWeights(type, Math.min(values, options.randomValues ?? values), size, random, mean);
    const data = new Uint8Array(weightBytes(type, values));
    for (let at = 0; at < data.length; at += few.length) data.set(few.subarray(0, data.length - at), at);
    tensors.push({ name, type, shape, data });
  };
  const matrix = (name: string, inputs: number, outputs: number, gain = 1) =>
    tensor(name, type, [inputs, outputs], gain / Math.sqrt(inputs));
  const vector = (name: string, length: number, size: number, mean: number) =>
    tensor(name, 'F32', [length], size, mean);

  /** A matrix of the feed-forward network or of the router, and its bias if there are biases everywhere. */
  const inner = (name: string, type: WeightType, [inputs, ...outputs]: readonly number[], gain = 1) => {
    tensor(`${name}.weight`, type, [inputs, ...outputs], gain / Math.sqrt(inputs));
    if (otherBiases) tensor(`${name}.bias`, 'F32', outputs, 0.2);
  };

  const feedForward = (layer: string, isDense: boolean) => {
    const [count, suffix] = experts && !isDense ? [[experts[0]], '_exps'] : [[], ''];
    const cols = isDense ? denseFfn : ffn;
    if (count.length > 0) inner(`${layer}ffn_gate_inp`, 'F32', [width, ...count]);
    if (!traits.fusedGateUp) inner(`${layer}ffn_gate${suffix}`, expertType, [width, cols, ...count]);
    inner(`${layer}ffn_up${suffix}`, expertType, [width, traits.fusedGateUp ? 2 * cols : cols, ...count]);
    inner(`${layer}ffn_down${suffix}`, expertType, [cols, width, ...count], 0.5);
    if (count.length === 0) return;
    if (options.selectionBias)
      vector(
        `${layer}${options.selectionBias === true ? 'exp_probs_b.bias' : options.selectionBias}`,
        count[0],
        0.2,
        0,
      );
    if (sharedFfn === undefined) return;
    if (traits.experts?.gatesShared) inner(`${layer}ffn_gate_inp_shexp`, 'F32', [width]);
    for (const name of ['gate', 'up']) inner(`${layer}ffn_${name}_shexp`, type, [width, sharedFfn]);
    inner(`${layer}ffn_down_shexp`, type, [sharedFfn, width], 0.5);
  };

  matrix('token_embd.weight', width, vocab, Math.sqrt(width));
  for (let i = 0; i < layers + predictors; i++) {
    const layer = `blk.${i}.`;
    if (norms !== 'outputs') vector(`${layer}attn_norm.weight`, width, 0.1, 1);
    for (const [name, rows] of Object.entries(projections)) matrix(`${layer}${name}.weight`, width, rows);
    if (options.bias ?? traits.bias !== undefined)
      for (const [name, rows] of Object.entries(projections)) vector(`${layer}${name}.bias`, rows, 0.2, 0);
    if (traits.qkNorm && traits.qkNorm !== 'optional') {
      const [q, k] = traits.qkNorm === 'row' ? [heads, kvHeads] : [1, 1];
      vector(`${layer}attn_q_norm.weight`, q * headDim, 0.2, 1);
      vector(`${layer}attn_k_norm.weight`, k * headDim, 0.2, 1);
    }
    inner(`${layer}attn_output`, type, [heads * headDim, width], 0.5);
    if (options.outputBias) vector(`${layer}attn_output.bias`, width, 0.2, 0);
    if (norms !== 'inputs') vector(`${layer}post_attention_norm.weight`, width, 0.1, 1);
    if (traits.sinkLogits) vector(`${layer}attn_sinks.weight`, heads, 1, 0);
    if (norms !== 'outputs') vector(`${layer}${traits.ffnNorm ?? 'ffn_norm'}.weight`, width, 0.1, 1);
    feedForward(layer, i < denseLayers);
    if (norms !== 'inputs') vector(`${layer}post_ffw_norm.weight`, width, 0.1, 1);
  }
  // What a predictor of further tokens reads: not used.
  for (let i = layers; i < layers + predictors; i++) {
    matrix(`blk.${i}.nextn.eh_proj.weight`, 2 * width, width);
    for (const name of ['enorm', 'hnorm']) vector(`blk.${i}.nextn.${name}.weight`, width, 0.1, 1);
  }
  vector('output_norm.weight', width, 0.1, 1);
  if (!tied) matrix('output.weight', width, vocab);
  const floats = (name: string, values: readonly number[]) =>
    tensors.push({ name, type: 'F32', shape: [values.length], data: quantize('F32', Float32Array.from(values)) });
  const factors = (pairs: number, step: number) => Array.from({ length: pairs }, (_, i) => 1 + i * step);
  if (options.ropeFactors)
    floats('rope_freqs.weight', options.ropeFactors === true ? factors(headDim / 2, 1) : options.ropeFactors);
  if (options.longRope) {
    const pairs = Number(options.metadata?.[`${architecture}.rope.dimension_count`] ?? headDim) / 2;
    floats('rope_factors_long.weight', factors(pairs, 2));
    floats('rope_factors_short.weight', factors(pairs, 0.1));
  }

  const metadata: Record<string, Metadata[string] | undefined> = {
    'general.architecture': architecture,
    'general.name': `tiny ${architecture}`,
    [`${architecture}.block_count`]: layers + predictors,
    ...(predictors > 0 && { [`${architecture}.nextn_predict_layers`]: predictors }),
    [`${architecture}.context_length`]: options.context ?? 512,
    [`${architecture}.embedding_length`]: width,
    [`${architecture}.feed_forward_length`]: denseFfn,
    [`${architecture}.attention.head_count`]: heads,
    [`${architecture}.attention.head_count_kv`]: kvHeads,
    [`${architecture}.attention.layer_norm_rms_epsilon`]: 1e-5,
    [`${architecture}.rope.freq_base`]: 10000.5,
    ...(experts && {
      [`${architecture}.expert_count`]: experts[0],
      [`${architecture}.expert_used_count`]: experts[1],
      [`${architecture}.expert_feed_forward_length`]: ffn,
      ...(denseLayers > 0 && { [`${architecture}.leading_dense_block_count`]: denseLayers }),
      ...(sharedFfn && { [`${architecture}.expert_shared_feed_forward_length`]: sharedFfn }),
    }),
    ...(traits.scales === 'minicpm' && {
      [`${architecture}.embedding_scale`]: 12.5,
      [`${architecture}.residual_scale`]: 0.25,
      [`${architecture}.logit_scale`]: 9.5,
    }),
    ...(options.headDim === undefined
      ? {}
      : {
          [`${architecture}.attention.key_length`]: headDim,
          [`${architecture}.attention.value_length`]: headDim,
        }),
    ...(options.vocabulary === false ? {} : vocabularyMetadata(vocab)),
    ...(options.endless && { 'tokenizer.ggml.eos_token_id': undefined }),
    ...options.metadata,
  };
  const kept = Object.entries(metadata).filter((pair): pair is [string, Metadata[string]] => pair[1] !== undefined);
  return { metadata: kept, tensors };
}

/** GPT-2's characters for the 256 bytes (printable ones stand for themselves), then an end-of-sequence token. */
function byteVocabulary(): string[] {
  let other = 256;
  const printable = (byte: number) => (byte > 32 && byte < 127) || (byte > 160 && byte < 256 && byte !== 173);
  const letters = Array.from({ length: 256 }, (_, byte) => String.fromCodePoint(printable(byte) ? byte : other++));
  return [...letters, '<|end|>'];
}

function vocabularyMetadata(vocab: number): Metadata {
  const bytes = byteVocabulary();
  const tokens = Array.from({ length: vocab }, (_, i) => bytes[i] ?? `<|unused${i}|>`);
  return {
    'tokenizer.ggml.model': 'gpt2',
    'tokenizer.ggml.pre': 'default',
    'tokenizer.ggml.tokens': tokens,
    // 1 is a normal token, 3 a control token.
    'tokenizer.ggml.token_type': arrayOf(
      'i32',
      tokens.map((_, i) => (i < 256 ? 1 : 3)),
    ),
    // A byte vocabulary needs no merges, but a file must have some: two NULs, which occur in no text.
    'tokenizer.ggml.merges': ['Ā Ā'],
    'tokenizer.ggml.eos_token_id': Math.min(256, vocab - 1),
    'tokenizer.ggml.add_bos_token': false,
  };
}

/** The model with a constant bias on the keys of one layer. */
export function plantKeyBias(model: GgufSpec, layer: number, bias: number): GgufSpec {
  const plant = (tensor: WriterTensor): WriterTensor =>
    tensor.name === `blk.${layer}.attn_k.bias`
      ? {
          ...tensor,
          data: quantize(
            'F32',
            Float32Array.from({ length: Number(tensor.shape[0]) }, () => bias),
          ),
        }
      : tensor;
  return { ...model, tensors: model.tensors.map(plant) };
}
