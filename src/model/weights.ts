/** A model's weights on a device. Matrices keep the file's quantization; norms and biases become float32. */
import type { Device, Tensor, Weights } from '../kernel/device.ts';
import type { FeedForwardWeights } from './feed-forward.ts';
import { type Gguf, readTensorAsFloat32, readTensorInto, requireTensor } from './gguf.ts';
import type { ModelConfig } from './model-config.ts';
import { interleaveHalves } from './rope.ts';
import { loadedTensors } from './tensor-shapes.ts';

export interface LayerWeights extends FeedForwardWeights {
  /** Norms of the inputs of attention and feed-forward, and of their outputs, where the architecture has them. */
  attentionNorm?: Tensor;
  attentionOutputNorm?: Tensor;
  q: Weights;
  k: Weights;
  v: Weights;
  qBias?: Tensor;
  kBias?: Tensor;
  vBias?: Tensor;
  qNorm?: Tensor;
  kNorm?: Tensor;
  /** Of the softmax, one per query head. */
  sinkLogits?: Tensor;
  attentionOutput: Weights;
  attentionOutputBias?: Tensor;
  ffnNorm?: Tensor;
  ffnOutputNorm?: Tensor;
}

export interface ModelWeights {
  embedding: Weights;
  outputHead: Weights;
  outputNorm: Tensor;
  layers: LayerWeights[];
}

interface RowRange {
  first: number;
  rows: number;
}

export interface LoadProgress {
  /**
   * `fetch`: downloading a URL of known size. `hash`: hashing a file that was not hashed before, to find its profile.
   * `load`: reading tensors into device memory.
   */
  phase: 'fetch' | 'hash' | 'load';
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
  const { heads, kvHeads, headDim, ffn, rope, fusedQkv, fusedGateUp } = config;
  const total = [...loadedTensors(config, gguf.tensors).values()].reduce((sum, { bytes }) => sum + bytes, 0);
  let done = 0;
  const advance = (bytes: number) => {
    signal?.throwIfAborted();
    done += bytes;
    onProgress?.({ phase: 'load', done, total });
  };
  // Kernels rotate adjacent pairs: files that pair the halves of a head are reordered.
  const interleave = (bytes: Uint8Array, rowBytes: number) => {
    if (rope.pairing === 'halves') interleaveHalves(bytes, rowBytes, headDim, rope.dims);
  };
  const noChange = () => {};

  /** Some rows of a matrix, all by default. The matrices of experts are one after the other. */
  const matrix = async (name: string, part?: RowRange, reorder: typeof interleave = noChange): Promise<Weights> => {
    const tensor = requireTensor(gguf, name);
    const [cols, ...extents] = tensor.shape;
    const allRows = extents.reduce((a, b) => a * b, 1);
    const { first, rows } = part ?? { first: 0, rows: allRows };
    const rowBytes = tensor.bytes / allRows;
    const weights = await device.loadWeights(tensor.type, rows, cols, async (into, start) => {
      await readTensorInto(gguf, tensor, into, first * rowBytes + start);
      reorder(into, rowBytes);
    });
    advance(rows * rowBytes);
    return weights;
  };
  const vector = async (name: string, part?: RowRange, reorder: typeof interleave = noChange): Promise<Tensor> => {
    const all = await readTensorAsFloat32(gguf, requireTensor(gguf, name));
    const data = part ? all.slice(part.first, part.first + part.rows) : all;
    reorder(new Uint8Array(data.buffer), 4);
    return upload(data);
  };
  const upload = (data: Float32Array): Tensor => {
    const tensor = device.createTensor(1, data.length);
    device.writeRows(tensor, 0, data);
    advance(data.byteLength);
    return tensor;
  };
  const optional = async (name: string, ...rest: [part?: RowRange, reorder?: typeof interleave]) =>
    gguf.tensors.has(name) ? vector(name, ...rest) : undefined;

  const [q, kv] = [heads * headDim, kvHeads * headDim];
  const fusedRows = { q: { first: 0, rows: q }, k: { first: q, rows: kv }, v: { first: q + kv, rows: kv } };
  const loadLayer = async (layer: number): Promise<LayerWeights> => {
    const tensorName = (name: string) => `blk.${layer}.${name}`;
    const projection = async (name: 'q' | 'k' | 'v') => {
      const tensor = tensorName(fusedQkv ? 'attn_qkv' : `attn_${name}`);
      const part = fusedQkv ? fusedRows[name] : undefined;
      const reorder = name === 'v' ? noChange : interleave;
      return {
        weights: await matrix(`${tensor}.weight`, part, reorder),
        bias: await optional(`${tensor}.bias`, part, reorder),
      };
    };
    const experts = layer < (config.experts?.denseLayers ?? 0) ? undefined : config.experts;
    const gateUp = (index: number) => (fusedGateUp ? { first: index * ffn, rows: ffn } : undefined);
    const inner = (name: string, part: 'weight' | 'bias' = 'weight') =>
      tensorName(`ffn_${name}${experts ? '_exps' : ''}.${part}`);
    const [queries, keys, values] = [await projection('q'), await projection('k'), await projection('v')];
    return {
      attentionNorm: await optional(tensorName('attn_norm.weight')),
      attentionOutputNorm:
        config.norms === 'inputs' ? undefined : await optional(tensorName('post_attention_norm.weight')),
      q: queries.weights,
      k: keys.weights,
      v: values.weights,
      qBias: queries.bias,
      kBias: keys.bias,
      vBias: values.bias,
      qNorm: await optional(tensorName('attn_q_norm.weight'), undefined, interleave),
      kNorm: await optional(tensorName('attn_k_norm.weight'), undefined, interleave),
      sinkLogits: await optional(tensorName('attn_sinks.weight')),
      attentionOutput: await matrix(tensorName('attn_output.weight')),
      attentionOutputBias: await optional(tensorName('attn_output.bias')),
      ffnNorm: await optional(tensorName(`${config.ffnNorm}.weight`)),
      ffnOutputNorm: await optional(tensorName('post_ffw_norm.weight')),
      router: experts && (await matrix(tensorName('ffn_gate_inp.weight'))),
      selectionBias: experts?.selectionBias && (await vector(tensorName(experts.selectionBias))),
      shared: experts?.shared
        ? {
            router: experts.shared.gated ? await matrix(tensorName('ffn_gate_inp_shexp.weight')) : undefined,
            gate: await matrix(tensorName('ffn_gate_shexp.weight')),
            up: await matrix(tensorName('ffn_up_shexp.weight')),
            down: await matrix(tensorName('ffn_down_shexp.weight')),
          }
        : undefined,
      gate: await matrix(inner(fusedGateUp ? 'up' : 'gate'), gateUp(0)),
      up: await matrix(inner('up'), gateUp(1)),
      down: await matrix(inner('down')),
      routerBias: await optional(tensorName('ffn_gate_inp.bias')),
      gateBias: await optional(inner('gate', 'bias')),
      upBias: await optional(inner('up', 'bias')),
      downBias: await optional(inner('down', 'bias')),
    };
  };

  const embedding = await matrix('token_embd.weight');
  const layers: LayerWeights[] = [];
  for (let layer = 0; layer < config.layers; layer++) layers.push(await loadLayer(layer));
  const outputNorm = await readTensorAsFloat32(gguf, requireTensor(gguf, 'output_norm.weight'));
  return {
    embedding,
    outputHead: config.tiedOutput ? embedding : await matrix('output.weight'),
    // The factor of the logits is in the norm before them.
    outputNorm: upload(outputNorm.map(x => x * config.logitScale)),
    layers,
  };
}
