/** A model's weights on a device. Matrices keep the file's quantization; norms and biases become float32. */
import type { Device, Tensor, Weights } from '../kernel/device.ts';
import type { ModelConfig } from './config.ts';
import { type Gguf, readTensorAsFloat32, readTensorInto, requireTensor } from './gguf.ts';
import { interleaveHalves } from './rope.ts';

export interface LayerWeights {
  attentionNorm: Tensor;
  q: Weights;
  k: Weights;
  v: Weights;
  qBias?: Tensor;
  kBias?: Tensor;
  vBias?: Tensor;
  qNorm?: Tensor;
  kNorm?: Tensor;
  attentionOutput: Weights;
  ffnNorm: Tensor;
  gate: Weights;
  up: Weights;
  down: Weights;
}

export interface ModelWeights {
  embedding: Weights;
  outputHead: Weights;
  outputNorm: Tensor;
  layers: LayerWeights[];
}

export interface LoadProgress {
  /** `fetch`: downloading a URL of known size. `load`: reading tensors into device memory. */
  phase: 'fetch' | 'load';
  /** Bytes. */
  done: number;
  total: number;
}

export async function loadWeights(
  gguf: Gguf,
  config: ModelConfig,
  device: Device,
  { signal, onProgress }: { signal?: AbortSignal; onProgress?: (progress: LoadProgress) => void } = {},
): Promise<ModelWeights> {
  const { headDim, rope } = config;
  const total = [...gguf.tensors.values()].reduce((sum, { bytes }) => sum + bytes, 0);
  let done = 0;
  const advance = (bytes: number) => {
    signal?.throwIfAborted();
    done += bytes;
    onProgress?.({ phase: 'load', done, total });
  };
  // Kernels rotate adjacent pairs: files that pair the halves of a head are reordered.
  const needsInterleave = (name: string) => rope.pairing === 'halves' && /attn_[qk](_norm)?\.(weight|bias)$/.test(name);

  const matrix = async (name: string): Promise<Weights> => {
    const tensor = requireTensor(gguf, name);
    const [cols, rows] = tensor.shape;
    const weights = await device.loadWeights(tensor.type, rows, cols, async (into, start) => {
      await readTensorInto(gguf, tensor, into, start);
      if (needsInterleave(name)) interleaveHalves(into, tensor.bytes / rows, headDim, rope.dims);
    });
    advance(tensor.bytes);
    return weights;
  };
  const vector = async (name: string): Promise<Tensor> => {
    const data = await readTensorAsFloat32(gguf, requireTensor(gguf, name));
    if (needsInterleave(name)) interleaveHalves(new Uint8Array(data.buffer), 4, headDim, rope.dims);
    const tensor = device.createTensor(1, data.length);
    device.writeRows(tensor, 0, data);
    advance(data.byteLength);
    return tensor;
  };
  const optional = async (name: string) => (gguf.tensors.has(name) ? vector(name) : undefined);

  const embedding = await matrix('token_embd.weight');
  const layers: LayerWeights[] = [];
  for (let i = 0; i < config.layers; i++) {
    const tensorName = (name: string) => `blk.${i}.${name}`;
    layers.push({
      attentionNorm: await vector(tensorName('attn_norm.weight')),
      q: await matrix(tensorName('attn_q.weight')),
      k: await matrix(tensorName('attn_k.weight')),
      v: await matrix(tensorName('attn_v.weight')),
      qBias: await optional(tensorName('attn_q.bias')),
      kBias: await optional(tensorName('attn_k.bias')),
      vBias: await optional(tensorName('attn_v.bias')),
      qNorm: await optional(tensorName('attn_q_norm.weight')),
      kNorm: await optional(tensorName('attn_k_norm.weight')),
      attentionOutput: await matrix(tensorName('attn_output.weight')),
      ffnNorm: await vector(tensorName('ffn_norm.weight')),
      gate: await matrix(tensorName('ffn_gate.weight')),
      up: await matrix(tensorName('ffn_up.weight')),
      down: await matrix(tensorName('ffn_down.weight')),
    });
  }
  return {
    embedding,
    outputHead: config.tiedOutput ? embedding : await matrix('output.weight'),
    outputNorm: await vector('output_norm.weight'),
    layers,
  };
}
