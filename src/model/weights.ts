/** A model's tensors on a device. Matrices stay quantized as they are in the file; norms and biases are floats. */
import type { Device, Tensor, Weights } from '../kernel/device.ts';
import type { ModelConfig } from './config.ts';
import { type Gguf, readFloats, readTensorInto, tensorOf } from './gguf.ts';
import { pairRows } from './rope.ts';

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
  output: Weights;
  ffnNorm: Tensor;
  gate: Weights;
  up: Weights;
  down: Weights;
}

export interface ModelWeights {
  embedding: Weights;
  unembedding: Weights;
  outputNorm: Tensor;
  layers: LayerWeights[];
}

export interface LoadProgress {
  /** Bytes of an address come over the network first, unless it does not say how many they are. */
  phase: 'fetch' | 'load';
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
  // The engine knows adjacent pairs only: rows of files that pair halves are put side by side.
  const paired = (name: string) => rope.pairing === 'halves' && /attn_[qk](_norm)?\.(weight|bias)$/.test(name);

  const matrix = async (name: string): Promise<Weights> => {
    const tensor = tensorOf(gguf, name);
    const [cols, rows] = tensor.shape;
    const weights = await device.loadWeights(tensor.type, rows, cols, async (into, start) => {
      await readTensorInto(gguf, tensor, into, start);
      if (paired(name)) pairRows(into, tensor.bytes / rows, headDim, rope.dims);
    });
    advance(tensor.bytes);
    return weights;
  };
  const vector = async (name: string): Promise<Tensor> => {
    const data = await readFloats(gguf, tensorOf(gguf, name));
    if (paired(name)) pairRows(new Uint8Array(data.buffer), 4, headDim, rope.dims);
    const tensor = device.tensor(1, data.length);
    device.write(tensor, 0, data);
    advance(data.byteLength);
    return tensor;
  };
  const optional = async (name: string) => (gguf.tensors.has(name) ? vector(name) : undefined);

  const embedding = await matrix('token_embd.weight');
  const layers: LayerWeights[] = [];
  for (let i = 0; i < config.layers; i++) {
    const at = (name: string) => `blk.${i}.${name}`;
    layers.push({
      attentionNorm: await vector(at('attn_norm.weight')),
      q: await matrix(at('attn_q.weight')),
      k: await matrix(at('attn_k.weight')),
      v: await matrix(at('attn_v.weight')),
      qBias: await optional(at('attn_q.bias')),
      kBias: await optional(at('attn_k.bias')),
      vBias: await optional(at('attn_v.bias')),
      qNorm: await optional(at('attn_q_norm.weight')),
      kNorm: await optional(at('attn_k_norm.weight')),
      output: await matrix(at('attn_output.weight')),
      ffnNorm: await vector(at('ffn_norm.weight')),
      gate: await matrix(at('ffn_gate.weight')),
      up: await matrix(at('ffn_up.weight')),
      down: await matrix(at('ffn_down.weight')),
    });
  }
  return {
    embedding,
    unembedding: config.tiedOutput ? embedding : await matrix('output.weight'),
    outputNorm: await vector('output_norm.weight'),
    layers,
  };
}
