/** Tiny random models of every supported architecture, as specs for the GGUF writer. */
import { type WeightType, weightFormats } from '../src/kernel/weights/types.ts';
import { arrayOf, type GgufSpec, type Metadata, type WriterTensor } from './gguf-writer.ts';
import { quantize, randomWeights } from './quantize.ts';
import { seeded } from './random.ts';

export interface TinyOptions {
  architecture?: 'llama' | 'qwen2' | 'qwen3';
  /** Type of the matrices; norms and biases are F32, as in real files. */
  type?: WeightType;
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
  /** Llama 3's rope_freqs.weight. */
  ropeFactors?: boolean | readonly number[];
  /** Whether to write a byte-level vocabulary; default true. */
  vocabulary?: boolean;
  /** Additional or replaced metadata; undefined removes a key. */
  metadata?: Record<string, Metadata[string] | undefined>;
}

export function tinyModel(options: TinyOptions = {}): GgufSpec {
  const { architecture = 'llama', type = 'F32', layers = 2, seed = 1, tied = true } = options;
  const { block } = weightFormats[type];
  const { width = Math.max(64, block), heads = 4, kvHeads = 2, ffn = Math.max(128, block) } = options;
  const headDim = options.headDim ?? width / heads;
  const vocab = options.vocab ?? byteVocabulary().length;
  const random = seeded(seed);
  const tensors: WriterTensor[] = [];
  const matrix = (name: string, inputs: number, outputs: number, gain = 1) =>
    tensors.push({
      name,
      type,
      shape: [inputs, outputs],
      data: randomWeights(type, inputs * outputs, gain / Math.sqrt(inputs), random),
    });
  const vector = (name: string, length: number, size: number, mean: number) =>
    tensors.push({ name, type: 'F32', shape: [length], data: randomWeights('F32', length, size, random, mean) });

  matrix('token_embd.weight', width, vocab, Math.sqrt(width));
  for (let i = 0; i < layers; i++) {
    const layer = `blk.${i}.`;
    vector(`${layer}attn_norm.weight`, width, 0.1, 1);
    matrix(`${layer}attn_q.weight`, width, heads * headDim);
    matrix(`${layer}attn_k.weight`, width, kvHeads * headDim);
    matrix(`${layer}attn_v.weight`, width, kvHeads * headDim);
    if (options.bias ?? architecture === 'qwen2') {
      vector(`${layer}attn_q.bias`, heads * headDim, 0.2, 0);
      vector(`${layer}attn_k.bias`, kvHeads * headDim, 0.2, 0);
      vector(`${layer}attn_v.bias`, kvHeads * headDim, 0.2, 0);
    }
    if (architecture === 'qwen3') {
      vector(`${layer}attn_q_norm.weight`, headDim, 0.2, 1);
      vector(`${layer}attn_k_norm.weight`, headDim, 0.2, 1);
    }
    matrix(`${layer}attn_output.weight`, heads * headDim, width, 0.5);
    vector(`${layer}ffn_norm.weight`, width, 0.1, 1);
    matrix(`${layer}ffn_gate.weight`, width, ffn);
    matrix(`${layer}ffn_up.weight`, width, ffn);
    matrix(`${layer}ffn_down.weight`, ffn, width, 0.5);
  }
  vector('output_norm.weight', width, 0.1, 1);
  if (!tied) matrix('output.weight', width, vocab);
  if (options.ropeFactors) {
    const given =
      options.ropeFactors === true ? Array.from({ length: headDim / 2 }, (_, i) => 1 + i) : options.ropeFactors;
    tensors.push({
      name: 'rope_freqs.weight',
      type: 'F32',
      shape: [given.length],
      data: quantize('F32', Float32Array.from(given)),
    });
  }

  const metadata: Record<string, Metadata[string] | undefined> = {
    'general.architecture': architecture,
    'general.name': `tiny ${architecture}`,
    [`${architecture}.block_count`]: layers,
    [`${architecture}.context_length`]: options.context ?? 512,
    [`${architecture}.embedding_length`]: width,
    [`${architecture}.feed_forward_length`]: ffn,
    [`${architecture}.attention.head_count`]: heads,
    [`${architecture}.attention.head_count_kv`]: kvHeads,
    [`${architecture}.attention.layer_norm_rms_epsilon`]: 1e-5,
    [`${architecture}.rope.freq_base`]: 10000.5,
    ...(options.headDim === undefined
      ? {}
      : {
          [`${architecture}.attention.key_length`]: headDim,
          [`${architecture}.attention.value_length`]: headDim,
        }),
    ...(options.vocabulary === false ? {} : vocabularyMetadata(vocab)),
    ...options.metadata,
  };
  const kept = Object.entries(metadata).filter((pair): pair is [string, Metadata[string]] => pair[1] !== undefined);
  return { metadata: kept, tensors };
}

/** GPT-2's characters for the 256 bytes (printable ones stand for themselves), then an end-of-sequence token. */
export function byteVocabulary(): string[] {
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
